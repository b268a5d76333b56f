# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The measured times that a group's members share: read by member 0 from files, and the same on all ranks."""
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_dist.ops.calls import log
from triton_dist.ops.tuning import table
from triton_dist.ops.tuning.sources import kernels_version
from triton_dist.ops.tuning.table import Entry, Place
from triton_dist.runtime.backend import backend
from triton_dist.runtime.environment import autotune, cache_dir
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.versions import installed


@dataclass
class Tables:
    """What a group knows of an op's times. Equal on all its members."""
    mode: str                   # TRITON_DIST_AUTOTUNE of member 0
    place: Place                # of figures that are taken now
    entries: dict               # Shape -> Entry
    fresh: set = field(default_factory=set)             # shapes measured by this process


def cache_file() -> Path:
    """Where a user's own figures are kept."""
    return cache_dir() / "tuned.json"


def of(op: Any, record: Any) -> Tables:
    """What the group of a CallRecord knows of an op's times. Collective at its first use."""
    if record.tables is None:
        record.tables = _share(op, record.group)
    return record.tables


def keep(entry: Entry) -> None:
    """Puts an entry into the user's own figures."""
    try:
        table.add(cache_file(), [entry])
    except OSError as error:
        _warn(f"measured times are not kept: {error}")


def _share(op: Any, group: Group) -> Tables:
    """Reads the tables on member 0 and gives them to all."""
    mine, error = None, ""
    try:
        mode = autotune()
    except InvalidArgument as wrong:
        mode, error = "", str(wrong)
    if group.rank == 0:
        tunes = mode in ("1", "force")                      # versions matter to a user's own figures alone
        mine = mode, installed()["triton"], kernels_version(op) if tunes else "", _read(own=tunes)
    names, errors, found = zip(*group.all_gather_object((backend().device_name(), error, mine)))
    if any(errors):
        raise InvalidArgument(next(filter(None, errors)))
    mode, triton, kernels, (shipped, own) = found[0]
    nodes = group.nodes if group.size > 1 else ((0,),)
    device, topology = " + ".join(sorted(set(names))), "+".join(str(len(node)) for node in nodes)
    place = Place(device, group.size, topology, triton, kernels)
    alike = [entry for entry in shipped if (entry.place.world, entry.place.topology) == (group.size, topology)
             and len(set(names)) == 1]
    alike.sort(key=lambda entry: entry.place.device == device)       # of this very device last: it holds
    own = [entry for entry in own if entry.place == place]
    return Tables(mode, place, {entry.shape: entry for entry in [*alike, *own] if entry.shape.op == op.name})


def _read(own: bool) -> tuple[list, list]:
    """Entries of the shipped tables that hold for this rank's device, and of the user's `own`."""
    found: tuple = ([], [])
    for kind, path in [*((0, path) for path in backend().tables()), *([(1, cache_file())] if own else [])]:
        try:
            found[kind].extend(table.read(path))
        except (OSError, ValueError) as error:
            _warn(f"{error}; its figures are not used" + (", and new ones will replace it" if kind else ""))
    return [entry for entry in found[0] if backend().alike(entry.place.device)], found[1]


def _warn(text: str) -> None:
    log.fallback(text, f"triton_dist: {text}")

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How a call is run: by measured times where there are any, else by a rule; the same on every rank (protocol rule 13).

Tables come from member 0 of a group, by a collective at the group's first use; other ranks never read a file. Where
TRITON_DIST_AUTOTUNE asks for it, the first use of a shape times the candidates on the real call. What is compared are the
slowest rank's medians, which all ranks have; a candidate that one rank cannot build is tried by none.
"""
import time
import warnings
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Callable, Sequence

from triton import knobs

from triton_dist.ops.tuning import measure, table
from triton_dist.ops.tuning.sources import kernels_version
from triton_dist.ops.tuning.table import Choice, Entry, Place, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.environment import autotune, cache_dir
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state
from triton_dist.runtime.versions import installed

TUNED = ("ag_gemm", "gemm_rs")  # ops whose ways to run are timed
_SHARED = "any size"            # key of the decision that holds for all sizes without one of their own
_LEVEL = 1.01                   # times that differ by less are equal, and the candidate named first is taken


@dataclass(frozen=True)
class Decision:
    """How calls of one kind run, and why.

    entry: the figures it rests on. shape: the one that it was made for; None where sizes that may differ over the ranks
    were not asked for.
    """
    choice: Choice
    reason: str
    entry: Entry | None = None
    shape: Shape | None = None


@dataclass
class Tables:
    """What a group knows of times. Equal on all its members."""
    mode: str                   # TRITON_DIST_AUTOTUNE of member 0
    places: dict                # op -> Place
    entries: dict               # Shape -> Entry
    fresh: set = field(default_factory=set)             # shapes measured by this process


@dataclass(frozen=True)
class Call:
    """A kind of call of an op. All is equal on all ranks, but for `local`, this rank's part of a size that may differ, and
    `build`.

    key: what all ranks agree on. shape(total) gives the Shape from the sum of all `local`. candidates: ways to run it that the
    method asked for allows, each method's default first. rule: the one taken without figures, and why. build(choice) gives
    what makes such calls, for measure.measure.
    """
    key: tuple
    local: int
    shape: Callable[[int], Shape]
    candidates: Sequence[Choice]
    rule: tuple
    build: Callable[[Choice], Any]


def cache_file() -> Path:
    """Where a user's own figures are kept."""
    return cache_dir() / "tuned.json"


def decide(group: Group, call: Call) -> Decision:
    """How calls like this one run. Collective at the first use of its key, and of a `local` that is new under it.

    Ranks cannot see each other's `local`, so it must be new on all of them or on none. Two cases make that so in practice:
    a `local` that is larger or smaller by one than a known one (an uneven split of another layer) counts as known, and once
    ranks have had unequal ones, all calls of the key share that decision.
    """
    known = state().decisions.setdefault((group.key, call.key), {})
    found = _known(known, call.local)
    if found is None:
        sizes, found = _decide(group, call)
        if len(sizes) != 1:
            known[_SHARED] = found
        if sizes:
            known[call.local] = found
    return found


def _known(known: dict, local: int) -> Decision | None:
    near = next((size for size in (local, local - 1, local + 1) if size in known), _SHARED)
    return known.get(near)


def decided(group: Group, key: tuple, shape: Shape) -> Decision | None:
    """What `decide` has said for calls of `shape`, evenly divided; None where it has not been asked for them."""
    known = state().decisions.get((group.key, key), {})
    own = next((found for found in known.values() if found.shape in (None, shape)), None)
    shared = known.get(_SHARED)
    if own is not None or shared is None:
        return own
    return replace(shared, reason=f"it was decided for {shared.shape}, whose parts differ over the ranks, and holds for all "
                                  f"sizes since: {shared.reason.replace('at this shape', f'at {shared.shape}')}")


def tables(group: Group) -> Tables:
    """What `group` knows of times. Collective at its first use."""
    known = state().tables
    if group.key not in known:
        known[group.key] = _share(group)
    return known[group.key]


def from_table(candidates: Sequence[Choice], rule: tuple, shape: Shape, entries: dict) -> Decision:
    """The fastest candidate by the figures of a shape or its class; by the rule where they do not tell of each method."""
    entry = table.find(entries, shape)
    ms = {c: entry.ms[c] for c in candidates if c in entry.ms} if entry else {}
    if not ms or not entry.covers(c.method for c in candidates):
        return Decision(*rule)
    least = min(ms.values())
    choice = next(c for c in candidates if c in ms and ms[c] <= _LEVEL * least)
    where = "this shape" if entry.shape == shape else str(entry.shape)
    return Decision(choice, f"of {len(ms)} measured it was the fastest, {ms[choice]:.4g} ms at {where} on {entry.date}", entry)


def _decide(group: Group, call: Call) -> tuple[set, Decision]:
    """(the set of all ranks' `local` where it mattered, the decision)."""
    if len(call.candidates) == 1:
        return set(), Decision(call.candidates[0], "it is the only candidate")
    figures = tables(group)
    if figures.mode == "0" and not figures.entries:
        return set(), Decision(*call.rule)
    sizes = group.all_gather_object(call.local)
    shape = call.shape(sum(sizes))
    return set(sizes), replace(_by_figures(group, call, shape, figures), shape=shape)


def _by_figures(group: Group, call: Call, shape: Shape, known: Tables) -> Decision:
    found = from_table(call.candidates, call.rule, shape, known.entries)
    if known.mode == "0" or (found.entry if known.mode == "1" else shape in known.fresh):
        return found
    start = time.perf_counter()
    ms, failed = measure.measure(group, f"tuning {shape}", call.candidates, call.build)
    place = known.places[shape.op]
    entry = Entry(place, shape, group.broadcast_object(date.today().isoformat()), ms, failed)
    before = known.entries.get(shape)
    entry = before.with_more(entry) if before is not None and before.place == place else entry
    known.entries[shape] = entry
    known.fresh.add(shape)
    found = from_table(call.candidates, call.rule, shape, known.entries)
    if group.rank == 0:
        _keep(entry)
        if knobs.autotuning.print:
            print(report(entry, found, time.perf_counter() - start), flush=True)
    return found


def report(entry: Entry, found: Decision, seconds: float) -> str:
    """What was tried for a shape, in lines."""
    lines = [f"triton_dist tuned {entry.shape} on {entry.place.world} x {entry.place.device} in {seconds:.1f} s: {found.choice}"]
    lines += [f"  {ms:10.4f} ms  {choice}" for choice, ms in sorted(entry.ms.items(), key=lambda item: item[1])]
    lines += [f"  {'failed':>13s}  {choice}: {why}" for choice, why in entry.failed.items()]
    return "\n".join(lines)


def _keep(entry: Entry) -> None:
    try:
        table.add(cache_file(), [entry])
    except OSError as error:
        _warn_once(f"measured times are not kept: {error}")


def _share(group: Group) -> Tables:
    """Reads the tables on member 0 and gives them to all."""
    mine, error = None, ""
    try:
        mode = autotune()
    except InvalidArgument as wrong:
        mode, error = "", str(wrong)
    if group.rank == 0:
        tunes = mode in ("1", "force")                      # versions matter to a user's own figures alone
        kernels = {op: kernels_version(op) if tunes else "" for op in TUNED}
        mine = mode, installed()["triton"], kernels, _read(own=tunes)
    names, errors, found = zip(*group.all_gather_object((backend().device_name(), error, mine)))
    if any(errors):
        raise InvalidArgument(next(filter(None, errors)))
    mode, triton, kernels, (shipped, own) = found[0]
    nodes = group.nodes if group.size > 1 else ((0,),)
    device, topology = " + ".join(sorted(set(names))), "+".join(str(len(node)) for node in nodes)
    places = {op: Place(device, group.size, topology, triton, version) for op, version in kernels.items()}
    alike = [entry for entry in shipped if (entry.place.world, entry.place.topology) == (group.size, topology)
             and len(set(names)) == 1]
    alike.sort(key=lambda entry: entry.place.device == device)       # of this very device last: it holds
    own = [entry for entry in own if entry.place == places.get(entry.shape.op)]
    return Tables(mode, places, {entry.shape: entry for entry in [*alike, *own]})


def _read(own: bool) -> tuple[list, list]:
    """Entries of the shipped tables that hold for this rank's device, and of the user's `own`."""
    found: tuple = ([], [])
    for kind, path in [*((0, path) for path in backend().tables()), *([(1, cache_file())] if own else [])]:
        try:
            found[kind].extend(table.read(path))
        except (OSError, ValueError) as error:
            _warn_once(f"{error}; its figures are not used" + (", and new ones will replace it" if kind else ""))
    return [entry for entry in found[0] if backend().alike(entry.place.device)], found[1]


def _warn_once(text: str) -> None:
    if text not in state().warned:
        state().warned.add(text)
        warnings.warn(f"triton_dist: {text}", RuntimeWarning, stacklevel=2)

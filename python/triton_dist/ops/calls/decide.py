# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How a call is run: by measured times where there are any, else by a rule; the same on every rank (protocol rule 13).

Tables come from member 0 of a group, by a collective at an op's first use on it; other ranks never read a file. Where
TRITON_DIST_AUTOTUNE asks for it, the first use of a shape times the candidates on the real call. What is compared are the
slowest rank's medians, which all ranks have; a candidate that one rank cannot build is tried by none.
"""
import time
from datetime import date
from typing import Any, Callable, NamedTuple, Sequence

from triton import knobs

from triton_dist.ops.calls.record import MOST, CallRecord
from triton_dist.ops.tuning import measure, table, tables
from triton_dist.ops.tuning.table import Choice, Entry, Shape
from triton_dist.ops.tuning.tables import Tables
from triton_dist.runtime.groups import Group

_SHARED = "any size"            # key of what holds for all sizes without an entry of their own
_LEVEL = 1.01                   # times that differ by less are equal, and the candidate named first is taken


class Decision(NamedTuple):
    """How calls of one kind run, and why.

    entry: the figures it rests on. shape: the one that it was made for; None where sizes that may differ over the ranks
    were not asked for.
    """
    choice: Choice
    reason: str
    entry: Entry | None = None
    shape: Shape | None = None


def decide(record: CallRecord, op: Any, agreed: Any, ways: Sequence[Choice], rule: tuple, local: int,
           build: Callable[[Choice], Any]) -> Decision:
    """How calls of an op that is timed run. All arguments are equal on all ranks, but for the last two.

    Collective at the first use of a `local` that is new to a family of calls, and to measure.

    Ranks cannot see each other's `local`, so it must be new on all of them or on none. Two cases make that so in practice:
    a `local` that is larger or smaller by one than a known one (an uneven split of another layer) counts as known, and once
    ranks have had unequal ones, all calls that agree in the rest share that decision.

    agreed: what all ranks agree on. ways: those that the method asked for allows, each method's default first. rule: the one
    taken without figures, and why. local: this rank's part of a size that may differ. build(way): what makes such calls, to be
    timed.
    """
    if len(record.decisions) >= MOST:
        record.decisions.clear()
        record.sizes.clear()
    known = record.decisions.setdefault(agreed, {})
    found = _known(known, local) if known else None
    if found is None:
        figures = tables.of(op, record)
        if figures.mode == "0" and not figures.entries:
            return known.setdefault(_SHARED, Decision(*rule))
        sizes = _sizes(record, agreed.family, local)
        found = known[local] = _by_figures(record.group, op.shape(agreed, record.group, sum(sizes)), figures, ways, rule, build)
        if len(set(sizes)) != 1:
            known[_SHARED] = found
    return found


def _known(known: dict, local: int) -> Any:
    """The entry of a size, of one beside it, or the shared one."""
    for size in (local, local - 1, local + 1):
        if size in known:
            return known[size]
    return known.get(_SHARED)


def decided(record: CallRecord, agreed: Any, shape: Shape) -> Decision | None:
    """What `decide` has said for calls of `shape`, evenly divided; None where it has not been asked for them."""
    known = record.decisions.get(agreed, {})
    own = next((found for found in known.values() if found.shape in (None, shape)), None)
    shared = known.get(_SHARED)
    if own is not None or shared is None:
        return own
    return shared._replace(reason=f"it was decided for {shared.shape}, whose parts differ over the ranks, and holds for all "
                                  f"sizes since: {shared.reason.replace('at this shape', f'at {shared.shape}')}")


def from_table(candidates: Sequence[Choice], rule: tuple, shape: Shape, entries: dict) -> Decision:
    """The fastest candidate by the figures of a shape or its class; by the rule where they do not tell of each method."""
    entry = table.find(entries, shape)
    ms = {c: found for c in candidates if (found := entry.ms.get(c)) is not None} if entry else {}
    if not ms or not entry.covers(c.method for c in candidates):
        return Decision(*rule, shape=shape)
    least = min(ms.values())
    choice = next(c for c, found in ms.items() if found <= _LEVEL * least)
    where = "this shape" if entry.shape == shape else str(entry.shape)
    return Decision(choice, f"of {len(ms)} measured it was the fastest, {ms[choice]:.4g} ms at {where} on {entry.date}", entry,
                    shape)


def _sizes(record: CallRecord, family: tuple, local: int) -> Sequence[int]:
    """All ranks' `local`. Collective where it is new to a family of calls."""
    known = record.sizes.setdefault(family, {})
    found = _known(known, local)
    if found is None:
        found = known[local] = record.group.all_gather_object(local)
        if len(set(found)) != 1:
            known[_SHARED] = found
    return found


def _by_figures(group: Group, shape: Shape, known: Tables, ways: Sequence[Choice], rule: tuple,
                build: Callable[[Choice], Any]) -> Decision:
    found = from_table(ways, rule, shape, known.entries)
    if known.mode == "0" or (found.entry if known.mode == "1" else shape in known.fresh):
        return found
    start = time.perf_counter()
    ms, failed = measure.measure(group, f"tuning {shape}", ways, build)
    entry = Entry(known.place, shape, group.broadcast_object(date.today().isoformat()), ms, failed)
    before = known.entries.get(shape)
    entry = before.with_more(entry) if before is not None and before.place == known.place else entry
    known.entries[shape] = entry
    known.fresh.add(shape)
    found = from_table(ways, rule, shape, known.entries)
    if group.rank == 0:
        tables.keep(entry)
        if knobs.autotuning.print:
            print(report(entry, found, time.perf_counter() - start), flush=True)
    return found


def report(entry: Entry, found: Decision, seconds: float) -> str:
    """What was tried for a shape, in lines."""
    lines = [f"triton_dist tuned {entry.shape} on {entry.place.world} x {entry.place.device} in {seconds:.1f} s: {found.choice}"]
    lines += [f"  {ms:10.4f} ms  {choice}" for choice, ms in sorted(entry.ms.items(), key=lambda item: item[1])]
    lines += [f"  {'failed':>13s}  {choice}: {why}" for choice, why in entry.failed.items()]
    return "\n".join(lines)

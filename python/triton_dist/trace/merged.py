# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The spans of all ranks on one clock, and what they say of overlap."""
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Iterable, Sequence

from triton_dist.runtime.spans import Span
from triton_dist.trace.clocks import Offset, on_clock_of_rank_0


@dataclass(frozen=True)
class Trace:
    """title: what was called. unit: "ns" or "turns". error: how far clocks may still be apart, in that unit.
    inferred: whether pushes were not seen: they are taken to last until a program first finds a rank's data."""
    title: str
    unit: str
    spans: tuple[Span, ...]
    error: float = 0.0
    inferred: bool = False

    @property
    def ranks(self) -> list[int]:
        return sorted({span.rank for span in self.spans})

    @property
    def end(self) -> int:
        return max(span.stop for span in self.spans)


def merged(title: str, unit: str, by_rank: Sequence[Sequence[Span]], before: Sequence[Offset] | None = None,
           after: Sequence[Offset] | None = None, local: bool = False) -> Trace:
    """One trace, from 0 on, of the spans of each rank by its own clock. Without offsets all have one clock.

    local: nothing is sent in the call, so that no push is inferred.
    """
    spans, error = [span for some in by_rank for span in some], 0.0
    if before is not None and after is not None:
        spans = [replace(span, start=round(on_clock_of_rank_0(span.start, before[span.rank], after[span.rank])),
                         stop=round(on_clock_of_rank_0(span.stop, before[span.rank], after[span.rank]))) for span in spans]
        error = max(max(one.error, other.error) for one, other in zip(before, after))
    first = min((span.start for span in spans), default=0)
    spans = [replace(span, start=span.start - first, stop=span.stop - first) for span in spans]
    missing = not local and not any(span.event == "push" for span in spans)
    if missing:
        spans += _inferred(spans)
    return Trace(title, unit, tuple(sorted(spans, key=lambda span: (span.rank, span.start, span.program))), error, missing)


def _inferred(spans: Iterable[Span]) -> list[Span]:
    """A push for each rank's data that programs waited for: on its way until the first of them went on."""
    arrivals: dict = {}
    for span in spans:
        if span.event == "wait" and span.number != span.rank:
            key = span.rank, span.number
            arrivals[key] = min(arrivals.get(key, span.stop), span.stop)
    return [Span(rank, "inferred", -1, "push", lap, number, 0, stop)
            for lap, ((rank, number), stop) in enumerate(sorted(arrivals.items()))]


def union(intervals: Iterable[tuple]) -> list[tuple]:
    """Intervals that overlap joined, in order."""
    found: list = []
    for start, stop in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def common(one: Sequence[tuple], other: Sequence[tuple]) -> int:
    """How long both of two unions last."""
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)


@dataclass(frozen=True)
class Overlap:
    """Of a rank: how long data was on its way, how much of that while a program multiplied, and how long one waited for data
    while none multiplied."""
    communication: int
    covered: int
    exposed: int


def overlap(trace: Trace, rank: int) -> Overlap:
    """What a rank's spans say of overlap."""
    by_event = defaultdict(list)
    for span in trace.spans:
        if span.rank == rank:
            by_event[span.event].append((span.start, span.stop))
    pushes, products, waits = (union(by_event[event]) for event in ("push", "mma", "wait"))
    total = sum(stop - start for start, stop in pushes)
    waited = sum(stop - start for start, stop in waits)
    return Overlap(total, common(pushes, products), waited - common(waits, products))


def summary(trace: Trace) -> str:
    """A line for the call, and one for each rank."""
    lines = [f"{trace.title}: {trace.end} {trace.unit}, {len(trace.spans)} spans"
             + (f", clocks of ranks apart by at most {trace.error:.0f} ns" if trace.error else "")]
    for rank in trace.ranks:
        found = overlap(trace, rank)
        share = f"{found.covered / found.communication:.0%}" if found.communication else "none"
        lines.append(f"  rank {rank}: communication {found.communication} {trace.unit}"
                     f"{' (inferred from arrivals)' if trace.inferred else ''}, {share} of it under compute; "
                     f"programs waited {found.exposed} {trace.unit} while none multiplied")
    return "\n".join(lines)

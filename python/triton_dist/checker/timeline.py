# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A run as a timeline: for Perfetto (ui.perfetto.dev), or as a picture. Time counts accesses, one a microsecond."""
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FIRST_STREAM, _FIRST_PROGRAM = 1, 100       # thread ids of a rank's tracks
_COLOURS = {"wait": "#d9a441", "launch": "#4878a8", "copy": "#6aa56a", "program": "#7f9fc2"}


@dataclass
class Span:
    """Something that takes time on a track. kind: 'launch', 'copy', 'program' or 'wait'."""
    rank: int
    track: int
    name: str
    kind: str
    start: int
    end: int = -1
    args: dict = field(default_factory=dict)


class Timeline:
    """Spans, and flows from a signal's store to who acquired it, or from a put to the rank that got it."""

    def __init__(self) -> None:
        self.now = 0
        self.spans: list = []
        self.flows: list = []                # (rank, track, time, rank, track, time, name)
        self._tracks: dict = {}              # (rank, name) -> track
        self._open: dict = {}                # key -> Span

    def track(self, rank: int, name: str) -> int:
        """The track of a stream, or of a program's place on its device."""
        first = _FIRST_PROGRAM if name.startswith("program") else _FIRST_STREAM
        if (rank, name) not in self._tracks:
            used = [t for (r, _), t in self._tracks.items() if r == rank and (t >= _FIRST_PROGRAM) == (first == _FIRST_PROGRAM)]
            self._tracks[rank, name] = max(used, default=first - 1) + 1
        return self._tracks[rank, name]

    def begin(self, key: Any, rank: int, track: str, name: str, kind: str) -> None:
        self._open[key] = span = Span(rank, self.track(rank, track), name, kind, self.now)
        self.spans.append(span)

    def end(self, key: Any) -> None:
        span = self._open.pop(key, None)
        if span is not None:
            span.end = self.now

    def flow(self, source: tuple, target: tuple, name: str) -> None:
        """source, target: (rank, track name, time)."""
        ends = [(rank, self.track(rank, track), time) for rank, track, time in (source, target)]
        self.flows.append((*ends[0], *ends[1], name))

    def closed(self) -> list:
        """All spans; those of a run that was cut off end with it."""
        for span in self.spans:
            if span.end < 0:
                span.end = self.now
        return self.spans

    def events(self) -> list:
        """Trace events, as Perfetto and chrome://tracing read them."""
        found: list = []
        for rank in sorted({rank for rank, _ in self._tracks}):
            found.append(dict(ph="M", pid=rank, name="process_name", args=dict(name=f"rank {rank}")))
        for (rank, name), track in self._tracks.items():
            found.append(dict(ph="M", pid=rank, tid=track, name="thread_name", args=dict(name=name)))
        for span in self.closed():
            found.append(dict(ph="X", pid=span.rank, tid=span.track, ts=span.start, dur=max(1, span.end - span.start),
                              name=span.name, cat=span.kind, args=span.args))
        for number, (rank, track, time, to, place, later, name) in enumerate(self.flows):
            found.append(dict(ph="s", pid=rank, tid=track, ts=time, id=number, name=name, cat="signal"))
            found.append(dict(ph="f", bp="e", pid=to, tid=place, ts=later, id=number, name=name, cat="signal"))
        return found

    def write(self, path: Path) -> None:
        """The trace as JSON."""
        path.write_text(json.dumps(dict(traceEvents=self.events(), displayTimeUnit="ns")))

    def plot(self, path: Path) -> None:
        """A Gantt picture: a row for each track, waits on top of what waits."""
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
        rows = {place: i for i, place in enumerate(sorted((rank, track, name) for (rank, name), track in self._tracks.items()))}
        where = {(rank, track): i for (rank, track, _), i in rows.items()}
        figure, axes = pyplot.subplots(figsize=(12, 1 + 0.25 * max(1, len(rows))))
        for span in sorted(self.closed(), key=lambda span: span.kind == "wait"):
            axes.barh(where[span.rank, span.track], max(1, span.end - span.start), left=span.start,
                      height=0.4 if span.kind == "wait" else 0.8, color=_COLOURS[span.kind], edgecolor="white", linewidth=0.3)
        for rank, track, time, to, place, later, _ in self.flows:
            axes.plot([time, later], [where[rank, track], where[to, place]], color="#aa3333", linewidth=0.4)
        axes.set_yticks(range(len(rows)), [f"rank {rank} {name}" for rank, _, name in rows], fontsize=7)
        axes.invert_yaxis()
        axes.set_xlabel("accesses")
        handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in _COLOURS.values()]
        axes.legend(handles, _COLOURS, loc="upper right", fontsize=7)
        figure.tight_layout()
        figure.savefig(path, dpi=150)
        pyplot.close(figure)

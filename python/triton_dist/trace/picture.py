# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A trace as a picture (SVG): how many programs of each rank wait, load, multiply and store, below what is on its way."""
from html import escape
from pathlib import Path

from triton_dist.runtime.spans import Span
from triton_dist.trace.merged import Trace, overlap, union

_COLOURS = {"push": "#d98324", "wait": "#c0392b", "load": "#7f8c8d", "mma": "#2e86c1", "add": "#8e6bbf", "store": "#27ae60",
            "signal": "#16a085", "tile": "#bdc3c7"}
_WORDS = {"push": "communication", "wait": "waits", "load": "loads", "mma": "multiplies", "add": "epilogue", "store": "stores",
          "signal": "signals", "tile": "tile"}
_LEFT, _WIDTH, _ROW, _GAP, _HEAD = 160, 900, 34, 18, 52
_STEPS = 450


def draw(trace: Trace) -> str:
    """The picture's text."""
    parts, y, scale = [], _HEAD, _WIDTH / max(1, trace.end)
    for rank in trace.ranks:
        mine = [span for span in trace.spans if span.rank == rank]
        found = overlap(trace, rank)
        covered = f"{found.covered / found.communication:.0%} of communication under compute" if found.communication else ""
        parts.append(_text(8, y + 4, f"rank {rank}", 14, "bold") + _text(_LEFT, y + 4, covered, 12))
        y += 12
        top = y
        for event in [event for event in _COLOURS if any(span.event == event for span in mine)]:
            spans = [span for span in mine if span.event == event]
            words = _WORDS[event] + (" (inferred)" if event == "push" and trace.inferred else "")
            parts.append(_text(8, y + _ROW - 12, words, 12))
            parts.append(f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH}" height="{_ROW - 6}" fill="#f4f6f7"/>')
            parts.append(_bars(spans, y, scale, event) if event == "push" else _area(spans, mine, y, scale, event, trace.end))
            y += _ROW
        for stop in sorted({span.stop for span in _arrivals(mine, rank)}):
            x = _LEFT + stop * scale
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{y - 6}" stroke="#2c3e50" stroke-dasharray="3 3"/>')
        y += _GAP
    unit = "turns of the emulator (not time on a GPU)" if trace.unit == "turns" else "ns"
    parts.append(_text(_LEFT, y + 2, "0", 12))
    parts.append(_text(_LEFT + _WIDTH, y + 2, f"{trace.end} {unit}", 12, anchor="end"))
    foot = "height: share of the rank's programs that do it; dashed: another rank's data is first found"
    parts.append(_text(_LEFT, y + 20, foot, 11))
    head = _text(8, 24, trace.title, 16, "bold")
    size = f'width="{_LEFT + _WIDTH + 20}" height="{y + 34}" viewBox="0 0 {_LEFT + _WIDTH + 20} {y + 34}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
            f'<rect width="100%" height="100%" fill="white"/>{head}{"".join(parts)}</svg>\n')


def write(trace: Trace, path: Path) -> None:
    """Writes the picture to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(trace))


def _arrivals(mine: list[Span], rank: int) -> list[Span]:
    """The first wait for each other rank's data."""
    first: dict = {}
    for span in mine:
        if span.event == "wait" and span.number != rank and (
                span.number not in first or span.stop < first[span.number].stop):
            first[span.number] = span
    return list(first.values())


def _bars(spans: list[Span], y: int, scale: float, event: str) -> str:
    return "".join(f'<rect x="{_LEFT + start * scale:.1f}" y="{y}" width="{max(1.0, (stop - start) * scale):.1f}" '
                   f'height="{_ROW - 6}" fill="{_COLOURS[event]}" opacity="0.85"/>'
                   for start, stop in union((span.start, span.stop) for span in spans))


def _area(spans: list[Span], mine: list[Span], y: int, scale: float, event: str, end: int) -> str:
    """How many programs are in a span of this kind, over time."""
    programs = max(1, len({span.program for span in mine if span.program >= 0}))
    step, height = max(1, end / _STEPS), _ROW - 6
    points = [f"{_LEFT},{y + height}"]
    for i in range(_STEPS + 1):
        start, stop = i * step, (i + 1) * step
        if start > end:
            break
        busy = sum(max(0.0, min(span.stop, stop) - max(span.start, start)) for span in spans) / (step * programs)
        points.append(f"{_LEFT + start * scale:.1f},{y + height * (1 - min(1.0, busy)):.1f}")
    points.append(f"{_LEFT + min(end, _STEPS * step) * scale:.1f},{y + height}")
    return f'<polygon points="{" ".join(points)}" fill="{_COLOURS[event]}"/>'


def _text(x: float, y: float, words: str, size: int, weight: str = "normal", anchor: str = "start") -> str:
    return (f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="#2c3e50">'
            f"{escape(words)}</text>")

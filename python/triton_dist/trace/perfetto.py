# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A trace as the JSON that ui.perfetto.dev opens: a process for each rank, a row for each program and role."""
import gzip
import json
from pathlib import Path

from triton_dist.language.trace_abi import EVENTS
from triton_dist.runtime.spans import Span
from triton_dist.trace.merged import Trace

_NUMBERS = {"wait": "for rank", "push": "to rank", "load": "of rank", "mma": "of rank", "add": "of rank", "store": "of rank"}
_OF_EXPERTS = ("grouped_gemm_kernel", "grouped_gemm_ws_kernel", "grouped_weight_kernel")   # kernels whose numbers are experts


def events(trace: Trace) -> list[dict]:
    """The trace's events. A turn of the emulator is shown as a microsecond."""
    scale = 1e-3 if trace.unit == "ns" else 1.0
    found: list = [dict(ph="M", pid=rank, name="process_name", args=dict(name=f"rank {rank}")) for rank in trace.ranks]
    rows: dict = {}                     # (rank, program, event) -> [number of the row, when its last span ends], for each row
    last = 0
    for span in trace.spans:
        row = next((row for row in rows.setdefault((span.rank, span.program, span.event), []) if row[1] <= span.start), None)
        if row is None:                 # kernels that overlap, or copies: a row shows no spans that overlap
            last += 1
            row = [last, 0]
            rows[span.rank, span.program, span.event].append(row)
        row[1] = span.stop
        found.append(dict(ph="X", pid=span.rank, tid=row[0], name=_name(span),
                          cat=span.kernel, ts=round(span.start * scale, 3), dur=round((span.stop - span.start) * scale, 3),
                          args=dict(kernel=span.kernel, program=span.program, lap=span.lap)))
    for (rank, program, event), row in [(key, row) for key, numbered in rows.items() for row, _ in numbered]:
        name = f"program {program:3} {event}" if program >= 0 else "copies"
        order = (program + 1) * len(EVENTS) + EVENTS.index(event)
        found += [dict(ph="M", pid=rank, tid=row, name="thread_name", args=dict(name=name)),
                  dict(ph="M", pid=rank, tid=row, name="thread_sort_index", args=dict(sort_index=order))]
    return found


def _name(span: Span) -> str:
    words = "of expert" if span.kernel in _OF_EXPERTS else _NUMBERS.get(span.event, "#")
    return f"{span.event} {words} {'all' if span.number < 0 else span.number}"


def write(trace: Trace, path: Path) -> None:
    """Writes `path`, compressed where its name ends with .gz."""
    text = json.dumps({"traceEvents": events(trace), "displayTimeUnit": "ns", "otherData": {"title": trace.title,
                                                                                           "unit": trace.unit}})
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text)

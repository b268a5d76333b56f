# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The pages of performance: all from benchmarks/results. Here is docs/performance_rows.md, with every row, pictures and notes.

What is in the result files is written here; what was predicted and learned is in benchmarks/results/notes_<op>.md, by hand,
and goes into the page as it is.
"""
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from tools.perf import bars, peers_plot as collective_plot, plot, speedup, summary
from tools.perf.table import markdown, narrow
from triton_dist.bench import dispatch_rows, results, table
from triton_dist.bench.collective import rows as collective_rows
from triton_dist.bench.collective.sizes import BESIDE_PEERS, COMMANDS
from triton_dist.bench.shapes import OPS

_HEAD = """# All rows

<!-- Written by `python -m tools.perf docs` from benchmarks/results. Change those files, not this one. -->

Times are in milliseconds per call: medians over interleaved rounds, of the slowest rank, on random inputs.
`bench/measure.py` holds the method. M, N and K are global. *matmul* and *collective* are the times of each alone, *in
sequence* is the time of one after the other (cuBLAS and NCCL on NVIDIA GPUs), and *torch* is its fused
symmetric-memory op. T\\* = max(matmul, collective) is the limit of overlapping the two, and T\\*/T says how close a
call comes to it. "vs" is the other's time divided by ours. Brackets hold 95 % intervals. Ratios are formed inside a
round. Compare ratios, not times of different rows, because clocks drift. *host us* is the time that the host needs to
issue a call.
"""
_VERDICTS = """# Bars

<!-- Written by `python -m tools.perf docs` from benchmarks/results. Change those files, not this one. -->

This page is for developers of triton_dist. It lists the goals that the project has set itself.

- *met*: the figure reaches the bar. *unclear*: the figure does not reach it, but a part of its interval does.
  *SHORT*: no part of its interval reaches it. *not measured*: some of its shapes have no result. *at*: the worst
  shape.
- *us*: microseconds per call. *busbw*: GB/s. *vs*: the other's time divided by ours. *seq*: in sequence. *best_peer*:
  the fastest method that is not ours. *best_outside*: the fastest kernel of another project (sglang's and FlashInfer's).
- Shapes are the models' MLPs: small has 1 to 512 rows, medium 2048 and 4096, large 8192 and 16384, serving 1 to 2048.
  Sizes are timed in CUDA graphs, and shapes in eager calls. For *dispatch* the host's time is measured.

`tools/perf/bars.py` says how means and their intervals are formed. `python -m tools.perf bars` prints this table.
"""
_HOST_TIME = """## Host time

This is the host time of an eager call that repeats an earlier one, in microseconds: medians over rounds, of the
slowest rank, with their 95 % intervals. *floor* is a bare launch of the same kernel with the same arguments. For
ag_gemm and gemm_rs, unfused, the plan does nothing here, so that only the time until the plan is measured.
`bench/dispatch.py` holds the method.
"""
_LATE = """Stragglers: before every call one rank is late, or each rank is late by a random time. *cost* is the time with
stragglers minus the time without. *beyond* is the part of it that exceeds the mean delay of the rank with the largest one.
"""
_COLLECTIVES = """## Collectives

Sizes are those of the larger of input and output. Times are in microseconds per call: medians over rounds, of the
slowest rank. Bandwidths are in GB/s, defined as in nccl-tests. *method* is the one that took this time. *vs best* is
the best peer's time divided by ours, formed inside a round.
"""
_GEMM_AR = """## gemm_ar

Times are in microseconds per call: medians over rounds, of the slowest rank. Calls use several weights in turn, which
together are larger than L2. M, N and K are global. *gemm* is the matmul (cuBLAS) alone, peers are the matmul followed
by their all-reduce, and *unfused* is the matmul followed by `all_reduce`. *vs best* is the best peer's time divided
by ours, formed inside a round.
"""
_NORM = """## all_reduce_rmsnorm

Times are in microseconds per call: medians over rounds, of the slowest rank. x is M x N. Where K is given, each call
begins with a product that sums over K on each rank, as in a decoder. *gemm* is the product alone. *parts* is our
all_reduce, followed by torch's sum and norm. The other peers do the same with their all-reduce. *unfused* is the
method of that name.
"""


@dataclass
class Section:
    """What the page has a table and a picture of: rows of one op and kind of host, and of a collective that are alike."""
    title: str
    caption: str
    picture: str                            # its file's name
    plot: ModuleType                        # draws it
    rows: list
    cells: list                             # of its table
    host: dict                              # host.json
    late: list = field(default_factory=list)        # rows with stragglers


def write(folder: Path, out: Path) -> list[Path]:
    """Writes the pages, and their pictures to a folder of the first one's name; returns their paths. Unchanged results give the
    same pages.

    FileNotFoundError where `folder` holds no results.
    """
    written, pictures = pages(folder, out), out.parent / out.stem
    drawn = [speedup.picture(folder, name, pictures / summary.file(name)) for name in speedup.pictures(folder)]
    drawn += [section.plot.picture(section.rows, pictures / section.picture)
              for op in (*OPS, *BESIDE_PEERS) for section in sections(folder, op)]
    for path, content in written.items():
        path.write_text(content)
    return [*written, *drawn]


def pages(folder: Path, out: Path) -> dict[Path, str]:
    """{where: text}: the summary at `out`, and beside it all rows, and the bars."""
    verdicts = "\n".join([_VERDICTS, markdown(bars.cells(bars.judge(folder)))])
    return {out: summary.page(folder, out), out.with_name(f"{out.stem}_rows.md"): page(folder, out),
            out.with_name("bars.md"): verdicts}


def page(folder: Path, out: Path) -> str:
    """The page of all rows. `out` is where the summary lies: links to pictures start there."""
    parts = [_HEAD]
    for op in OPS:
        parts += [f"## {op}\n", *_op(folder, out, op)]
    collectives = [part for op in COMMANDS for part in _op(folder, out, op)]
    parts += [_COLLECTIVES, *collectives] if collectives else []
    gemm_ar = _op(folder, out, "gemm_ar")
    parts += [_GEMM_AR, *gemm_ar] if gemm_ar else []
    norm = _op(folder, out, "all_reduce_rmsnorm")
    parts += [_NORM, *norm] if norm else []
    return "\n".join(parts + _host_time(folder))


def _host_time(folder: Path) -> list[str]:
    """The section on it; nothing where it was not measured on GPUs."""
    newest = sorted(results.newest(folder, dispatch_rows.COMMAND).items(), reverse=True)
    found = [(kind, rows, host) for kind, (rows, host) in newest if host["comparable"]]
    return ([_HOST_TIME] if found else []) + [part for kind, rows, host in found for part in (
        f"### Host time on {kind}\n", _host(host), narrow(_dated(dispatch_rows.cells(rows), rows)))]


def _dated(lines: list, rows: list) -> list[list[str]]:
    """Lines of cells, a header and one for each row, with when and by what the rows were measured."""
    header, *body = lines
    return [[*header, "rounds", "date", "commit"],
            *[[*line, str(row["rounds"]), row["date"], str(row["commit"])] for line, row in zip(body, rows)]]


def sections(folder: Path, op: str) -> list[Section]:
    """The sections of an op, none where it was not measured. Those of GPUs: times of emulated ranks say nothing."""
    make = _beside_peers if op in BESIDE_PEERS else _by_shape
    return [section for kind, (rows, host) in sorted(results.newest(folder, op).items(), reverse=True) if host["comparable"]
            for section in make(op, kind, rows, host)]


def _by_shape(op: str, kind: str, rows: list, host: dict) -> list[Section]:
    title, plain = f"{op} on {kind}", results.headline(rows)
    late = [row for row in rows if results.mode(row) != results.PLAIN]
    return [Section(title, f"{title}: T*/T over M for each model", f"{kind}-{op}.png", plot, plain, _cells(plain), host, late)
            ] if plain else []


def _beside_peers(op: str, kind: str, rows: list, host: dict) -> list[Section]:
    found = []
    for alike in collective_plot.alike(results.headline(rows)):
        dtype, graph = alike[0]["dtype"], alike[0]["graph"]
        title = f"{op} on {kind}, {dtype}, calls {collective_plot.how(alike[0])}"
        cells = _dated(collective_rows.cells(alike), alike)
        found.append(Section(title, f"{title}: time over {'size' if op in COMMANDS else 'M'}",
                             f"{kind}-{op}-{dtype}-{'graph' if graph else 'eager'}.png", collective_plot, alike, cells, host))
    return found


def _op(folder: Path, out: Path, op: str) -> list[str]:
    parts = []
    for section in sections(folder, op):
        parts += [f"### {section.title}\n", _host(section.host), f"![{section.caption}]({out.stem}/{section.picture})\n",
                  narrow(section.cells)]
        parts += [_LATE, narrow(table.late_cells(section.late))] if section.late else []
    notes = Path(folder) / f"notes_{op}.md"
    return parts + ([f"### {op}: predicted, measured, learned\n", notes.read_text()] if notes.exists() else [])


def _host(host: dict) -> str:
    software = ", ".join(f"{name} {host[key]}" for name, key in (
        ("torch", "torch"), ("Triton", "triton"), ("CUDA", "cuda"), ("HIP", "hip"), ("NCCL", "nccl"), ("driver", "driver"))
        if host[key])
    settings = "".join(f", {name}={value}" for name, value in host["environment"].items())
    return (f"{host['device_count']} x {host['device']}, {host['memory_gib']} GiB, {host['multiprocessors']} multiprocessors, "
            f"links {host['link'] or 'unknown'}; {software}{settings}. Last run {host['date']}.\n")


def _cells(rows: list) -> list[list[str]]:
    ms, peers = table.milliseconds, list(dict.fromkeys(peer for row in rows for peer in row["ms_peers"]))
    columns = {
        "model": lambda row: row["shape"].partition("@")[0] if "@" in row["shape"] else "-",
        **{name.upper(): lambda row, name=name: str(row[name]) for name in ("m", "n", "k")},
        "dtype": lambda row: row["dtype"],
        "matmul": lambda row: ms(row["ms_gemm"]),
        "collective": lambda row: ms(row["ms_comm"]),
        "in sequence": lambda row: ms(row["ms_seq"]),
        **{peer: lambda row, peer=peer: ms(row["ms_peers"].get(peer)) for peer in peers},
        "triton_dist": lambda row: f"**{ms(row['ms'])}**",
        "method": lambda row: row["method"],
        "TFLOP/s a GPU": lambda row: f"{2 * row['m'] * row['n'] * row['k'] / row['world'] / row['ms'] / 1e9:.0f}",
        "T\\*": lambda row: ms(row["ms_limit"]),
        "T\\*/T": lambda row: _figure(row["efficiency"], row["ci95"]),
        "vs in sequence": lambda row: _ratio(row, "seq"),
        **{f"vs {peer}": lambda row, peer=peer: _ratio(row, peer) for peer in peers},
        "host us": lambda row: f"{row['host_us'][results.asked(row)]:.0f}",
        "graph": lambda row: "yes" if row["graph"] else "no",
        "rounds": lambda row: str(row["rounds"]),
        "date": lambda row: row["date"],
        "commit": lambda row: str(row["commit"]),
    }
    rows = sorted(rows, key=lambda row: (-row["world"], row["dtype"], row["n"] * row["k"], row["m"]))
    return [list(columns), *[[show(row) for show in columns.values()] for row in rows]]


def _ratio(row: dict, rival: str) -> str:
    found = row["ratios"].get(rival)
    return "-" if found is None else _figure(found["ratio"], found["ci95"])


def _figure(value: float, interval: list) -> str:
    return f"{value:.3f} ({interval[0]:.3f}-{interval[1]:.3f})"

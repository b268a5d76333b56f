# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""docs/performance.md: pictures of speed-ups, then narrow tables. All rows are on the page of docs.py."""
from pathlib import Path

from tools.perf import models, speedup
from tools.perf.table import markdown
from triton_dist.bench.collective.rows import closest
from triton_dist.bench.collective.sizes import text

_HEAD = """# Performance

<!-- Written by `python -m tools.perf docs` from benchmarks/results. Change those files, not this one. -->

Each picture shows the speed-up of an op over an alternative: the other's time divided by ours. The dashed line is a
tie. Inputs are random and of type bf16. Figures are medians over interleaved rounds, of the
slowest rank. M is the global number of rows. The machines have NVIDIA GPUs joined by NVLink without multicast, so
NCCL runs without NVLS. Nothing was measured on AMD GPUs. [All rows](performance_rows.md) lists every measurement with
its interval, the versions, and what was learned.
"""
_WORDS = {
    "ag_gemm": ("AG-GEMM", """
A column-parallel linear layer: `ag_gemm` compared with an NCCL all-gather and a cuBLAS matmul in sequence, and with
torch's fused symmetric-memory op. A bar is the geometric mean over the MLPs of several models, and the thin line is
its range."""),
    "gemm_rs": ("GEMM-RS", """
A row-parallel linear layer: `gemm_rs` compared with a cuBLAS matmul and an NCCL reduce-scatter in sequence, and with
torch's fused symmetric-memory op."""),
    "gemm_ar": ("GEMM-AR", """
Decoding: `gemm_ar` compared with a cuBLAS matmul and the fastest other all-reduce, in CUDA graphs."""),
    "collectives": ("Collectives", """
Each collective is compared with NCCL, in CUDA graphs, by the size of the larger of input and output."""),
}
_LIMIT = """Times are in milliseconds per call, for the shapes with 2048 rows and more. T\\* is the longer of matmul and
collective, each alone: the limit of overlapping them. T\\*/T says how close a call comes to it. It is above 1 if our GEMM is
faster than cuBLAS.
"""
_ROWS = """Times are in microseconds per call. The best other is a matmul, then an all-reduce of NCCL, torch, sglang or
FlashInfer.
"""
_SIZES = ("8K", "64K", "512K", "4M", "16M", "64M")
_LARGE = 2048


def page(folder: Path, out: Path) -> str:
    """The page's text. `out` is where it is to lie: links to pictures start there."""
    parts = [_HEAD]
    for name in speedup.pictures(folder):
        title, words = _WORDS[name]
        parts += [f"## {title}", words + "\n", f"![{title}: the other's time over ours]({out.stem}/{file(name)})\n"]
        parts += _sizes(folder) if name == "collectives" else _shapes(folder, name)
    parts += models.section(folder)
    notes = Path(folder) / "notes.md"
    return "\n".join(parts + ([notes.read_text()] if notes.exists() else []))


def file(name: str) -> str:
    """The name of a picture's file."""
    return f"speedup-{name}.png"


def _shapes(folder: Path, op: str) -> list[str]:
    found = [_LIMIT if op != "gemm_ar" else _ROWS]
    for kind, rows in speedup.measured(folder, op).items():
        lines = [_shape(row) for row in sorted(rows, key=lambda row: (row["n"] * row["k"], row["m"]))
                 if op == "gemm_ar" or row["m"] >= _LARGE]
        if lines:
            heads = (["model", "M", "best other", "triton_dist", "times as fast"] if op == "gemm_ar" else
                     ["model", "M", "in sequence", "torch", "triton_dist", "times as fast", "T\\*/T"])
            found += [f"**{kind}**\n", markdown([heads, *lines])]
    return found if len(found) > 1 else []


def _shape(row: dict) -> list[str]:
    model = row["shape"].partition("@")[0] if "@" in row["shape"] else f"{row['n']} x {row['k']}"
    if "us" in row:
        others = [us for us in row["us_peers"].values() if us is not None]
        return [model, str(row["m"]), f"{min(others):.1f}", f"**{row['us']:.1f}**", _times(closest(row))]
    torch = row["ms_peers"].get("torch")
    return [model, str(row["m"]), f"{row['ms_seq']:.3f}", "-" if torch is None else f"{torch:.3f}", f"**{row['ms']:.3f}**",
            _ratio(row, "seq"), f"{row['efficiency']:.2f}"]


def _ratio(row: dict, rival: str) -> str:
    return _times(row["ratios"].get(rival))


def _times(found: dict | None) -> str:
    return "-" if found is None else f"{found['ratio']:.2f}"


def _sizes(folder: Path) -> list[str]:
    lines = []
    for op in speedup.COLLECTIVES:
        for kind, rows in speedup.measured(folder, op).items():
            by_size = {text(row["bytes"]): row for row in rows if row["graph"] and row["us_peers"].get("nccl")}
            cells = [f"{by_size[size]['us']:.1f} ({by_size[size]['us_peers']['nccl']:.1f})" if size in by_size else "-"
                     for size in _SIZES]
            lines.append([op, kind.partition("-")[0], *cells])
    lines.sort(key=lambda line: line[1])
    return ["Microseconds a call, NCCL's in brackets.\n", markdown([["op", "on", *_SIZES], *lines])]

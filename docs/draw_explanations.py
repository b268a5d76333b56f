# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Draws the pictures of the pages that explain: python docs/draw_explanations.py [FOLDER]. The tests compare them."""
import sys
from pathlib import Path

from draw_design import ENGINE, HEAP, INK, KERNEL, arrow, box, plt

from triton_dist.backends.nvidia.backend import H100
from triton_dist.ops.tuning.model import ag_gemm_estimates, gemm_ar_estimates, gemm_rs_estimates
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.tiles.order import order
from triton_dist.tiles.picture import draw as draw_tiles

RANKS, ROWS, FEW_ROWS = 4, (256, 512, 1024, 2048, 4096, 8192, 16384), (1, 4, 16, 64, 256, 512)


def _save(figure, path: Path) -> None:
    figure.patch.set_facecolor("white")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def memory_model(path: Path) -> None:
    """Who orders what between a store on one rank and a load on another."""
    figure, axes = plt.subplots(figsize=(11, 5.4))
    axes.set_xlim(0, 12)
    axes.set_ylim(-0.1, 6.9)
    axes.axis("off")
    for left, name in ((0.2, "rank r, a program of several warps"), (7.2, "rank p, a program of several warps")):
        axes.text(left + 2.3, 6.6, name, ha="center", weight="bold", color=INK)
    sends = ("tl.store(dl.symm_at(data, p), ...)\nevery thread stores its part", "CTA barrier\nall warps' stores come before what follows",
             "release at scope sys\nthey come before the flag, for every device", "store of the flag")
    takes = ("dl.wait: every warp polls", "acquire at scope sys\nlater loads see what the release published",
             "dl.consume_token\nno load moves before the wait", "tl.load(data)")
    for i, text in enumerate(sends):
        box(axes, 0.2, 5.3 - 1.5 * i, 4.6, 0.95, text, KERNEL if i in (0, 3) else ENGINE, fontsize=8.5)
    for i, text in enumerate(takes):
        box(axes, 7.2, 5.3 - 1.5 * i, 4.6, 0.95, text, KERNEL if i in (0, 3) else ENGINE, fontsize=8.5)
    for i in range(3):
        arrow(axes, (2.5, 5.25 - 1.5 * i), (2.5, 4.8 - 1.5 * i))
        arrow(axes, (9.5, 5.25 - 1.5 * i), (9.5, 4.8 - 1.5 * i))
    box(axes, 5.3, 1.1, 1.4, 0.7, "flag", HEAP)
    box(axes, 5.3, 4.4, 1.4, 0.7, "data", HEAP)
    arrow(axes, (4.85, 1.2), (5.25, 1.35))
    arrow(axes, (6.72, 1.6), (7.15, 5.5))
    arrow(axes, (4.85, 5.6), (5.4, 5.15))
    arrow(axes, (7.15, 1.2), (6.6, 4.35))
    axes.text(6, 0.3, "dl.notify is the last three\non the left", ha="center", fontsize=8.5, color=INK)
    _save(figure, path)


def patterns(path: Path) -> None:
    """How much faster each pattern is than a matmul and a collective in sequence, by the model of H100."""
    config, names = GemmConfig(128, 256, 64, group_m=8, num_warps=8, num_stages=3), ("ag_gemm", "gemm_rs", "gemm_ar")
    n, k, size = 28672, 4096, 2
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.6))
    for axes, name in zip(panels, names):
        lines: dict = {}
        rows = FEW_ROWS if name == "gemm_ar" else ROWS
        for m in rows:
            if name == "ag_gemm":
                found = ag_gemm_estimates(H100, m // RANKS, n // RANKS, k, RANKS, size, config, True)
            elif name == "gemm_rs":
                found = gemm_rs_estimates(H100, m // RANKS, k, n // 2 // RANKS, RANKS, size, config, True)
            else:
                found = gemm_ar_estimates(H100, m, k, n // 2 // RANKS, RANKS, size)
            times = {estimate.method: estimate.ms for estimate in found}
            for method, ms in times.items():
                lines.setdefault(method, []).append(times["unfused"] / ms)
        for method, values in sorted(lines.items()):
            style = dict(color="#888888", linestyle="--") if method == "unfused" else dict(marker="o", markersize=3)
            axes.plot(rows, values, label="in sequence" if method == "unfused" else method, **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(rows, [str(m) for m in rows])
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("rows M", fontsize=9)
        axes.legend(fontsize=8, frameon=False)
    panels[0].set_ylabel("times as fast as in sequence", fontsize=9)
    figure.tight_layout()
    _save(figure, path)


def tiles(folder: Path) -> None:
    """As the command draws them: triton-dist tiles ... --out."""
    grouped = draw_tiles(order(8, 12, 4), 8, 12, 16, "gemm, 8 x 12 tiles, groups of 4 rows", 1)
    rotated = draw_tiles(order(2, 5, 2, "ag_gemm", 4), 2, 5, 8, "ag_gemm, 2 x 5 tiles a rank, groups of 2 rows", 4)
    (folder / "tiles_grouped.svg").write_text(grouped)
    (folder / "tiles_rotated.svg").write_text(rotated)


def main(folder: Path) -> None:
    memory_model(folder / "memory_model.svg")
    patterns(folder / "patterns.svg")
    tiles(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

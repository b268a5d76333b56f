# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Draws docs/design.svg, the picture in the README: python docs/draw_design.py [FILE]"""
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "triton_dist", "font.family": "sans-serif", "font.size": 9})
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch  # noqa: E402

INK, KERNEL, LAYER, HEAP, ENGINE = "#24292f", "#dbeafe", "#ede9fe", "#dcfce7", "#fef3c7"


def box(axes, x, y, width, height, text, colour, **style) -> None:
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.02,rounding_size=0.08", facecolor=colour,
                                  edgecolor=INK, linewidth=1))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=INK, **style)


def arrow(axes, start, end, text="", offset=(0.0, 0.0), bend=0.0, **style) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=INK, linewidth=1.2,
                                   connectionstyle=f"arc3,rad={bend}", **style))
    if text:
        axes.text((start[0] + end[0]) / 2 + offset[0], (start[1] + end[1]) / 2 + offset[1], text, ha="center", va="center",
                  color=INK, fontsize=9)


def main(path: Path) -> None:
    figure, axes = plt.subplots(figsize=(11.5, 6.2))
    axes.set_xlim(0, 12)
    axes.set_ylim(-0.1, 7.5)
    axes.axis("off")
    figure.patch.set_facecolor("white")
    for left, name in ((0.2, "r"), (6.4, "r + 1")):
        axes.text(left + 2.7, 7.25, f"rank {name}", ha="center", weight="bold", color=INK)
    # Two ranks: a kernel each, and their symmetric heaps.
    box(axes, 0.2, 5.9, 5.4, 1.0,
        "your kernel (@triton_dist.jit)\nstore to symm_at(buffer, r + 1)\nnotify(flag, r + 1, call)", KERNEL)
    box(axes, 6.4, 5.9, 5.4, 1.0, "the same kernel\ntoken = wait(flag, call)\nload(consume_token(buffer, token))", KERNEL)
    box(axes, 0.2, 4.2, 5.4, 0.8, "symmetric heap:  buffer   flag", HEAP)
    box(axes, 6.4, 4.2, 5.4, 0.8, "symmetric heap:  buffer   flag", HEAP)
    arrow(axes, (4.2, 5.85), (7.4, 5.05), "data, then a release", offset=(0.55, 0.28))
    arrow(axes, (9.6, 5.05), (9.6, 5.85), "acquire", offset=(0.55, 0))
    axes.text(6.0, 4.6, "same\noffset", ha="center", va="center", fontsize=9, color=INK)
    # What a kernel stands on.
    box(axes, 0.2, 2.7, 5.4, 0.9, "language (dl): wait, notify, symm_at, ...\none ABI row for each device function", LAYER)
    box(axes, 6.4, 2.7, 5.4, 0.9, "ops: ag_gemm, gemm_rs;  layers: AGGemm, GemmRS\nruntime: world, heap, workspaces, epochs", LAYER)
    for left, head, text in ((0.2, "NVIDIA", "stock Triton + device runtime (LLVM IR text)\nNVLink peer memory, Hopper core"),
                             (4.25, "AMD", "stock Triton + device runtime (LLVM IR text)\nXGMI peer memory; never run so far"),
                             (8.3, "CPU emulator", "a Python twin of every function, copies that\nland late, reports of hangs")):
        box(axes, left, 0.15, 3.5, 1.5, f"{head}\n\n{text}", ENGINE, fontsize=8)
        arrow(axes, (2.9 if left < 4 else left + 1.75 if left < 8 else 9.1, 2.65), (left + 1.75, 1.72))
    axes.text(6.0, 2.2, "one kernel source, three machines", ha="center", color=INK, weight="bold",
              bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("design.svg"))

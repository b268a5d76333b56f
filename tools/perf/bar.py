# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a bar is, and those of the ops that are measured by shape (by size: by_size.py; by call: by_call.py)."""
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from triton_dist.bench.shapes import parse
from triton_dist.bench.stats import Estimate

_AT_MOST = ("us",)                          # figures of which less is better


@dataclass(frozen=True)
class Bar(ABC):
    """`figure` over the problems of a set: their geometric mean, or each of them, is to reach `bound`.

    figure: "us" (at most the bound); or, at least the bound: "T*/T", "busbw", "vs best_peer" and the like, which is the
    other's time over ours.
    """
    op: str
    problems: str                           # as they are written behind `option`
    figure: str
    over: str                               # "geomean" or "each"
    bound: float
    worlds: tuple = (4, 2)                  # on which numbers of GPUs it holds

    plural: ClassVar[str]                   # what its problems are told apart by
    option: ClassVar[str]                   # of the command that measures them

    @abstractmethod
    def needed(self, world: int) -> dict:
        """{what `cell` gives for a problem: its name}."""

    @abstractmethod
    def cell(self, row: dict) -> tuple:
        """Which problem a row is of."""

    @abstractmethod
    def counts(self, row: dict) -> bool:
        """Whether the row was measured in the way, and beside the peers, that the bar speaks of."""

    def estimate(self, row: dict) -> Estimate:
        """The row's figure with its 95 % interval."""
        ratio = row["ratios"][self.figure.removeprefix("vs ")]
        return Estimate(ratio["ratio"], *ratio["ci95"])

    @property
    def at_most(self) -> bool:
        """Whether less is better."""
        return self.figure in _AT_MOST

    def margin(self, found: Estimate) -> Estimate:
        """A figure relative to the bound: at 1 and above it is reached."""
        value, *ends = (self.bound / v if self.at_most else v / self.bound for v in (found.value, found.low, found.high))
        return Estimate(value, min(ends), max(ends))


class OverShapes:
    """Of a bar: its problems are a set of shapes (shapes.py)."""

    plural = "shapes"

    def needed(self, world: int) -> dict:
        return {(s.m, s.n, s.k): s.name for s in parse(self.problems.split(), self.op, world, emulated=False)}

    def cell(self, row: dict) -> tuple:
        return row["m"], row["n"], row["k"]


@dataclass(frozen=True)
class ShapeBar(OverShapes, Bar):
    """A bar over a set of shapes, of eager calls. figure: "T*/T", "vs best_peer" or "vs seq"."""

    option = "--shapes"

    def counts(self, row: dict) -> bool:
        """"Best peer" means more than the unfused path: a fused peer must have been tried. "Seq" is a bar for "auto"."""
        fit = {"vs best_peer": bool(row["ms_peers"]), "vs seq": "auto" in row["ours"]}
        return not row["graph"] and fit.get(self.figure, True)

    def estimate(self, row: dict) -> Estimate:
        return Estimate(row["efficiency"], *row["ci95"]) if self.figure == "T*/T" else super().estimate(row)


BARS = (
    ShapeBar("ag_gemm", "large", "T*/T", "geomean", 1.00, worlds=(8, 4, 2)),
    ShapeBar("ag_gemm", "large", "T*/T", "each", 0.96),
    ShapeBar("ag_gemm", "large", "vs best_peer", "geomean", 1.02),
    ShapeBar("ag_gemm", "medium", "T*/T", "geomean", 0.94),
    ShapeBar("ag_gemm", "medium", "T*/T", "each", 0.90),
    ShapeBar("ag_gemm", "medium", "vs best_peer", "geomean", 1.05),
    ShapeBar("ag_gemm", "small", "vs seq", "each", 0.98),
    ShapeBar("ag_gemm", "8B@8192 70B@8192", "vs seq", "each", 1.30, worlds=(8,)),
    ShapeBar("gemm_rs", "large", "T*/T", "geomean", 0.98, worlds=(8, 4, 2)),
    ShapeBar("gemm_rs", "large", "T*/T", "each", 0.92),
    ShapeBar("gemm_rs", "large", "vs best_peer", "geomean", 1.02),
    ShapeBar("gemm_rs", "medium", "T*/T", "geomean", 0.90),
    ShapeBar("gemm_rs", "medium", "T*/T", "each", 0.82),
    ShapeBar("gemm_rs", "medium", "vs best_peer", "geomean", 1.02),
    ShapeBar("gemm_rs", "small", "vs seq", "each", 0.98),
    ShapeBar("gemm_rs", "8B@8192 70B@8192", "vs seq", "each", 1.30, worlds=(8,)),
)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The bars of the collectives and of gemm_ar."""
from dataclasses import dataclass

from tools.perf.bar import Bar, OverShapes
from triton_dist.bench.collective import sizes
from triton_dist.bench.stats import Estimate

_PEERS = {"vs best_peer": sizes.PEERS, "vs nccl": ("nccl",)}       # figure: which must have been tried


class PeerBar(Bar):
    """A bar of calls in a graph, beside peers."""

    def tried(self) -> tuple:
        """Which peers must have been timed."""
        return _PEERS.get(self.figure, ())

    def counts(self, row: dict) -> bool:
        """Of torch's ops some may not exist for a size; NCCL always does."""
        peers = self.tried()
        if self.figure == "vs best_outside":
            return row["graph"] and "best_outside" in row["ratios"]
        return row["graph"] and set(peers) <= set(row["us_peers"]) and (not peers or "nccl" in row["ratios"])


@dataclass(frozen=True)
class GemmArBar(OverShapes, PeerBar):
    """A bar over a set of shapes. figure: "vs best_peer", of which each is a matmul and an all-reduce."""

    option = "--graph --shapes"

    def tried(self) -> tuple:
        """Torch's one shot is at most 2 % faster than its two, for few rows, and then far behind ours."""
        return tuple(peer for peer in super().tried() if peer != "symm_one_shot")


@dataclass(frozen=True)
class SizeBar(PeerBar):
    """A bar over a range of sizes (sizes.py). figure: "us", "busbw", "vs best_peer", "vs best_outside" or "vs nccl"."""

    plural = "sizes"
    option = "--graph --sizes"

    def needed(self, world: int) -> dict:
        return {(nbytes,): sizes.text(nbytes) for nbytes in sizes.parse([self.problems], emulated=False)}

    def cell(self, row: dict) -> tuple:
        return (row["bytes"],)

    def estimate(self, row: dict) -> Estimate:
        if self.figure == "us":
            return Estimate(row["us"], *row["ci95"])
        if self.figure == "busbw":                      # its bytes over the time
            return Estimate(*(row["busbw"] * row["us"] / us for us in (row["us"], *reversed(row["ci95"]))))
        return super().estimate(row)


BARS = (
    SizeBar("all_reduce", "1K:8K", "us", "each", 2.6, worlds=(4,)),
    SizeBar("all_reduce", "1K:64K", "us", "each", 3.5, worlds=(4,)),
    SizeBar("all_reduce", "1K:64K", "us", "each", 3.0, worlds=(2,)),
    SizeBar("all_reduce", "1K:64K", "vs best_peer", "each", 2.0),
    SizeBar("all_reduce", "128K:1M", "vs best_peer", "each", 1.3),
    SizeBar("all_reduce", "2M:128M", "vs best_peer", "each", 1.0),
    SizeBar("all_reduce", "2M:128M", "vs best_peer", "geomean", 1.03),
    SizeBar("all_reduce", "8K:256K", "vs best_outside", "each", 1.05, worlds=(2,)),
    SizeBar("all_reduce", "512K:16M", "vs best_outside", "each", 1.02, worlds=(2,)),
    SizeBar("all_gather", "1K:256K", "vs nccl", "each", 2.0),
    SizeBar("all_gather", "512K:2M", "vs nccl", "each", 1.4),
    SizeBar("all_gather", "4M:128M", "vs nccl", "each", 1.05),
    SizeBar("reduce_scatter", "1K:256K", "vs nccl", "each", 2.0),
    SizeBar("reduce_scatter", "512K:2M", "vs nccl", "each", 1.4),
    SizeBar("reduce_scatter", "4M:128M", "vs nccl", "each", 1.05),
    SizeBar("all_to_all", "64K:256M", "vs nccl", "each", 1.0),
    SizeBar("all_to_all", "64M:256M", "busbw", "each", 340.0),
    GemmArBar("gemm_ar", "serving", "vs best_peer", "geomean", 1.3),
    GemmArBar("gemm_ar", "serving", "vs best_peer", "each", 1.0),
    GemmArBar("gemm_ar", "serving", "vs best_outside", "each", 1.0, worlds=(2,)),
)

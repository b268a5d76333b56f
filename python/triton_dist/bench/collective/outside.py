# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Peers that other projects have: all-reduces, and fused norms, which a Python file gives (--peer-path FILE).

The file has `PEERS`, a dict of names and classes such as this one:

    class Mine:
        def __init__(self, m, n, dtype):                   # on every rank, for all ranks of the world, on this rank's device
            self.x = torch.empty(m, n, dtype=dtype, device="cuda")     # what this rank adds is written here before a call
        def all_reduce(self):                              # -> the sum over ranks, [m, n]
            ...
        def all_reduce_rmsnorm(self, residual, weight, eps):    # -> (norm of sum + residual, sum + residual); may be left out
            ...
    PEERS = {"mine": Mine}

What it raises leaves the peer out of a row, and the row says why; its constructor may raise on some ranks only. For a size or
dtype that it does not serve it raises NotImplementedError; anything else makes the benchmark's exit status 1. Results are
compared with float64.
"""
import runpy
from pathlib import Path
from typing import Any

import torch

from triton_dist.bench.collective import norm_words, sizes

COMMANDS = ("all_reduce", "gemm_ar", norm_words.COMMAND)


def loaded(path: Path | None) -> dict[str, type]:
    """{name: class} of the peers in a file. Raises ValueError for a file that has none, or has names that are taken."""
    if path is None:
        return {}
    if not path.is_file():
        raise ValueError(f"--peer-path {path}: expected a Python file, found none")
    peers = runpy.run_path(str(path)).get("PEERS")
    if not isinstance(peers, dict) or not peers or not all(
            isinstance(name, str) and hasattr(peer, "all_reduce") for name, peer in peers.items()):
        raise ValueError(f"--peer-path {path}: expected PEERS, a dict of names and classes that have all_reduce, found {peers!r}")
    taken = sorted({*peers} & {*sizes.PEERS, *norm_words.PEERS, "none"})
    if taken:
        raise ValueError(f"--peer-path {path}: expected names that the benchmark has no peers of, found {', '.join(taken)}")
    return peers


def matrix(count: int) -> tuple[int, int]:
    """Numbers of rows and columns with `count` elements together: 4096 columns where that divides, else a single row."""
    return (count // 4096, 4096) if count % 4096 == 0 else (1, count)


def summed(peer: Any, like: torch.Tensor) -> torch.Tensor:
    """The peer's sum, in the shape of `like`."""
    return peer.all_reduce().view(like.shape)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Bytes that kernels of exchanges load and store in global memory, peers' memory included, for profilers."""
from typing import Any

from triton_dist.runtime.launch_metadata import counting, itemsize


def _elements(passes: Any) -> Any:
    """`passes(args)` times n elements of x; n rows of them where the kernel has rows."""
    return counting(lambda args: {"bytes": int(passes(args) * args["n"] * args.get("m", 1) * itemsize(args["x"]))})


def _norms(args: Any) -> float:
    """Passes that store the norm of rows: as it is, in bytes, or both."""
    return args["HAS_OUT"] + (args["QUANT"] != "") / itemsize(args["x"])


one_hop = _elements(lambda args: 2 * args["WORLD"])             # a part to each rank, and one of each
two_hops = _elements(lambda args: 4)                            # the same twice, of n / world elements
normed_one_hop = _elements(lambda args: 2 * args["WORLD"] + 1 + _norms(args))       # and the residual, and the norm
normed_two_hops = _elements(lambda args: 5 + _norms(args))


def _rows(args: Any) -> dict:
    """Of rows that are here: what is added, their sum, and their norm. A tensor's shape tells how many there are."""
    loaded = 1 + args["HAS_RESIDUAL"] + args["HAS_TOTAL"] + (_norms(args) if args["NORM"] else 0)
    return {"bytes": int(loaded * args["x"].numel() * itemsize(args["x"]))}


normed_rows = counting(_rows)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The order in which a rank's programs take the chunks of an op. `ops/device/gemm.py` has that of tiles inside a chunk."""
import triton


@triton.jit
def gathered_chunk(index, step, world):
    """The chunk at a step of ag_gemm: the rank's own first, then those of its successors, in the order in which they arrive."""
    return (index + step) % world


@triton.jit
def ring_chunk(index, step, world):
    """The chunk at a step of gemm_rs: a sum travels along the ring and comes to its owner at the last step."""
    return (index + 2 * world - 1 - step) % world

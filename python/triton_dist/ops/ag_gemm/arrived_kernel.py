# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernel that waits for the copies of a gather without a GEMM."""
import triton_dist.language as dl
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["epoch", "index"])
def arrived_kernel(flags, epoch, index, world):
    """Returns once all shards are there.

    Who writes: the copy engine of each peer: its shard, and after it the call's epoch into flags[peer] (system scope).
    Who waits: this kernel, for every peer. That is also what bounds the epoch.
    """
    dl.wait(flags, index, "sys", "acquire", epoch, cmp="ge")
    dl.wait(flags + index + 1, world - 1 - index, "sys", "acquire", epoch, cmp="ge")

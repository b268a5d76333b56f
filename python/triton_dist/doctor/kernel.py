# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernel that the doctor tries: every rank sends its number to the next one."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.runtime.jit import jit


@jit
def ring(buffer, flag, out, BLOCK: tl.constexpr):
    """Stores rank + 1 into the next rank's `buffer`, releases its flag, acquires the own one, copies `buffer` to `out`."""
    offsets = tl.arange(0, BLOCK)
    successor = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buffer, successor) + offsets, tl.zeros((BLOCK,), tl.int32) + dl.rank() + 1)
    dl.notify(flag, successor, 1)
    token = dl.wait(flag, 1, "sys", "acquire", 1)
    tl.store(out + offsets, tl.load(dl.consume_token(buffer, token) + offsets))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernel by which all ranks enter an ag_gemm whose copies a graph holds."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import count_call, this_epoch
from triton_dist.runtime.jit import jit


@jit
def enter_kernel(arrivals, entered, control, team, count, BLOCK: tl.constexpr):
    """Clears the flags int32 arrivals [count] of this rank, and returns once all ranks have done so in this call.

    Who writes: this kernel the epoch into entered[index] of each peer (system scope). The peers' copy engines write `arrivals`,
    but only after their own enter_kernel of this call.
    Who waits: this kernel, for `entered` of each peer. What precedes it on a peer's stream has ended then: the GEMM that read the
    last call's buffer.
    What bounds the epoch: a peer enters the next call only after its GEMM of this one, which waits for what is pushed after this
    kernel. So `entered` holds no later epoch, and is compared for equality.
    """
    epoch = this_epoch(control)
    index = dl.team_rank(team)
    world = dl.team_size(team)
    flag = tl.arange(0, BLOCK)
    tl.store(arrivals + flag, 0, mask=flag < count)
    for hop in range(1, world):
        dl.notify(entered + index, dl.team_world_rank(team, (index + hop) % world), epoch)
    for hop in range(1, world):
        dl.wait(entered + (index + hop) % world, 1, "sys", "acquire", epoch)
    count_call(control, epoch, 1)

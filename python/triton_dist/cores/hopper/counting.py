# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The epoch that kernels count themselves, as `ops.device.packets` does for Triton: copies in a CountedWorkspace's `control`."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_dist.cores.hopper.gemm_ws import NUM_WARPS
from triton_dist.runtime.workspace import MAX_PROGRAMS

_COPIES = gl.constexpr(MAX_PROGRAMS)


@gluon.jit
def this_epoch(control):
    """The epoch of this call, int32, never 0. Called before the roles of the core begin."""
    epoch = gl.load(control + gl.program_id(0)) + 1
    return gl.where(epoch == 0, 2, epoch)


@gluon.jit
def count_call(control, epoch):
    """Advances this program's copy of the epoch and its share of the unused ones. Called once, when the roles have ended."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [NUM_WARPS], [0])
    copy = gl.program_id(0) + gl.num_programs(0) * gl.arange(0, _COPIES, layout=layout)
    gl.store(control + copy, epoch, mask=copy < _COPIES)

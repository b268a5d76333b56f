# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin."""
from triton_dist.dropin.device import (  # noqa: F401
    BarrierAllContext, barrier_all_intra_node_atomic_cas_block, barrier_all_intra_node_non_atomic,
    barrier_all_intra_node_non_atomic_block, barrier_all_on_stream, barrier_all_same_program, barrier_on_this_grid,
    bisect_left_kernel, bisect_left_kernel_aligned, bisect_right_kernel, bisect_right_kernel_aligned, log2, next_power_of_2,
    unsafe_barrier_on_this_grid)
from triton_dist.dropin.stream_calls import memcpy, set_signal, wait_eq  # noqa: F401

_wait_eq_cuda = _wait_eq_hip = wait_eq
_set_signal_cuda = _set_signal_hip = set_signal
_memcpy_async_cuda = memcpy

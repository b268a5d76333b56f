# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The device language: what a kernel author imports as `dl`.

    import triton_dist.language as dl

Signals: wait, notify, notify_each, notify_warp, barrier_all, fence. Addresses and data: symm_at, consume_token,
ll_store, ll_load, ll_store_pair, ll_load_pair, sf_store, sf_take, sf_filled, sf_plain, prefetch. Overlapping launches:
gdc_wait, gdc_launch_dependents.
To look into a kernel: print_if, breakpoint_if, trace_start, trace_stop.
Single threads: simt_exec_region, and what extra/language_extra.py has.
Ranks: rank, num_ranks, team_size, team_rank, team_world_rank. All work in kernels decorated with @triton_dist.jit,
compiled or emulated, and wait, notify_warp, symm_at and fence inside Gluon kernels too.
"""
from triton_dist.language.debug import breakpoint_if, print_if
from triton_dist.language.gdc import gdc_launch_dependents, gdc_wait
from triton_dist.language.memory import consume_token, fence, ll_load, ll_load_pair, ll_store, ll_store_pair, prefetch, symm_at
from triton_dist.language.selfflag import sf_filled, sf_plain, sf_store, sf_take
from triton_dist.language.sync import barrier_all, notify, notify_each, notify_warp, wait
from triton_dist.language.threads import simt_exec_region
from triton_dist.language.team import num_ranks, rank, team_rank, team_size, team_world_rank
from triton_dist.language.trace import trace_start, trace_stop

__all__ = [
    "barrier_all", "breakpoint_if", "consume_token", "fence", "gdc_launch_dependents", "gdc_wait", "ll_load", "ll_load_pair",
    "ll_store", "ll_store_pair", "notify", "notify_each", "notify_warp", "num_ranks", "prefetch", "print_if", "rank", "sf_filled",
    "sf_plain", "sf_store", "sf_take", "simt_exec_region", "symm_at", "team_rank", "team_size", "team_world_rank", "trace_start",
    "trace_stop", "wait",
]

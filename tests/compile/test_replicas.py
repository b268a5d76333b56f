# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A slot that several threads would take is refused once the layouts are known."""
import pytest
import triton.language as tl
from compile_util import compile_kernel

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.gpu.replicas import refuse_replicas
from triton_dist.runtime.errors import UnsupportedFeature


@triton_dist.jit
def exchange(x, slots, out, N: tl.constexpr):
    at = 4 * tl.arange(0, N)
    word = at[:, None] + tl.arange(0, 4)[None, :]
    dl.sf_store(slots + at, dl.sf_filled(tl.load(x + word)), at >= 0)
    tl.store(out + word, dl.sf_take(slots + at, at >= 0))


def ttgir(n: int, warps: int, target: str) -> str:
    types = dict(x="*i32", slots="*i32", out="*i32", N="constexpr")
    return compile_kernel(exchange, types, dict(N=n), target, num_warps=warps).asm["ttgir"]


@pytest.mark.parametrize("target, lanes", [("sm_80", 32), ("sm_90", 32), ("gfx942", 64)])
def test_a_block_with_an_element_for_each_thread_is_served(target, lanes):
    for warps in (1, 4, 8):
        for each in (1, 2, 4):
            refuse_replicas("exchange", ttgir(each * lanes * warps, warps, target))


@pytest.mark.parametrize("target, lanes", [("sm_90", 32), ("gfx942", 64)])
def test_a_block_with_fewer_elements_than_threads_is_refused(target, lanes):
    for n, warps in ((lanes // 2, 1), (lanes * 2, 4)):
        with pytest.raises(UnsupportedFeature, match=f"exchange: sf_store and sf_take of {n} elements"):
            refuse_replicas("exchange", ttgir(n, warps, target))


def test_other_kernels_are_not_looked_at():
    refuse_replicas("other", "no such calls : tensor<1xi32, #ttg.blocked<{}>>")

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Instructions that the Hopper core needs and Gluon lacks, and Gluon's names, which differ between Tritons.

The emulator has a twin for each primitive, found by its name. Their text enters the kernel cache's key through the content
hash of the device runtime.
"""
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language import core


@core.builtin
def fence_proxy_async(token, _semantic=None):
    """Makes data that this thread has acquired readable by its TMA loads. Takes and returns an int32 token."""
    return core.inline_asm_elementwise("fence.proxy.async.global;\nmov.u32 $0, $1;", "=r,r", [token], dtype=core.int32,
                                       is_pure=False, pack=1, _semantic=_semantic)


@core.builtin
def flush_tma_stores(_semantic=None):
    """Returns when all TMA stores of this thread have been written, not just read from shared memory; an int32 token.

    Orders them before a release by the same warp (protocol rule 1).
    """
    return core.inline_asm_elementwise("cp.async.bulk.wait_group 0;\nfence.proxy.async.global;\nmov.u32 $0, 0;", "=r", [],
                                       dtype=core.int32, is_pure=False, pack=1, _semantic=_semantic)


@core.builtin
def pause(cycles, _semantic=None):
    """Holds the warp for at least `cycles` (int32) of the SM's clock; returns an int32 token."""
    asm = """{
    .reg .u64 end, now; .reg .pred early;
    cvt.u64.u32 end, $1;
    mov.u64 now, %clock64;
    add.u64 end, end, now;
    PAUSE_${:uid}:
    nanosleep.u32 50;
    mov.u64 now, %clock64;
    setp.lt.u64 early, now, end;
    @early bra PAUSE_${:uid};
    mov.u32 $0, 0;
    }"""
    return core.inline_asm_elementwise(asm, "=r,r", [_semantic.to_tensor(cycles)], dtype=core.int32, is_pure=False, pack=1,
                                       _semantic=_semantic)


@core.builtin
def exp2_approx(x, _semantic=None):
    """2 ** x of fp32 by the special function unit: right to about 2 units in the last place, and 0 below the normal range."""
    return core.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=core.float32, is_pure=True, pack=1,
                                       _semantic=_semantic)


@core.builtin
def reciprocal_approx(x, _semantic=None):
    """1 / x of fp32 by the special function unit: right to about 1 unit in the last place, and 0 below the normal range."""
    return core.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=core.float32, is_pure=True, pack=1,
                                       _semantic=_semantic)


@core.builtin
def reinterpret(buffer, dtype, shape, layout, _semantic=None):
    """The shared memory of `buffer` as another type, shape and layout."""
    method = getattr(buffer, "reinterpret", None) or buffer._reinterpret      # Triton 3.9's name, or 3.6's
    return method(dtype, shape, layout, _semantic=_semantic)


tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
copies_arrive = async_copy.mbarrier_arrive
cta_barrier = getattr(gl, "thread_barrier", None) or gl.barrier

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What kernels that use the primitives compile to."""
import re

import amd_isa
import kernels
import pytest
import triton
import triton.language as tl
from compile_util import CUDA, HIP, PLAIN_RELEASE, TARGETS, compile_kernel, instructions, position
from triton.compiler import CompilationError

import triton_dist.language as dl
from triton_dist.runtime.jit import jit

GEMM = dict(a="*fp16", b="*fp16", c="*fp16", flag="*i32", M="i32", N="i32", K="i32", BLOCK_M="constexpr",
            BLOCK_N="constexpr", BLOCK_K="constexpr")
GEMM_MULTIPLES = ("a", "b", "c", "flag", "M", "N", "K")
TILE = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64)


def copy_kernel(compiled, target, sig_op="set", comm_scope="inter_node", flag="*i32"):
    signature = dict(x="*fp16", symmetric="*fp16", flag=flag, rank="i32", SIG_OP="constexpr", COMM_SCOPE="constexpr",
                     BLOCK="constexpr")
    return compiled(kernels.copy_to_peer, signature, dict(SIG_OP=sig_op, COMM_SCOPE=comm_scope, BLOCK=1024), target)


@pytest.mark.parametrize("target", TARGETS)
def test_accesses_through_symm_at_stay_wide(compiled, target):
    lines = instructions(copy_kernel(compiled, target))
    if target in CUDA:
        assert [line for line in lines if line.startswith("st.global.v4.b32")]
        assert not [line for line in lines if line.startswith(("st.global.b", "ld.global.b"))]
    else:
        assert not [line for line in lines if re.match(r"(global|buffer)_store_(short|byte)", line)]
        position(lines, r"(global|buffer)_store_dwordx[24]")


@pytest.mark.parametrize("sig_op, flag", [("set", "*i32"), ("set", "*u64"), ("add", "*i32"), ("add", "*u64")])
@pytest.mark.parametrize("comm_scope", ["gpu", "intra_node", "inter_node"])
def test_notify_is_a_release_behind_a_barrier(compiled, comm_scope, sig_op, flag):
    lines = instructions(copy_kernel(compiled, "sm_90", sig_op, comm_scope, flag))
    scope = "gpu" if comm_scope == "gpu" else "sys"
    store = position(lines, r"^st\.global")
    barrier = position(lines, r"bar\.sync", store)
    if sig_op == "set" and PLAIN_RELEASE:
        fence = position(lines, rf"fence\.release\.{scope}", barrier)
        position(lines, rf"@%p\d+ st\.relaxed\.{scope}\.global\.b{flag[2:]}", fence)
        assert sum("bar.sync" in line for line in lines) == 1
    else:
        release = position(lines, rf"(atom|red)\.global\.{scope}\.release\.(exch|add)\.[bus]{flag[2:]}", barrier)
        assert ("exch" if sig_op == "set" else "add") in lines[release]


@jit
def our_wait(flag, out, value):
    tl.store(dl.consume_token(out, dl.wait(flag, 1, "sys", "acquire", value)), value)


@jit
def stock_wait(flag, out, value):
    tl.atomic_poll(flag, value, sem="acquire", scope="sys")
    tl.store(out, value)


@pytest.mark.skipif(not PLAIN_RELEASE, reason="Triton 3.6 has no atomic_poll to compare with")
def test_our_wait_is_tritons_poll_without_the_cta_barrier(compiled):
    """Why wait stays ours on Triton 3.9: same loads, same fence, but usable in a pipelined loop and in any partition."""
    ours, stock = ([line for line in instructions(compiled(kernel, dict(flag="*i32", out="*i32", value="i32"), {}, "sm_90"))
                    if re.search(r"ld\.\w+\.sys|fence|bar\.", line)] for kernel in (our_wait, stock_wait))
    assert [re.sub(r"[ \t].*", "", line) for line in ours] == ["ld.relaxed.sys.global.b32", "fence.acquire.sys;", "bar.warp.sync"]
    assert any("ld.relaxed.sys.global.b32" in line for line in stock) and any("bar.sync" in line for line in stock)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("kernel", [kernels.gemm_wait_once, kernels.gemm_wait_in_loop], ids=lambda k: k.__name__)
def test_gemm_with_a_wait_stays_pipelined(compiled, kernel, target):
    lines = instructions(compiled(kernel, GEMM, TILE, target, num_warps=4, num_stages=3, divisible=GEMM_MULTIPLES))
    copies = [re.search(r"0x[0-9a-f]+", line).group() for line in lines if line.startswith("cp.async.c")
              and "shared.global" in line]
    assert copies and set(copies) == {"0x10"}
    assert [line for line in lines if line.startswith("cp.async.wait_group")][0].split()[-1].rstrip(";") != "0"
    first_copy = position(lines, r"cp\.async\.\S*shared\.global")
    spin = position(lines, r"ld\.relaxed\.sys\.global")
    fence = position(lines, r"fence\.acq", spin)
    assert spin < fence < first_copy
    assert not [line for line in lines[:spin] if re.match(r"ld\.global|cp\.async", line)]
    position(lines, r"wgmma\.mma_async" if target == "sm_90" else r"mma\.sync")


@pytest.mark.parametrize("target", ["sm_100", *HIP])
@pytest.mark.parametrize("kernel", [kernels.gemm_wait_once, kernels.gemm_wait_in_loop], ids=lambda k: k.__name__)
def test_gemm_with_a_wait_uses_the_matrix_units(compiled, kernel, target):
    lines = instructions(compiled(kernel, GEMM, TILE, target, num_warps=4, num_stages=2, divisible=GEMM_MULTIPLES))
    spin = position(lines, r"ld\.relaxed\.sys\.global" if target in CUDA else amd_isa.poll(target, "sys"))
    first = position(lines, r"cp\.async\.\S*shared\.global|ld\.global|(buffer|global)_load_\S*x[24]")
    assert spin < first
    position(lines, r"tcgen05\.mma|v_mfma")


@pytest.mark.parametrize("target", TARGETS)
def test_a_descriptor_is_used_after_the_wait_that_it_is_tied_to(compiled, target):
    kernel = compiled(kernels.descriptor_after_wait, dict(x="*fp16", flag="*i32", out="*fp16", M="i32", N="i32",
                                                          BLOCK="constexpr"), dict(BLOCK=64), target,
                      divisible=("x", "out", "M", "N"))
    lines = instructions(kernel)
    if target in ("sm_90", "sm_100"):
        position(lines, r"cp\.async\.bulk\.tensor\S*global", position(lines, r"fence\.acquire\.sys"))
        position(lines, r"cp\.async\.bulk\.tensor\S*global\.shared")
    else:
        position(lines, r"ld\.global\.v4|(buffer|global)_load_dwordx", position(lines, r"fence\.acq|buffer_inv"))


LOADS = r"cp\.async\.bulk\.tensor\S*shared|cp\.async\.c|ld\.global\.(v4|b128)|(buffer|global)_load_dwordx"
LOOP = dict(a="*fp16", b="*fp16", out="*fp32", flags="*i32", N="i32", B="constexpr", WHEN="constexpr")


@pytest.mark.parametrize("when", ["every turn", "first turn"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_a_descriptor_keeps_its_type_in_a_loop_and_is_loaded_after_the_wait(compiled, target, when):
    """Stock pipelining would load for the first turns before the loop."""
    kernel = compiled(kernels.descriptor_in_loop, LOOP, dict(B=64, WHEN=when), target)
    lines = instructions(kernel)
    assert position(lines, r"fence\.acq|buffer_inv") < position(lines, LOADS)
    free = instructions(compiled(kernels.descriptor_in_loop, LOOP, dict(B=64, WHEN="never"), target))
    position(free, LOADS)


@pytest.mark.skipif(PLAIN_RELEASE, reason="this Triton has no block pointers")
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_a_block_pointer_keeps_its_type_in_a_loop_and_is_loaded_after_each_wait(compiled, target):
    """The loop is still pipelined: its first turns' waits stand before it, each ahead of its own loads."""
    lines = instructions(compiled(kernels.block_pointer_in_loop, {**LOOP, "WHEN": "constexpr"}, dict(B=64, WHEN=""), target))
    waits = [i for i, line in enumerate(lines) if re.search(r"fence\.acq|buffer_inv", line)]
    loads = [i for i, line in enumerate(lines) if re.search(LOADS, line)]
    assert waits[0] < loads[0] and (len(waits) >= 2 or target in HIP)
    for before, after in zip(waits, waits[1:]):
        assert any(before < load < after for load in loads)


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_consume_token_accepts_every_kind(compiled, target):
    compiled(kernels.consume_kinds, dict(x="*fp32", flag="*i32", out="*fp32", BLOCK="constexpr"), dict(BLOCK=256),
             target)


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_teams_are_loaded_from_memory(compiled, target):
    kernel = compiled(kernels.team_ring, dict(team="*i32", symmetric="*fp16", flag="*i32", out="*fp16",
                                              BLOCK="constexpr"), dict(BLOCK=1024), target)
    assert "tdist_num_ranks" not in kernel.asm["ttir"]


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_world_barrier_releases_in_parallel_then_acquires(compiled, target):
    lines = instructions(compiled(kernels.world_barrier, dict(out="*i32"), {}, target))
    barrier = position(lines, r"bar\.sync")
    assert position(lines, r"ld\.volatile\.global") < barrier
    release = position(lines, r"atom\.global\.sys\.release\.exch", barrier)
    spin = position(lines, r"ld\.relaxed\.sys\.global", release)
    position(lines, r"bar\.sync", position(lines, r"fence\.acq\S*\.sys", spin))
    assert len([line for line in lines if "release.exch" in line]) == 1


def test_primitives_work_in_gluon_partitions(compiled):
    signature = dict(x="*fp32", symmetric="*fp32", flag="*i32", rank="i32")
    kernel = compiled(kernels.gluon_partitions, signature, {}, "sm_90")
    lines = instructions(kernel)
    spin = position(lines, r"ld\.relaxed\.sys\.global")
    fence = position(lines, r"fence\.acquire\.sys", spin)
    warp_barrier = position(lines, r"bar\.warp\.sync", position(lines, r"fence\.release\.gpu", fence))
    release = position(lines, r"st\.release\.sys\.global", warp_barrier)
    assert not [line for line in lines[spin:release] if re.match(r"bar\.sync|barrier\.sync", line)]


@triton.jit
def plain_kernel(flag):
    dl.notify(flag, dl.rank())


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_plain_triton_jit_is_told_to_use_ours(target):
    with pytest.raises(CompilationError) as error:
        compile_kernel(plain_kernel, dict(flag="*i32"), {}, target, runtime=False)
    assert "@triton_dist.jit" in trace(error.value)


def trace(error: BaseException) -> str:
    """Messages of an error and its causes."""
    text = ""
    while error is not None:
        text += f"{error}\n"
        error = error.__cause__
    return text


@jit
def bad_wait(flag, SCOPE: tl.constexpr, SEMANTIC: tl.constexpr, CMP: tl.constexpr):
    dl.wait(flag, 1, SCOPE, SEMANTIC, 1, CMP)


@jit
def bad_notify(flag, SIG_OP: tl.constexpr, COMM_SCOPE: tl.constexpr):
    dl.notify(flag, 0, 1, SIG_OP, COMM_SCOPE)


@jit
def bad_fence(SEMANTIC: tl.constexpr, SCOPE: tl.constexpr):
    dl.fence(SEMANTIC, SCOPE)


@jit
def bad_narrow(x):
    dl.consume_token(tl.load(x), 0)


@jit
def bad_packet(x):
    dl.ll_store(x, 1, 1)


@pytest.mark.parametrize("kernel, types, values, message", [
    (bad_wait, dict(flag="*i32"), dict(SCOPE="cta", SEMANTIC="acquire", CMP="eq"), "scope must be one of 'gpu', 'sys'"),
    (bad_wait, dict(flag="*i32"), dict(SCOPE="sys", SEMANTIC="release", CMP="eq"), "semantic must be one of"),
    (bad_wait, dict(flag="*i32"), dict(SCOPE="sys", SEMANTIC="acquire", CMP="lt"), "cmp must be one of"),
    (bad_wait, dict(flag="*i16"), dict(SCOPE="sys", SEMANTIC="acquire", CMP="eq"), "32 or 64-bit integers"),
    (bad_wait, dict(flag="*fp32"), dict(SCOPE="sys", SEMANTIC="acquire", CMP="eq"), "32 or 64-bit integers"),
    (bad_wait, dict(flag="i32"), dict(SCOPE="sys", SEMANTIC="acquire", CMP="eq"), "expected a pointer"),
    (bad_notify, dict(flag="*i32"), dict(SIG_OP="or", COMM_SCOPE="gpu"), "sig_op must be one of 'set', 'add'"),
    (bad_notify, dict(flag="*i32"), dict(SIG_OP="set", COMM_SCOPE="sys"), "comm_scope must be one of 'gpu'"),
    (bad_notify, dict(flag="*fp16"), dict(SIG_OP="set", COMM_SCOPE="gpu"), "32 or 64-bit integers"),
    (bad_fence, {}, dict(SEMANTIC="sc", SCOPE="gpu"), "semantic must be one of"),
    (bad_narrow, dict(x="*fp8e5"), {}, "fp8e5 is not supported"),
    (bad_packet, dict(x="*i32"), {}, "64-bit integers"),
])
def test_bad_arguments_are_named_at_trace_time(kernel, types, values, message):
    signature = dict(types, **{name: "constexpr" for name in values})
    with pytest.raises(CompilationError) as error:
        compile_kernel(kernel, signature, values, "sm_90")
    assert message in trace(error.value)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The order of memory in the code that the language's functions compile to on AMD GPUs."""
import re

import amd_isa
import compile_util
import kernels
import pytest
import triton.language as tl
from amd_isa import DONE, ISA, acquire, assert_sound, flag_write, poll, release_before
from compile_util import HIP, instructions, position
from triton.backends.compiler import GPUTarget

import triton_dist.language as dl
from triton_dist.runtime.jit import jit

COPY = dict(x="*fp16", symmetric="*fp16", flag="*i32", rank="i32", SIG_OP="constexpr", COMM_SCOPE="constexpr", BLOCK="constexpr")
WAIT = dict(x="*fp16", flag="*i32", out="*fp16", n="i32", SCOPE="constexpr", SEMANTIC="constexpr", CMP="constexpr",
            BLOCK="constexpr")
STORE = r"(global|buffer)_store_dword"
SCOPE_OF = {"gpu": "gpu", "intra_node": "sys"}


@pytest.mark.parametrize("comm_scope", ["gpu", "intra_node"])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("op", ["set", "add"])
@pytest.mark.parametrize("target", HIP)
def test_notify_follows_the_stores_of_every_wave(compiled, target, op, bits, comm_scope):
    """Each wave waits for its stores before the barrier, one writes the L2 back and waits, one lane stores the flag."""
    kernel = compiled(kernels.copy_to_peer, dict(COPY, flag=f"*i{bits}"),
                      dict(SIG_OP=op, COMM_SCOPE=comm_scope, BLOCK=4096), target)
    lines, scope = assert_sound(kernel, target), SCOPE_OF[comm_scope]
    data = position(lines, r"global_store_dwordx[24]")
    flag = position(lines, flag_write(target, scope, op, bits), data + 1)
    assert release_before(lines, flag, target, scope) > data
    assert sum(line.startswith("buffer_wbl2") for line in lines) == (ISA[target][scope].back is not None)
    assert any("saveexec" in line or line.startswith("v_cmpx") for line in lines), "all lanes signal"


@jit
def signal_each(x, symmetric, flags, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(symmetric + offsets, tl.load(x + offsets))
    ranks = tl.arange(0, 8)
    dl.notify_each(flags + ranks, 5, ranks < 6)


@pytest.mark.parametrize("target", HIP)
def test_flags_of_many_waiters_follow_the_stores_of_every_wave(compiled, target):
    kernel = compiled(signal_each, dict(x="*fp16", symmetric="*fp16", flags="*i32", BLOCK="constexpr"), dict(BLOCK=4096), target)
    lines = assert_sound(kernel, target)
    bits = "" if target == "gfx90a" else " sc0 sc1$"
    flag = position(lines, STORE + " [^;]*" + bits, position(lines, "s_barrier"))
    release_before(lines, flag, target, "sys")


@jit
def signal_by_warp(symmetric, flag, value, OP: tl.constexpr, SCOPE: tl.constexpr):
    tl.store(symmetric + tl.arange(0, 256), value)
    dl.notify_warp(flag, value, OP, SCOPE)


@pytest.mark.parametrize("scope", ["gpu", "sys"])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("op", ["set", "add"])
@pytest.mark.parametrize("target", HIP)
def test_a_waves_signal_follows_its_own_stores_without_a_barrier(compiled, target, op, bits, scope):
    signature = dict(symmetric="*i32", flag=f"*i{bits}", value="i32", OP="constexpr", SCOPE="constexpr")
    lines = assert_sound(compiled(signal_by_warp, signature, dict(OP=op, SCOPE=scope), target), target)
    flag = position(lines, flag_write(target, scope, op, bits), position(lines, STORE) + 1)
    back = ISA[target][scope].back
    after = position(lines, back) if back else position(lines, STORE)
    assert after < position(lines, DONE, after) < flag
    assert "s_barrier" not in lines


@pytest.mark.parametrize("cmp", ["eq", "ge"])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("semantic", ["acquire", "relaxed"])
@pytest.mark.parametrize("scope", ["gpu", "sys"])
@pytest.mark.parametrize("target", HIP)
def test_wait_polls_past_the_caches_and_drops_them_before_the_first_load(compiled, target, scope, semantic, bits, cmp):
    kernel = compiled(kernels.load_after_wait, dict(WAIT, flag=f"*i{bits}"),
                      dict(SCOPE=scope, SEMANTIC=semantic, CMP=cmp, BLOCK=1024), target)
    lines = assert_sound(kernel, target)
    spin = position(lines, poll(target, scope, bits))
    position(lines, DONE, spin)
    assert sum(line.startswith("s_sleep") for line in lines) == 1
    asked = poll(target, scope, bits)
    data = next(i for i, line in enumerate(lines)
                if re.match(r"(global|buffer)_load_dwordx[24]", line) and not re.match(asked, line))
    assert not [line for line in lines[:spin] if re.match(r"(global|buffer)_load", line)]
    if semantic == "acquire":
        assert spin < acquire(lines, target, scope, spin) < data
        assert sum(line.startswith(("buffer_inv", "buffer_wbinvl1")) for line in lines) == len(
            [drop for drop in ISA[target][scope].drop if not drop.startswith("buffer_invl2")]) + (
            target == "gfx90a" and scope == "sys")
    else:
        assert spin < data and not [line for line in lines if re.match(r"buffer_(inv|wb)", line)]


@jit
def load_one_after_wait(x, flag, out):
    token = dl.wait(flag, 1, "sys", "acquire")
    tl.store(out, tl.load(dl.consume_token(x, token)))


@jit
def load_one_after_relaxed_wait_and_fence(x, flag, out):
    dl.wait(flag, 1, "sys", "relaxed")
    dl.fence("acquire", "sys")
    tl.store(out, tl.load(x))


@pytest.mark.parametrize("kernel", [load_one_after_wait, load_one_after_relaxed_wait_and_fence], ids=lambda k: k.__name__)
@pytest.mark.parametrize("target", HIP)
def test_one_word_after_a_wait_is_not_loaded_through_the_scalar_cache(compiled, target, kernel):
    lines = assert_sound(compiled(kernel, dict(x="*i32", flag="*i32", out="*i32"), {}, target), target)
    position(lines, r"global_load_dword ", acquire(lines, target, "sys"))


@jit
def stores_around_a_fence(x, y, SEMANTIC: tl.constexpr, SCOPE: tl.constexpr):
    tl.store(x + tl.arange(0, 256), 1)
    dl.fence(SEMANTIC, SCOPE)
    tl.store(y + tl.arange(0, 256), 2)


@pytest.mark.parametrize("scope", ["gpu", "sys"])
@pytest.mark.parametrize("semantic", ["acquire", "release", "acq_rel"])
@pytest.mark.parametrize("target", HIP)
def test_fences_write_back_wait_and_drop(compiled, target, semantic, scope):
    signature = dict(x="*i32", y="*i32", SEMANTIC="constexpr", SCOPE="constexpr")
    lines = assert_sound(compiled(stores_around_a_fence, signature, dict(SEMANTIC=semantic, SCOPE=scope), target), target)
    first = position(lines, STORE)
    second, back = position(lines, STORE, first + 1), ISA[target][scope].back
    if semantic != "acquire":
        begun = position(lines, back, first) if back else first
        assert begun < position(lines, DONE, begun) < second
    assert any(line.startswith("buffer_wbl2") for line in lines) == (semantic != "acquire" and back is not None)
    dropped = any(re.match(pattern, line) for pattern in ISA[target][scope].drop for line in lines)
    assert dropped == (semantic != "release")
    if dropped:
        assert first < acquire(lines, target, scope) < second


@pytest.mark.parametrize("bounded", [False, True], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("target", HIP)
def test_every_row_together_is_sound(compiled, target, bounded):
    signature = dict(flags32="*i32", flags64="*i64", packets="*i64", out="*i32", n="i32", value="i32", BLOCK="constexpr")
    kernel = compiled(kernels.every_row, signature, dict(BLOCK=256), target, bounded=bounded)
    lines = assert_sound(kernel, target)
    for width in ("dwordx2", "dwordx4"):
        position(lines, amd_isa.PAIR_STORE[target].replace("dwordx4", width))
        position(lines, amd_isa.PAIR_LOAD[target].replace("dwordx4", width))
    if bounded:
        trap = position(lines, "s_trap 2")
        position(lines[:trap], "buffer_wbl2")
        assert not any(line.startswith("s_memtime") for line in lines)


@pytest.mark.parametrize("target", ["gfx1100", "gfx1200"])
def test_notify_on_rdna_waits_for_stores_twice(monkeypatch, target):
    """Before the barrier, and after the write-back. What else holds there is not tested."""
    monkeypatch.setattr(compile_util, "gpu_target", lambda name: GPUTarget("hip", name, 32))
    constants = dict(SIG_OP="set", COMM_SCOPE="intra_node", BLOCK=1024)
    kernel = compile_util.compile_kernel(kernels.copy_to_peer, COPY, constants, target)
    lines = instructions(kernel)
    wait = r"s_waitcnt_vscnt null, 0x0" if target == "gfx1100" else r"s_wait_storecnt 0x0"
    barrier = position(lines, r"s_barrier", position(lines, wait, position(lines, r"global_store_b(64|128)")))
    back = barrier if target == "gfx1100" else position(lines, r"global_wb scope:SCOPE_SYS", barrier)
    position(lines, r"global_store_b32", position(lines, wait, back))


@jit
def signal_after_a_barrier_alone(x, flag, value):
    tl.store(x + tl.arange(0, 4096), value)
    tl.debug_barrier()
    tl.atomic_xchg(flag, value, sem="release", scope="sys")


@pytest.mark.parametrize("target", HIP)
def test_the_checks_find_what_they_are_for(compiled, target):
    """Triton's own release leaves other waves' stores under way; a drain taken out of ours is found."""
    lines = instructions(compiled(signal_after_a_barrier_alone, dict(x="*i32", flag="*i32", value="i32"), {}, target))
    with pytest.raises(AssertionError, match="under way"):
        release_before(lines, position(lines, "global_atomic_swap"), target, "sys")
    kernel = compiled(kernels.copy_to_peer, COPY, dict(SIG_OP="set", COMM_SCOPE="intra_node", BLOCK=4096), target)
    good = instructions(kernel)
    flag = position(good, flag_write(target, "sys"), position(good, r"global_store_dwordx[24]") + 1)
    without = [line for line in good if not line.startswith("buffer_wbl2")]
    with pytest.raises(AssertionError, match="no write-back"):
        release_before(without, position(without, flag_write(target, "sys"), position(without, r"global_store_dwordx") + 1),
                       target, "sys")
    early = good[:flag] + ["buffer_wbl2 sc0 sc1" if target != "gfx90a" else "buffer_wbl2"] + good[flag:]
    with pytest.raises(AssertionError):
        amd_isa._assert_released(early, target)
    with pytest.raises(AssertionError, match="scalar load"):
        amd_isa._assert_loads_of_memory_are_not_scalar(
            ["s_load_dwordx2 s[2:3], s[0:1], 0x0", "s_branch .L", "buffer_inv sc1", "s_add_u32 s4, s2, 8",
             "s_load_dword s6, s[4:5], 0x0"])
    with pytest.raises(AssertionError, match="through a cache"):
        amd_isa._assert_flags_are_not_cached(
            [".L:", "global_load_dword v0, v1, s[2:3]", "s_sleep 1", "s_cbranch_vccnz .L"], target)

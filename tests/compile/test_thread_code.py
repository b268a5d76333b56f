# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What functions of single threads compile to: one instruction each, with its order and scope, in each thread's own branch."""
import re

import pytest
import triton
import triton.language as tl
from compile_util import code, compile_kernel, instructions, position, vendor
from triton.compiler.errors import CompilationError

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.gpu.thread_functions import library, render
from triton_dist.language.abi import ROWS
from triton_dist.language.extra import language_extra as thread
from triton_dist.language.extra.language_extra import __ballot_sync as ballot
from triton_dist.language.extra.language_extra import __shfl_sync_i32 as shuffle
from triton_dist.language.extra.language_extra import __syncthreads, ld, num_threads, st, tid
from triton_dist.language.threads_abi import LIBRARY

LLVM = {"int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64"}


def compiled(kernel, signature: dict, target: str, **constexprs):
    linked = {LIBRARY: library(vendor(target))}
    return compile_kernel(kernel, signature, constexprs, target, extern_libs=linked)


@pytest.mark.parametrize("maker", ["nvidia", "amd"])
def test_every_row_is_defined_with_its_types_and_no_other(maker):
    defined = {symbol: (result, [word.split()[0] for word in arguments.split(",") if word])
               for result, symbol, arguments in re.findall(r"^define (i\d+) @(\w+)\((.*)\)", render(maker), re.M)}
    assert defined == {row.symbol: (LLVM[row.result], [LLVM[ty] for ty in row.args]) for row in ROWS.values()
                       if row.library == LIBRARY}


@triton_dist.jit
def signals(flags, x, n, value):
    t = tid(0)
    if t < n:
        st(dl.symm_at(flags + dl.rank(), t), value, scope="sys", semantic="release")
        while ld(flags + t, scope="sys", semantic="acquire") != value:
            pass
    __syncthreads()
    for i in range(t, n, num_threads()):
        st(x + i, ld(x + i) * 2)


def test_nvidia_signals_by_thread():
    lines = instructions(compiled(signals, dict(flags="*i32", x="*fp32", n="i32", value="i32"), "sm_90"))
    mine = position(lines, r"mov\.u32\s+%r\d+, %tid\.x")
    branch = position(lines, r"@%p\d+ bra", mine)
    release = position(lines, r"^st\.release\.sys\.global\.b32", branch)
    acquire = position(lines, r"^ld\.acquire\.sys\.global\.b32", release)
    barrier = position(lines, r"bar\.sync", acquire)
    position(lines, r"^st\.relaxed\.gpu\.global\.b32", position(lines, r"^ld\.relaxed\.gpu\.global\.b32", barrier))
    assert sum("bar.sync" in line for line in lines) == 1


def test_amd_signals_by_thread():
    lines = instructions(compiled(signals, dict(flags="*i32", x="*fp32", n="i32", value="i32"), "gfx942"))
    drained = position(lines, r"s_waitcnt vmcnt\(0\)", position(lines, r"buffer_wbl2 sc0 sc1"))
    store = position(lines, r"(global|flat)_store_dword .*sc0 sc1", drained)
    load = position(lines, r"(global|flat)_load_dword .*sc0 sc1", store)
    position(lines, r"s_barrier", position(lines, r"buffer_inv sc0 sc1", load))


@triton_dist.jit
def atomics(p, q, SEM: tl.constexpr, SCOPE: tl.constexpr):
    if tid(0) == 0:
        thread.atomic_add(p, 1, SCOPE, SEM)
        thread.atomic_exch(q, 2, SCOPE, SEM)
        thread.atomic_cas(q, 2, 3, SCOPE, SEM)


@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release", "acq_rel"])
@pytest.mark.parametrize("scope", ["cta", "gpu", "sys"])
def test_nvidia_atomics_keep_order_and_scope(sem, scope):
    signature = dict(p="*i32", q="*i64", SEM="constexpr", SCOPE="constexpr")
    lines = instructions(compiled(atomics, signature, "sm_90", SEM=sem, SCOPE=scope))
    add = position(lines, rf"^atom\.{sem}\.{scope}\.global\.add\.u32")
    exchange = position(lines, rf"^atom\.{sem}\.{scope}\.global\.exch\.b64", add)
    position(lines, rf"^atom\.{sem}\.{scope}\.global\.cas\.b64", exchange)
    assert not any("bar.sync" in line for line in lines)


@triton_dist.jit
def by_warp(p, VALUE: tl.constexpr):
    dl.notify_warp(p, VALUE, "add", "sys")
    dl.notify_warp(p, VALUE, "add", "gpu")


@pytest.mark.parametrize("bits", [32, 64])
def test_an_added_signal_of_a_warp_is_a_release_of_its_scope(bits):
    """LLVM's own atomicrmw is relaxed and of device scope on NVIDIA's GPUs, whatever it is asked for."""
    lines = instructions(compile_kernel(by_warp, dict(p=f"*i{bits}", VALUE="constexpr"), dict(VALUE=3), "sm_90"))
    first = position(lines, rf"^atom\.release\.sys\.global\.add\.u{bits}")
    position(lines, rf"^atom\.release\.gpu\.global\.add\.u{bits}", first)


@triton_dist.jit
def rest(out, x, v):
    t = tid(0)
    st(out + t, shuffle(-1, t, v) + ballot(-1, t < 5).to(tl.int32))
    thread.fence("acq_rel", "sys")
    thread.st_v4_b32(x + 4 * t, t, t, t, t)
    st(x + 1024 + t, thread.laneid() + thread.ntid(0) + thread.smid())
    thread.membar("gl")


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx90a", "gfx942"])
def test_the_rest_compiles_for_both_vendors(target):
    text = code(compiled(rest, dict(out="*i32", x="*i32", v="i32"), target))
    wanted = (["shfl.sync.idx.b32", "vote.sync.ballot.b32", "fence.acq_rel.sys", "st.volatile.global.v4.b32", "%smid",
               "fence.sc.gpu"] if target.startswith("sm_") else ["ds_bpermute_b32", "v_cmp", "global_store_dwordx4"])
    assert not [word for word in wanted if word not in text]


@triton_dist.jit
def plain(x):
    tl.store(x, dl.rank())


def test_other_kernels_are_not_changed():
    signature = dict(x="*i32")
    with_it, without = (compile_kernel(plain, signature, {}, "sm_90", **options) for options in (
        dict(extern_libs={LIBRARY: library("nvidia")}), {}))
    assert instructions(with_it) == instructions(without)


@triton_dist.jit
def wrong(x, y, WHAT: tl.constexpr):
    if WHAT == "block":
        st(x + tl.arange(0, 16), 1)
    elif WHAT == "float":
        thread.atomic_add(y, 1.0)
    elif WHAT == "scope":
        ld(x, scope="world")
    elif WHAT == "order":
        ld(x, semantic="release")
    elif WHAT == "axis":
        tid(3)


@pytest.mark.parametrize("what, words", [
    ("block", "st: expected one pointer, got"), ("float", "atomic_add: expected a pointer to integers, got pointer<fp32>"),
    ("scope", "ld: scope must be one of 'cta', 'gpu', 'sys', got 'world'"),
    ("order", "ld: semantic must be one of 'relaxed', 'acquire', got 'release'"),
    ("axis", "tid: axis must be a constexpr, 0, 1 or 2")])
def test_wrong_arguments_are_told(what, words):
    with pytest.raises(CompilationError) as caught:
        compiled(wrong, dict(x="*i32", y="*fp32", WHAT="constexpr"), "sm_90", WHAT=what)
    error = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    assert words in str(error)


def test_without_the_library_the_error_says_so():
    with pytest.raises(CompilationError) as caught:
        compile_kernel(signals, dict(flags="*i32", x="*fp32", n="i32", value="i32"), {}, "sm_90")
    error = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    assert "needs the library of thread functions" in str(error) and triton.__version__

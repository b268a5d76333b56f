# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Bad input to jit, launches and the device language; and code that Triton refuses, with the kernel's line."""
import numpy as np
import torch
import triton
import triton.language as tl
from bad_input import refused, small_heap, table, usable  # noqa: F401
from triton.compiler.errors import CompilationError

import triton_dist
import triton_dist.language as dl
from triton_dist.language.extra import language_extra
from triton_dist.runtime.errors import DeviceFault, InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.jit import gluon_jit, jit


def flags(*shape, dtype=torch.int32):
    return triton_dist.create_symm_tensor(shape or (8,), dtype)


@jit
def copy(x, out, n, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    tl.store(out + k, tl.load(x + k, mask=k < n), mask=k < n)


def launch(*args, grid=(1,), **options):
    if not args:
        args = (torch.ones(8), torch.ones(8), 8)
    return lambda: copy[grid](*args, **{"BLOCK": 8, **options})


LAUNCHES = [
    ("jit: a number", lambda: jit(7), "jit", "got int", "put it innermost"),
    ("jit: a class", lambda: jit(InvalidArgument), "jit", "got type", "put it innermost"),
    ("jit: a kernel", lambda: jit(copy), "jit", "got DistJITFunction", "put it innermost"),
    ("gluon_jit: a kernel", lambda: gluon_jit(copy), "jit", "got DistJITFunction", "put it innermost"),
    ("argument left out", lambda: copy[(1,)](torch.ones(8), torch.ones(8), BLOCK=8), "'n'", "missing", "copy"),
    ("constexpr left out", lambda: copy[(1,)](torch.ones(8), torch.ones(8), 8), "'BLOCK'", "missing", "copy"),
    ("argument too many", lambda: copy[(1,)](1, 2, 3, 4, 5), "copy", "too many", "positional arguments"),
    ("argument twice", launch(torch.ones(8), torch.ones(8), 8, n=8), "'n'", "multiple values", "copy"),
    ("unknown keyword", launch(SIZE=8), "'SIZE'", "no parameter", "parameters: x, out, n, BLOCK"),
    ("an array", launch(np.ones(8), torch.ones(8), 8), "'x'", "ndarray", "cannot take"),
    ("a list", launch(torch.ones(8), [0.0] * 8, 8), "'out'", "list", "cannot take"),
    ("an object", launch(torch.ones(8), torch.ones(8), object()), "'n'", "object", "cannot take"),
    ("a tensor on meta", launch(torch.ones(8), torch.ones(8, device="meta"), 8), "'out'", "meta", "triton_dist.device()"),
    ("a sparse tensor", launch(torch.ones(8), torch.ones(8).to_sparse(), 8), "'out'", "sparse", "dense"),
    ("an integer of 65 bits", launch(torch.ones(8), torch.ones(8), 2**64), "'n'", str(2**64), "64-bit"),
    ("grid: none", launch(grid=()), "grid", "()", "one to three dimensions"),
    ("grid: four", launch(grid=(1, 1, 1, 1)), "grid", "(1, 1, 1, 1)", "one to three dimensions"),
    ("grid: negative", launch(grid=(-1,)), "grid", "(-1,)", "at least 0"),
    ("grid: a fraction", launch(grid=(1.5,)), "grid", "(1.5,)", "whole numbers"),
    ("grid: a name", launch(grid=("8",)), "grid", "('8',)", "whole numbers"),
    ("grid: None", launch(grid=None), "grid", "None", "whole numbers"),
    ("grid: a function of nothing", launch(grid=lambda meta: None), "grid", "None", "whole numbers"),
    ("grid: larger than the machine, cooperative", launch(grid=(99,), launch_cooperative_grid=True), "copy", "99 programs",
     "launch at most"),
    ("num_warps: three", launch(num_warps=3), "num_warps", "3", "power of"),
    ("num_warps: zero", launch(num_warps=0), "num_warps", "0", "power of"),
    ("num_warps: a name", launch(num_warps="four"), "num_warps", "four", "power of"),
    ("block of three", launch(BLOCK=3), "range", "arange", "power of 2", CompilationError),
    ("block from an argument", launch(BLOCK=torch.ones(1)), "BLOCK", "arange", "constexpr", CompilationError),
    ("out of bounds", launch(torch.ones(8), torch.ones(4), 8), "out (rank", "past the end", "test_bad_input_kernels.py:",
     DeviceFault),
]


# -- the device language: each body is a kernel of its own -------------------------------------------------------------
@jit
def wait(ptr, n, value, SCOPE: tl.constexpr, SEM: tl.constexpr, CMP: tl.constexpr):
    dl.wait(ptr, n, SCOPE, SEM, value, CMP)


@jit
def wait_in_runtime_scope(ptr, scope):
    dl.wait(ptr, 1, scope, "acquire", 1)


@jit
def wait_for_a_wide_constant(ptr):
    dl.wait(ptr, 1, "sys", "acquire", 1099511627776)


@jit
def wait_on_blocks(ptr, BLOCK: tl.constexpr):
    dl.wait(ptr + tl.arange(0, BLOCK), 1, "sys", "acquire", 1)


@jit
def wait_for_block(ptr, BLOCK: tl.constexpr):
    dl.wait(ptr, 1, "sys", "acquire", tl.arange(0, BLOCK))


@jit
def notify(ptr, rank, value, OP: tl.constexpr, SCOPE: tl.constexpr):
    dl.notify(ptr, rank, value, OP, SCOPE)


@jit
def notify_warp(ptr, value, OP: tl.constexpr, SCOPE: tl.constexpr):
    dl.notify_warp(ptr, value, OP, SCOPE)


@jit
def store_at(ptr, rank):
    tl.store(dl.symm_at(ptr, rank), 1)


@jit
def fence(SEM: tl.constexpr, SCOPE: tl.constexpr):
    dl.fence(SEM, SCOPE)


@jit
def tie_float8(ptr):
    dl.consume_token(tl.load(ptr).to(tl.float32).to(tl.float8e5), 0)


@jit
def tie_name(ptr, NAME: tl.constexpr):
    dl.consume_token(NAME, 0)


@jit
def packets(ptr, data, STORE: tl.constexpr):
    k = tl.arange(0, 4)
    if STORE:
        dl.ll_store(ptr + k, tl.load(data + k), 1)
    else:
        dl.ll_load(ptr + k, 1)


@jit
def pairs(ptr, data, STORE: tl.constexpr):
    k = tl.arange(0, 4)
    if STORE:
        dl.ll_store_pair(ptr + 2 * k, tl.load(data + k), 1)
    else:
        dl.ll_load_pair(ptr + 2 * k, 1)


@jit
def team(ptr):
    tl.store(ptr, dl.team_size(3))


@jit
def notify_block(ptr):
    dl.notify(ptr, tl.arange(0, 2), 1)


@jit
def notify_each(ptr, signal):
    k = tl.arange(0, 2)
    dl.notify_each(dl.symm_at(ptr, k), signal, k < 2)


@jit
def wide_constant_in_a_packet(ptr):
    dl.ll_store(ptr + tl.arange(0, 4), 1099511627776, 1)


@jit
def wide_flag_of_a_packet(ptr, flag):
    dl.ll_load(ptr + tl.arange(0, 4), flag)


@jit
def self_flagged(ptr, DTYPE: tl.constexpr, FILL: tl.constexpr):
    k = tl.arange(0, 4)
    words = tl.full((4, 4), 3, DTYPE)
    dl.sf_store(ptr + 4 * k, dl.sf_filled(words) if FILL else words, k < 4)


@jit
def prefetch(ptr):
    dl.prefetch(tl.arange(0, 4))


@jit
def record(ptr, EVENT: tl.constexpr):
    dl.trace_start(EVENT, 0)


@jit
def print_the_second(ptr):
    dl.print_if(True, "x", None, 5)


@jit
def by_threads(ptr, value, HOW: tl.constexpr):
    if HOW == "st":
        language_extra.st(ptr, tl.arange(0, 4))
    elif HOW == "add":
        language_extra.atomic_add(ptr, value)
    elif HOW == "cas":
        language_extra.atomic_cas(ptr, 0, tl.arange(0, 4))
    elif HOW == "shuffle":
        language_extra.shuffle_up(-1, value, 1)
    else:
        language_extra.atomic_add_per_warp(ptr, 1)


@triton.jit
def plain(ptr):
    dl.wait(ptr, 1, "sys", "acquire", 1)


def waits(ptr=flags, n=1, value=1, scope="sys", sem="acquire", cmp="eq"):
    return lambda: wait[(1,)](ptr(), n, value, scope, sem, cmp)


def notifies(ptr=flags, rank=1, value=1, op="set", scope="inter_node"):
    return lambda: notify[(1,)](ptr(), rank, value, op, scope)


def on(kernel, *args, **options):
    return lambda: kernel[(1,)](*(arg() if callable(arg) else arg for arg in args), **options)


def other():
    return 1 - resolve().rank


def floats():
    return flags(dtype=torch.float32)


def shorts():
    return flags(dtype=torch.int16)


def longs():
    return flags(dtype=torch.int64)


DEVICE = [
    ("wait scope: cta", waits(scope="cta"), "scope", "got 'cta'", "'gpu', 'sys'"),
    ("wait scope: None", waits(scope=None), "scope", "got None", "'gpu', 'sys'"),
    ("wait scope: at run time", on(wait_in_runtime_scope, flags, 7), "scope", "constexpr", "'gpu', 'sys'"),
    ("wait semantic: release", waits(sem="release"), "semantic", "got 'release'", "'acquire', 'relaxed'"),
    ("wait cmp: lt", waits(cmp="lt"), "cmp", "got 'lt'", "'eq', 'ge'"),
    ("wait flags: floats", waits(floats), "wait", "got pointer<fp32>", "32 or 64-bit integers"),
    ("wait flags: 16 bits", waits(shorts), "wait", "got pointer<int16>", "32 or 64-bit integers"),
    ("wait flags: a number", waits(lambda: 7), "wait", "got int32", "expected a pointer"),
    ("wait flags: a block", on(wait_on_blocks, flags, BLOCK=4), "barrierPtrs", "block", "one pointer"),
    ("wait count: a fraction", waits(n=1.5), "wait", "found fp32", "convert it"),
    ("wait value: a fraction", waits(value=0.5), "waitValue", "got fp32", "convert it"),
    ("wait value: a block", on(wait_for_block, flags, BLOCK=4), "waitValue", "block", "scalar"),
    ("wait value: 33 bits", waits(value=2**32 + 1), "waitValue", "int64", "32-bit flag"),
    ("wait value: a constant of 41 bits", on(wait_for_a_wide_constant, flags), "waitValue", "int64", "32-bit flag"),
    ("notify op: max", notifies(op="max"), "sig_op", "got 'max'", "'set', 'add'"),
    ("notify scope: sys", notifies(scope="sys"), "comm_scope", "got 'sys'", "'gpu', 'intra_node', 'inter_node'"),
    ("notify flag: floats", notifies(floats), "notify", "got pointer<fp32>", "32 or 64-bit integers"),
    ("notify flag: a number", notifies(lambda: 5), "notify", "got int32", "expected a pointer"),
    ("notify signal: 33 bits", notifies(value=2**33), "signal", "int64", "32-bit flag"),
    ("notify signal: a fraction", notifies(value=1.5), "signal", "got fp32", "convert it"),
    ("notify rank: a fraction", notifies(rank=0.5), "symm_delta", "found fp32", "convert it"),
    ("notify_warp op", on(notify_warp, flags, 1, "or", "sys"), "sig_op", "got 'or'", "'set', 'add'"),
    ("notify_warp scope", on(notify_warp, flags, 1, "set", "inter_node"), "scope", "got 'inter_node'", "'gpu', 'sys'"),
    ("notify_warp flag: 16 bits", on(notify_warp, shorts, 1, "set", "sys"), "notify_warp", "got pointer<int16>", "integers"),
    ("notify_warp value: 33 bits", on(notify_warp, flags, 2**32, "set", "sys"), "value", "int64", "32-bit flag"),
    ("symm_at: a number", on(store_at, 5, 1), "symm_at", "got int32", "expected a pointer"),
    ("symm_at rank: a fraction", on(store_at, flags, 1.5), "symm_delta", "found fp32", "convert it"),
    ("fence semantic", on(fence, "relaxed", "sys"), "semantic", "got 'relaxed'", "'acquire', 'release', 'acq_rel'"),
    ("fence scope", on(fence, "acquire", "cluster"), "scope", "got 'cluster'", "'gpu', 'sys'"),
    ("consume_token: fp8", on(tie_float8, floats), "consume_token", "fp8e5", "tie the pointer"),
    ("consume_token: a name", on(tie_name, flags, "x"), "consume_token", "str", "cannot tie"),
    ("ll_store: 32-bit packets", on(packets, flags, flags, True), "ll_store", "got pointer<int32>", "64-bit integers"),
    ("ll_store: floats", on(packets, longs, floats, True), "data", "got fp32", ".to(tl.int32, bitcast=True)"),
    ("ll_store: 64-bit data", on(packets, longs, longs, True), "data", "got int64", "must be int32"),
    ("ll_store_pair: 32-bit packets", on(pairs, flags, longs, True), "ll_store_pair", "got pointer<int32>", "64-bit integers"),
    ("ll_store_pair: floats", on(pairs, longs, floats, True), "data", "got fp32", ".to(tl.int64, bitcast=True)"),
    ("ll_load_pair: 32-bit packets", on(pairs, flags, flags, False), "ll_load_pair", "got pointer<int32>", "64-bit integers"),
    ("ll_load: 32-bit packets", on(packets, flags, flags, False), "ll_load", "got pointer<int32>", "64-bit integers"),
    ("notify rank: a block", on(notify_block, flags), "rank", "block of shape [2]", "scalar"),
    ("notify_each flags: 64 bits", on(notify_each, longs, 1), "notify_each", "got pointer<int64>", "32-bit integers"),
    ("notify_each signal: a fraction", on(notify_each, flags, 1.5), "signal", "got fp32", "convert it"),
    ("ll_store: a constant of 41 bits", on(wide_constant_in_a_packet, longs), "data", "1099511627776", "32-bit data"),
    ("ll_load flag: 41 bits", on(wide_flag_of_a_packet, longs, 2**40), "flag is int64", "32-bit flag", "convert it"),
    ("sf_store: 64-bit words", on(self_flagged, flags, tl.int64, False), "sf_store", "got int64", "must be int32"),
    ("sf_store: 16-bit words", on(self_flagged, flags, tl.int16, False), "sf_store", "got int16", "must be int32"),
    ("sf_filled: floats", on(self_flagged, flags, tl.float32, True), "sf_filled", "got fp32", "bitcast=True"),
    ("prefetch: numbers", on(prefetch, flags), "prefetch", "got int32", "expected a pointer"),
    ("trace_start: an unknown event", on(record, flags, "sum"), "event", "got 'sum'", "'mma'"),
    ("print_if: a value left out", on(print_the_second, flags), "print_if", "left out", "a, then b"),
    ("st: a block", on(by_threads, flags, 1, "st"), "value", "block of shape [4]", "scalar"),
    ("atomic_add: 41 bits", on(by_threads, flags, 2**40, "add"), "atomic_add", "int64", "32-bit integer"),
    ("atomic_cas: a block", on(by_threads, flags, 1, "cas"), "value", "block of shape [4]", "scalar"),
    ("shuffle_up: 41 bits", on(by_threads, flags, 2**40, "shuffle"), "shuffle_up", "int64", "convert it"),
    ("atomic_add_per_warp: 64 bits", on(by_threads, longs, 1, "warp"), "atomic_add_per_warp", "got pointer<int64>", "32-bit"),
    ("team: a number", on(team, flags), "team_size", "got", "expected a pointer"),
]
DEVICE = [(*row, CompilationError) for row in DEVICE]
AT_RUN_TIME = [
    ("symm_at rank: not of the world", on(store_at, flags, 2), "symm_at", "rank 2", "the world has 2", DeviceFault),
    ("symm_at: not symmetric", on(store_at, lambda: torch.zeros(8, dtype=torch.int32), other), "symm_at", "in no symmetric heap",
     "create_symm_tensor", DeviceFault),
    ("symm_at: a peer's address", on(store_at, lambda: triton_dist.peer_tensor(flags(), other()), other), "symm_at", "of rank",
     "create_symm_tensor", DeviceFault),
    ("plain triton.jit", on(plain, flags), "plain", "plain triton.jit", "@triton_dist.jit", InvalidArgument),
    ("outside a kernel", lambda: dl.fence(), "fence", "inside a kernel", "only", RuntimeError),
    ("a kernel without a grid", lambda: copy(torch.ones(8), torch.ones(8), 8, 8), "@triton.jit'd", "outside",
     "kernel", RuntimeError),
]


@table(LAUNCHES + DEVICE + AT_RUN_TIME)
def test_refused_on_all_ranks(row):
    assert refused(row) == row.world

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ag_gemm and gemm_rs against float64 for whatever hypothesis thinks of: shapes, strides, dtypes, options, groups, schedules."""
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.engine.scheduler import MODES
from triton_dist.ops import ag_gemm, gemm_rs
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import resolve
from triton_dist.testing import ag_gemm_float64, assert_matches, gemm_rs_float64, poisoned, random_tensor

STRIDES = ("rows", "columns", "gaps", "offset", "one row repeated")


@dataclass(frozen=True)
class Call:
    """One call of an op; sizes as the op's own rank sees them, m rows a rank."""
    op: str
    m: int
    n: int
    k: int
    dtype: torch.dtype
    x_strides: str
    weight_strides: str
    bias: bool
    out: bool
    method: str
    hop_float: bool
    uneven: bool                   # the size that may differ between ranks does


sizes = st.one_of(st.integers(0, 9), st.sampled_from([15, 16, 17, 33, 64, 65, 70]))
calls = st.builds(Call, op=st.sampled_from(["ag_gemm", "gemm_rs"]), m=sizes, n=sizes, k=sizes,
                  dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]), x_strides=st.sampled_from(STRIDES),
                  weight_strides=st.sampled_from(STRIDES), bias=st.booleans(), out=st.booleans(),
                  method=st.sampled_from(["auto", "portable", "unfused", "ws"]), hop_float=st.booleans(), uneven=st.booleans())
worlds = st.tuples(st.integers(1, 4), st.booleans())            # ranks, and whether only a group of them calls


def laid_out(rows: int, columns: int, how: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random [rows, columns] with strides of every kind."""
    if how == "columns":
        return random_tensor(columns, rows, dtype=dtype, seed=seed).t()
    if how == "gaps":
        return random_tensor(2 * rows, 2 * columns + 3, dtype=dtype, seed=seed)[::2, 3::2]
    if how == "offset":
        return random_tensor(rows, columns + 3, dtype=dtype, seed=seed)[:, 1:columns + 1]
    if how == "one row repeated":
        return random_tensor(1, columns, dtype=dtype, seed=seed).expand(rows, columns)
    return random_tensor(rows, columns, dtype=dtype, seed=seed)


def served(call: Call) -> str:
    """The method of the call; that of the core only where it serves the dtype and the row's bytes."""
    row = call.k if call.op == "ag_gemm" else call.n
    return "auto" if call.method == "ws" and not backend().core(call.op).serves(call.dtype, row) else call.method


def begin(call: Call, group, seed: int):
    """Starts a call; returns what checks its result."""
    gather, me = call.op == "ag_gemm", 1000 * seed + group.rank
    n = call.n + (group.rank if gather and call.uneven else 0)
    k = call.k + (group.rank if not gather and call.uneven else 0)
    x = laid_out(call.m if gather else call.m * group.size, k, call.x_strides, call.dtype, me)
    weight = laid_out(n, k, call.weight_strides, call.dtype, me + 100)
    bias = random_tensor(n, dtype=call.dtype, seed=1000 * seed + 200 + group.rank * gather) if call.bias else None
    rows = call.m * group.size if gather else call.m
    out = poisoned(rows, n, dtype=call.dtype) if call.out else None
    options = {} if gather or not call.hop_float else {"hop_dtype": torch.float32}
    got = (ag_gemm if gather else gemm_rs)(x, weight, group=group, bias=bias, out=out, method=served(call), **options)

    def verify():
        assert got.shape == (rows, n) and got.dtype == call.dtype and (out is None or got is out)
        expected = (ag_gemm_float64 if gather else gemm_rs_float64)(x, weight, group, bias)
        roundings = 2 if gather else group.size + 2             # the unfused methods round the product, and with the bias again
        assert_matches(got, expected, k=max(1, k) * (1 if gather else group.size), roundings=roundings)
    return verify


def agree(world: tuple, script: list, mode: str, seed: int):
    """Runs the calls back to back on a world, or on all but its first rank, and checks each result."""
    size, part = world

    def on_rank():
        group = resolve()
        if part and size > 1:
            group = group.new_group(range(1, size))
            if group is None:
                return 0
        checks = [begin(call, group, number) for number, call in enumerate(script)]
        triton_dist.synchronize()
        for check in checks:
            check()
        return len(checks)
    assert sum(run_ranks(on_rank, size, mode=mode, seed=seed)) == len(script) * max(1, size - part)


def given_calls(examples: int):
    def decorate(test):
        test = settings(max_examples=examples, deadline=None, derandomize=True, database=None,
                        suppress_health_check=list(HealthCheck))(test)
        return given(world=worlds, script=st.lists(calls, min_size=1, max_size=4), mode=st.sampled_from(MODES),
                     seed=st.integers(0, 2**16))(test)
    return decorate


@given_calls(50)
def test_ops_agree_with_float64(world, script, mode, seed):
    agree(world, script, mode, seed)


@pytest.mark.full
@given_calls(3000)
def test_ops_agree_with_float64_at_length(world, script, mode, seed):
    agree(world, script, mode, seed)

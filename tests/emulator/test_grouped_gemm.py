# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""grouped_gemm against a loop over experts in float64: values, gradients, and arguments that are refused."""
import pytest
import torch

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import grouped_gemm
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.testing import assert_matches, poisoned, random_tensor

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
COUNTS = [5, 0, 70, 1]


def given(k, n, dtype, how, act=None, counts=COUNTS, align=8):
    """(x, weight, arguments, [(expert, its rows in the result, their rows of x)]). What is no row of an expert is NaN."""
    experts, begins = len(counts), [0]
    for count in counts:
        begins.append(begins[-1] + -(-count // align) * align)
    weight = random_tensor(experts, n * (2 if act else 1), k, dtype=dtype, seed=1) / k**0.5
    if how == "masked":
        room = max(counts) + 2
        x = poisoned(experts, room, k, dtype=dtype)
        for e, count in enumerate(counts):
            x[e, :count] = random_tensor(count, k, dtype=dtype, seed=10 + e)
        rows = [(e, slice(e * room, e * room + count), torch.arange(e * room, e * room + count))
                for e, count in enumerate(counts)]
        return x, weight, dict(counts=torch.tensor(counts)), rows
    offsets = torch.tensor(begins, dtype=torch.int32)
    told = dict(offsets=offsets, counts=torch.tensor(counts, dtype=torch.int32))
    if how == "gathered":
        x, sources = random_tensor(20, k, dtype=dtype, seed=2), torch.full((begins[-1] + 3, ), 2**30, dtype=torch.int32)
        rows = []
        for e, count in enumerate(counts):
            of = torch.randint(20, (count, ), generator=torch.Generator().manual_seed(e))
            sources[begins[e]:begins[e] + count] = of
            rows.append((e, slice(begins[e], begins[e] + count), of))
        return x, weight, dict(told, sources=sources), rows
    x = poisoned(begins[-1] + 3, k, dtype=dtype)
    rows = [(e, slice(begins[e], begins[e] + count), torch.arange(begins[e], begins[e] + count))
            for e, count in enumerate(counts)]
    for e, at, _ in rows:
        x[at] = random_tensor(counts[e], k, dtype=dtype, seed=10 + e)
    return x, weight, told, rows


def expected(x, weight, rows, act=None, scale=None):
    """{expert: its rows of the result} in float64, of leaves for gradients as well."""
    found = {}
    for e, at, of in rows:
        product = x.reshape(-1, x.shape[-1])[of].double() @ weight[e].double().t()
        if act:
            gate, up = product.chunk(2, -1)
            product = torch.nn.functional.silu(gate) * up
        found[e] = product if scale is None else product * scale.view(-1)[at].double()[:, None]
    return found


@pytest.mark.parametrize("how", ["by expert", "masked", "gathered"])
@pytest.mark.parametrize("k, n, dtype, act, weighted", [(64, 72, F16, None, False), (50, 33, BF16, None, True),
                                                        (40, 24, F32, "silu_mul", True), (1, 1, BF16, "silu_mul", False)])
def test_values(how, k, n, dtype, act, weighted):
    def script():
        x, weight, told, rows = given(k, n, dtype, how, act)
        size = len(told["sources"]) if how == "gathered" else x.shape[:-1].numel()
        scale = random_tensor(size, dtype=F32, seed=7) if weighted else None
        out = grouped_gemm(x, weight, **told, act=act, row_weights=scale).reshape(-1, n)
        triton_dist.synchronize()
        for e, wanted in expected(x, weight, rows, act, scale).items():
            assert_matches(out[rows[e][1]], wanted, k=k, roundings=2)

    run_ranks(script, 1)


def test_columns_of_the_weight_may_be_contiguous_and_counts_left_out():
    def script():
        x, weight, told, rows = given(48, 40, F16, "by expert", align=1)
        out = grouped_gemm(x, weight.transpose(1, 2).contiguous().transpose(1, 2), offsets=told["offsets"].long())
        triton_dist.synchronize()
        for e, wanted in expected(x, weight, rows).items():
            assert_matches(out[rows[e][1]], wanted, k=48)

    run_ranks(script, 1)


def test_what_was_cut_off_is_left_out():
    """offsets and counts tell of more rows than x has."""
    def script():
        x, weight, told, rows = given(32, 16, F32, "by expert")
        out = grouped_gemm(x[:40].contiguous(), weight, **told)
        triton_dist.synchronize()
        assert out.shape == (40, 16)
        assert_matches(out[8:40], expected(x, weight, rows)[2][:32], k=32)
        nothing = grouped_gemm(x[:0], weight, **told)
        assert nothing.shape == (0, 16)

    run_ranks(script, 1)


@pytest.mark.parametrize("how", ["by expert", "masked", "gathered"])
@pytest.mark.parametrize("act", [None, "silu_mul"])
def test_gradients(how, act):
    def script():
        x, weight, told, rows = given(24, 20, F32, how, act, counts=[3, 0, 19])
        x = torch.where(x.isnan(), 0.0, x)  # else they stay NaN in x's own gradient check
        size = len(told["sources"]) if how == "gathered" else x.shape[:-1].numel()
        scale = random_tensor(size, dtype=F32, seed=7)
        leaves = [t.double().requires_grad_() for t in (x, weight, scale)]
        to = random_tensor(size, 20, dtype=F32, seed=8)
        sum((part * to[rows[e][1]].double()).sum()
            for e, part in expected(leaves[0], leaves[1], rows, act, leaves[2]).items()).backward()
        mine = [t.requires_grad_() for t in (x, weight, scale)]
        out = grouped_gemm(x, weight, **told, act=act, row_weights=scale).reshape(-1, 20)
        triton_dist.synchronize()
        valid = torch.zeros(size, dtype=torch.bool)
        for _, at, _ in rows:
            valid[at] = True
        (torch.where(valid[:, None], out, 0.0) * to).sum().backward()
        triton_dist.synchronize()
        for found, wanted in zip(mine, leaves):
            assert_matches(found.grad, wanted.grad, k=64, roundings=8)

    run_ranks(script, 1)


def test_bad_arguments_are_refused_with_words():
    def script():
        x, weight, offsets = torch.ones(6, 8), torch.ones(2, 4, 8), torch.tensor([0, 3, 6])
        for says, call in (("x: expected", lambda: grouped_gemm(torch.ones(6, 7), weight, offsets=offsets)),
                           ("offsets: expected where each",
                            lambda: grouped_gemm(x, weight)), ("offsets: expected torch.int32",
                                                               lambda: grouped_gemm(x, weight, offsets=offsets[:2])),
                           ("counts: expected with rows", lambda: grouped_gemm(torch.ones(2, 3, 8), weight)),
                           ("act: expected", lambda: grouped_gemm(x, weight, offsets=offsets, act="gelu")),
                           ("weight: expected an even",
                            lambda: grouped_gemm(x, torch.ones(2, 3, 8), offsets=offsets, act="silu_mul")),
                           ("weight: expected 3 dimensions", lambda: grouped_gemm(x, weight[0], offsets=offsets)),
                           ("row_weights: expected",
                            lambda: grouped_gemm(x, weight, offsets=offsets, row_weights=torch.ones(5))),
                           ("weight: expected torch.float32", lambda: grouped_gemm(x, weight.half(), offsets=offsets))):
            with pytest.raises(InvalidArgument, match=says):
                call()

    run_ranks(script, 1)

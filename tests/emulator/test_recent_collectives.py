# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Repeated calls of collectives and gemm_ar take the short way to their plan; what differs in anything takes the long one."""
import pytest
import torch
from scenarios import captures_by_rank, capturing  # noqa: F401

from triton_dist import ops
from triton_dist.backends.emulator import run_ranks
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import all_reduce_rmsnorm_float64, assert_matches, gemm_ar_float64, poisoned, random_tensor

BF16 = torch.bfloat16
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all_single"]
N = 64                      # elements of a row: an aligned one follows another


def collective_float64(op, x, group):
    every = torch.stack([torch.tensor(values, dtype=torch.float64) for values in group.all_gather_object(x.double().tolist())])
    if op == "all_reduce":
        return every.sum(0)
    if op == "all_gather":
        return every.flatten(0, 1)
    mine = every.unflatten(1, (group.size, -1))[:, group.rank]
    return mine.sum(0) if op == "reduce_scatter" else mine.flatten(0, 1)


@pytest.mark.parametrize("place", ["none", "out", "in place"])
@pytest.mark.parametrize("op", COLLECTIVES)
def test_repeated_collectives_take_the_short_way_and_are_right(op, place, long_ways):
    def script():
        group, call = resolve(), getattr(ops, op)
        buffer = poisoned(2 * group.size, N, dtype=BF16)
        x = buffer[:2]
        for seed in range(4):
            fresh = random_tensor(2, N, dtype=BF16, seed=10 * seed + group.rank)
            reference = collective_float64(op, fresh, group)
            if place == "none":
                out = call(fresh)
            elif place == "out":
                out = call(fresh, out=poisoned(*reference.shape, dtype=BF16))
            else:                                   # x itself, or this rank's rows of the larger one
                rows = {"all_gather": 2}.get(op, reference.shape[0])
                mine = buffer[rows * group.rank:rows * (group.rank + 1)]
                x, out = {"all_gather": (mine, buffer), "reduce_scatter": (buffer[:2], buffer[group.rank:group.rank + 1])}.get(
                    op, (buffer[:2], None))
                x.copy_(fresh)
                out = call(x, out=x if out is None else out)
            assert_matches(out, reference, k=2)
    run_ranks(script, 2)
    assert long_ways == [op] * 2, "the first call on each rank"


CHANGED = {  # what follows all_gather(x, out=out), x [2, N], out of its own: x, out from a buffer of 4 rows; what is said
    "its own row": (lambda b, rank: (b[2 * rank:2 * rank + 2], b), ""),
    "another's row": (lambda b, rank: (b[2 - 2 * rank:4 - 2 * rank], b), "out: must not overlap x"),
    "in between": (lambda b, rank: (b[1:3], b), "out: must not overlap x"),
    "out of other rows": (lambda b, rank: (b[:2], b[:2]), "out: expected shape"),
    "another dtype": (lambda b, rank: (b[:2].clone().half(), b.half()), ""),
    "out of another dtype": (lambda b, rank: (b[:2].clone(), b.half()), "out: expected torch.bfloat16"),
    "no tensor": (lambda b, rank: (None, None), "x: expected a torch.Tensor, found NoneType"),
    "negated": (lambda b, rank: (torch._neg_view(b[:2].clone()), b), "resolve_neg"),
    "columns": (lambda b, rank: (b[:2].clone().t().contiguous().t(), b), ""),
    "an odd address": (lambda b, rank: (b.clone().flatten()[1:1 + 2 * N].view(2, N), b), ""),
    "x that wants a gradient": (lambda b, rank: (b[:2].clone().requires_grad_(), b), "x: requires grad"),
}


@pytest.mark.parametrize("change, says", CHANGED.values(), ids=CHANGED)
def test_a_collective_that_differs_is_looked_at_in_full(change, says, long_ways):
    def script():
        group = resolve()
        x = random_tensor(2, N, dtype=BF16, seed=group.rank)
        for _ in range(2):
            ops.all_gather(x, out=poisoned(4, N, dtype=BF16))
        group.barrier()
        long_ways.clear()
        group.barrier()
        x, out = change(random_tensor(4, N, dtype=BF16, seed=5 + group.rank), group.rank)
        if says:
            with pytest.raises(InvalidArgument, match=says):
                ops.all_gather(x, out=out)
        else:
            reference = collective_float64("all_gather", x, group)
            assert torch.equal(ops.all_gather(x, out=out).double(), reference)
        assert long_ways
    run_ranks(script, 2)


def test_places_methods_and_groups_of_one_shape_are_told_apart(long_ways):
    def script():
        world, x = resolve(), random_tensor(4, N, dtype=BF16, seed=1)
        half = world.new_group([world.rank // 2 * 2, world.rank // 2 * 2 + 1])
        for _ in range(3):
            for given in (dict(), dict(out=poisoned(4, N, dtype=BF16)), dict(method="push"), dict(group=half)):
                assert_matches(ops.all_reduce(x, **given), x.double() * (2 if "group" in given else 4), k=4)
            mine = x.clone()
            ops.all_reduce(mine, out=mine)
            assert_matches(mine, x.double() * 4, k=4)
    run_ranks(script, 4)
    assert len(long_ways) == 4 * 5


GIVEN = {"bias": ["bias"], "residual": ["residual"], "both": ["bias", "residual"], "in place": ["residual", "out"], "none": []}


@pytest.mark.parametrize("method", ["packets", "unfused"])
def test_what_a_gemm_ar_is_given_is_told_apart(method, long_ways):
    """A bias of [N] and a residual of [1, N] differ in nothing else."""
    def script():
        group = resolve()
        w, bias = random_tensor(N, 32, dtype=BF16, seed=group.rank), random_tensor(N, dtype=BF16, seed=7)
        for seed in range(3):
            x = random_tensor(1, 32, dtype=BF16, seed=10 + seed + group.rank)
            for names in GIVEN.values():
                residual = random_tensor(1, N, dtype=BF16, seed=seed)
                all_given = dict(bias=bias, residual=residual, out=residual)
                given = {name: all_given[name] for name in names}
                reference = gemm_ar_float64(x, w, group, given.get("bias"), given.get("residual"))
                assert_matches(ops.gemm_ar(x, w, method=method, **given), reference, k=64, roundings=4)
    run_ranks(script, 2)
    assert long_ways.count("gemm_ar") == 2 * len(GIVEN)


def test_a_sum_in_place_of_the_residual_allows_none_in_place_of_x():
    """Tensors at other addresses, all of one shape, as many of them."""
    def script():
        def given(seed):
            return [random_tensor(N, N, dtype=BF16, seed=seed + i) for i in range(3)]
        x, weight, residual = given(0)
        ops.gemm_ar(x, weight, residual=residual, out=residual)
        other, weight, residual = given(3)
        with pytest.raises(InvalidArgument, match="out: must not overlap x"):
            ops.gemm_ar(other, weight, residual=residual, out=other)
    run_ranks(script, 2)


NORMED = {"residual": ["residual"], "bias": ["bias"], "both": ["bias", "residual"], "in place": ["residual", "residual_out"],
          "out": ["out"], "residual_out": ["residual_out"], "none": []}


@pytest.mark.parametrize("method", ["one_shot", "unfused"])
def test_what_a_norm_is_given_is_told_apart(method, long_ways):
    """x, weight, bias and residual, all of one shape, differ in nothing else."""
    def script():
        group = resolve()
        weight, bias = random_tensor(N, dtype=BF16, seed=6), random_tensor(N, dtype=BF16, seed=7)
        for seed in range(3):
            x = random_tensor(N, dtype=BF16, seed=10 + seed + group.rank)
            for what, names in NORMED.items():
                for eps in (1e-6, 0.5):
                    residual = random_tensor(N, dtype=BF16, seed=seed)
                    apart = poisoned(N, dtype=BF16)
                    every = dict(bias=bias, residual=residual, out=apart, residual_out=residual if what == "in place" else apart)
                    given = {name: every[name] for name in names}
                    norm, total = all_reduce_rmsnorm_float64(x, weight, group, given.get("bias"), given.get("residual"), eps)
                    found = ops.all_reduce_rmsnorm(x, weight, eps=eps, method=method, **given)
                    assert_matches(found[0], norm, k=N, roundings=6)
                    assert_matches(found[1], total, k=2, roundings=4)
    run_ranks(script, 2)
    assert long_ways.count("all_reduce_rmsnorm") == 2 * 2 * len(NORMED)


def test_splits_are_no_part_of_a_call(long_ways):
    def script():
        group, x = resolve(), random_tensor(8, N, dtype=BF16, seed=resolve().rank)
        for splits in ([3, 4], [0, 8], [1, 1]):
            kept = torch.tensor(splits)
            for given in (dict(), dict(capacity=17), dict(out=poisoned(16, N, dtype=BF16)),
                          dict(out_splits_offsets=torch.zeros(2, 2, dtype=torch.int64))):
                out, told = ops.all_to_all_vdev(x, kept, **given)
                assert told.tolist() == [[splits[group.rank]] * 2, [0, splits[group.rank]]]
                count, begin = splits[group.rank], sum(splits[:group.rank])
                assert torch.equal(out[told[1, group.rank]:][:count], x[begin:begin + count])
    run_ranks(script, 2)
    assert long_ways.count("all_to_all_vdev") == 4 * 2, "what was given, once on each rank"


@pytest.mark.usefixtures("captures_by_rank")
def test_a_known_call_that_graphs_cannot_hold_is_refused_in_one(long_ways, compares_nothing):
    def script():
        group, x = resolve(), random_tensor(4, N, dtype=BF16, seed=1)
        splits = torch.full((group.size,), 2)
        for _ in range(3):
            ops.all_to_all_vdev(x, splits, method="unfused")
        with capturing(), pytest.raises(InvalidArgument, match="graph capture needs 'push'"):
            ops.all_to_all_vdev(x, splits, method="unfused")
    run_ranks(script, 2)
    assert len(long_ways) == 2 * 2, "the first call, and the captured one"


def test_a_group_that_is_gone_is_not_known_any_more(long_ways, compares_nothing, monkeypatch):
    def script():
        world, x = resolve(), random_tensor(4, N, dtype=BF16, seed=1)
        half, usable = world.new_group([0, 1]), [True]
        monkeypatch.setattr(half, "usable_in", lambda present: usable[0], raising=False)
        for _ in range(2):
            ops.all_reduce(x, group=half)
        usable[0] = False
        with pytest.raises(InvalidArgument, match="has been destroyed"):
            ops.all_reduce(x, group=half)
    run_ranks(script, 2)
    assert len(long_ways) == 2


def test_ranks_that_repeat_different_collectives_are_told():
    def script():
        group, x = resolve(), random_tensor(2, N, dtype=BF16, seed=1)
        for op in (ops.all_reduce, ops.all_to_all_single):
            op(x)
        (ops.all_reduce if group.rank else ops.all_to_all_single)(x)
    with pytest.raises(InvalidArgument, match="ranks disagree"):
        run_ranks(script, 2)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dtypes and reductions of the collectives: elements that are moved may be of any dtype, those that are reduced of many."""
import pytest
import torch
import torch.distributed as dist

from triton_dist import ops
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve

MOVED = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float64, torch.float8_e4m3fn,
         torch.float8_e5m2, torch.complex64, torch.complex128, torch.bfloat16]
REDUCED = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64]
SOME = [pytest.param(dtype, marks=[pytest.mark.full][:dtype not in (torch.bool, torch.bfloat16, torch.int32, torch.float64)])
        for dtype in MOVED]
OPS = ["sum", "avg", "max", "min"]


def random_bytes(*shape, dtype, seed):
    """Elements of random bits: NaNs of every kind among them, which a move must keep."""
    values = torch.randint(0, 256, (*shape, dtype.itemsize), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    values = values & 1 if dtype is torch.bool else values
    return values.view(dtype).reshape(shape)


def same_bits(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    return torch.equal(found.contiguous().view(-1).view(torch.uint8), expected.contiguous().view(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", SOME, ids=str)
def test_moves_keep_every_bit(dtype):
    """Odd and even sizes, tensors with gaps, in place, and each method."""
    def script():
        group = resolve()
        for n, method in ((5, "one_shot"), (5, "push"), (24, "one_shot"), (24, "push"), (3, "unfused"), (3, "auto")):
            every = [random_bytes(group.size * 2, n, dtype=dtype, seed=n + rank) for rank in range(group.size)]
            x = every[group.rank]
            assert same_bits(ops.all_gather(x, method=method), torch.cat(every))
            swapped = torch.cat([other[2 * group.rank:2 * group.rank + 2] for other in every])
            assert same_bits(ops.all_to_all_single(x, method=method), swapped)
            gaps = torch.stack([x, x], -1)[..., 0]
            assert not gaps.is_contiguous() and same_bits(ops.all_to_all_single(gaps, method=method), swapped)
            mine = x.clone()
            assert ops.all_to_all_single(mine, out=mine, method=method) is mine and same_bits(mine, swapped)
        splits = [2, 1, 3]
        every = [random_bytes(6, 7, dtype=dtype, seed=rank) for rank in range(3)]
        expected = torch.cat([other.split(splits)[group.rank] for other in every])
        listed = ops.all_to_all_single(every[group.rank], output_split_sizes=[splits[group.rank]] * 3, input_split_sizes=splits)
        assert same_bits(listed, expected)
        for method in ("push", "unfused"):
            out, told = ops.all_to_all_vdev(every[group.rank], torch.tensor(splits), method=method)
            assert same_bits(out[:len(expected)], expected) and told[0].tolist() == [splits[group.rank]] * 3
    run_ranks(script, 3)


def expected_of(every, op):
    """In float64, or in integers, which wrap."""
    if every[0].dtype.is_floating_point:
        every = [x.double() for x in every]
    stacked = torch.stack(every)
    if op in ("max", "min"):
        return getattr(stacked, f"a{op}")(0)
    total = stacked.sum(0)
    if op == "sum":
        return total
    return total / len(every) if total.is_floating_point() else total.div(len(every), rounding_mode="trunc")


def close(found, expected, op):
    if op in ("max", "min") or not found.dtype.is_floating_point:
        return torch.equal(found.to(expected.dtype), expected)
    unit = torch.finfo(found.dtype).eps
    return bool(((found.double() - expected).abs() <= 4 * unit * (expected.abs() + 1)).all())


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype, world", [*((dtype, 3) for dtype in REDUCED), (torch.float32, 2), (torch.int32, 2)], ids=str)
def test_reductions(dtype, op, world):
    """Of 3 ranks, kernels have a lane that no rank fills: its value must not count, nor where all terms are negative."""
    def script():
        group, reduce_op = resolve(), getattr(dist.ReduceOp, op.upper())
        for n in (1, 38):
            seeds = [torch.Generator().manual_seed(world * n + rank) for rank in range(world)]
            every = [torch.randn(world, n, generator=seed) - 3 for seed in seeds]
            every = [(x * 2**20).to(dtype) if not dtype.is_floating_point else x.to(dtype) for x in every]
            x, expected = every[group.rank], expected_of(every, op)
            for method in ("one_shot", "two_shot", "push", "unfused", "auto"):
                whole = ops.all_reduce(x, op=op, method=method)
                assert whole.dtype == dtype and close(whole, expected, op), (method, n)
                for other in group.all_gather_object(whole):
                    assert same_bits(whole, other)
            for method in ("one_shot", "push", "unfused", "auto"):
                rows = ops.reduce_scatter(x, op=reduce_op, method=method)
                assert close(rows, expected[group.rank:group.rank + 1], op), (method, n)
    run_ranks(script, world)


def test_integers_wrap_and_the_least_of_them_counts():
    def script():
        rank = resolve().rank
        for dtype in (torch.int32, torch.int64):
            least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
            x = torch.tensor([most, least, -7, 2 * rank - 3], dtype=dtype)
            for method in ("one_shot", "two_shot", "push", "unfused"):
                assert ops.all_reduce(x, method=method).tolist() == [most - 2, least, -21, -3]
                assert ops.all_reduce(x, op="max", method=method).tolist() == [most, least, -7, 1]
                assert ops.all_reduce(x, op="min", method=method).tolist() == [most, least, -7, -3]
                assert ops.all_reduce(x[2:], op="avg", method=method).tolist() == [-7, -1]
    run_ranks(script, 3)


def test_a_nan_stays_and_an_average_does_not_overflow():
    def script():
        rank = resolve().rank
        nan = torch.tensor([float("nan") if rank == 1 else 1.0, float("-inf"), -0.5 - rank])
        for method in ("one_shot", "two_shot", "push"):
            for op, last in (("max", -0.5), ("min", -2.5)):
                found = ops.all_reduce(nan, op=op, method=method).tolist()
                assert found[0] != found[0] and found[1:] == [float("-inf"), last]
        large = torch.full((9,), 60000.0, dtype=torch.float16)
        for method in ("one_shot", "two_shot", "push", "unfused"):
            assert bool(((ops.all_reduce(large, op="avg", method=method) - 60000).abs() <= 32).all())
        assert bool(torch.isinf(ops.all_reduce(large)).all())
    run_ranks(script, 3)


def test_what_kernels_do_not_reduce_goes_to_the_library():
    def script():
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.complex64):
            x = torch.tensor([1, 2, 3], dtype=dtype)
            assert torch.equal(ops.all_reduce(x), 2 * x)
            with pytest.raises(InvalidArgument, match=f"kernels reduce no {dtype}; use 'auto' or 'unfused'"):
                ops.all_reduce(x, method="push")
    run_ranks(script, 2)

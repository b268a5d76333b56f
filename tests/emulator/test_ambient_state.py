# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A call may be wrapped in any state of torch: it works or is refused, and calls after it work."""
import warnings

import pytest
import torch
import triton.language as tl
from ambient_states import CASES, REFUSED, SERVED, drawn

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import ag_gemm, all_reduce, gemm_ar, gemm_rs
from triton_dist.runtime import ambient
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.state import state

WORLD = 2


@triton_dist.jit
def double(x, out):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)
    twice = (tl.arange(0, 16)[:, None] == tl.arange(0, 16)).to(tl.float32) * 2
    tl.store(out + at, tl.dot(tl.load(x + at), twice, input_precision="ieee"))


def cases_of(seed):
    world = state().world
    return {name: make(seed, world.rank, world.size, 0) for name, make in CASES.items()}


def size_of(name):
    """Levels of forward-mode AD belong to the process, so two virtual ranks cannot be in one each."""
    return 1 if "dual" in name or "jvp" in name or "forward-mode" in name else WORLD


OFTEN = ("side stream", "inference_mode, autocast, default device")             # the rest under --full


@pytest.mark.parametrize("name", [
    name if name in OFTEN else pytest.param(name, marks=pytest.mark.full) for name in SERVED])
def test_a_first_call_in_any_state_is_right_and_so_are_later_ones(name):
    def ranks():
        for op, case in cases_of(1).items():
            got = SERVED[name](case.run, case.x)
            case.check(got)
            assert case.gemm or got.dtype == torch.float32, op
            if case.gemm:
                assert got.dtype == (torch.bfloat16 if "autocast" in name else torch.float32), op
            case.check(case.run(case.x))
            case.check(SERVED[name](case.run, case.x))
            again = CASES[op](2, state().world.rank, state().world.size, 1)           # another shape: buffers grow
            again.check(again.run(again.x))
    run_ranks(ranks, size_of(name))


@pytest.mark.parametrize("warm", [False, True], ids=["first", "repeated"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_call_cannot_honour_is_refused_and_harms_nothing(name, warm):
    def ranks():
        for op, case in cases_of(3).items():
            if op == "create_symm_tensor" and name == "forward-mode AD":
                continue                                                    # takes no tensor
            if op == "create_symm_tensor" and name == "func.grad":
                continue                                                    # so its result has no gradient
            if warm:
                case.check(case.run(case.x))
            with pytest.raises(InvalidArgument, match="was called"):
                REFUSED[name](case.run, case.x)
            case.check(case.run(case.x))
    run_ranks(ranks, size_of(name))


@pytest.mark.parametrize("op", [ag_gemm, gemm_rs, gemm_ar])
def test_autocast_is_followed_as_a_linear_layer_does(op):
    """Whatever dtypes come in, among them two different ones, and however autocast's dtype changes between calls."""
    def ranks():
        rank = state().world.rank
        x, weight, bias = drawn(4, rank, 8, 16), drawn(5, rank, 8, 16), drawn(6, 0, 8)
        plain = op(x, weight, bias=bias)
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            with torch.autocast("cpu", dtype=dtype):
                linear = torch.nn.functional.linear(x, weight, bias)
                for args in ((x, weight, bias), (x.half(), weight, bias.bfloat16())):
                    got = op(*args[:2], bias=args[2])
                    assert got.dtype == linear.dtype == dtype and torch.equal(got.float(), plain)
                out = torch.full_like(got, torch.nan)
                assert op(x, weight, bias=bias, out=out) is out and torch.equal(out.float(), plain)
                with pytest.raises(InvalidArgument, match="out: expected torch.*16"):
                    op(x, weight, bias=bias, out=torch.empty_like(plain))
                with torch.autocast("cpu", enabled=False):
                    assert op(x, weight, bias=bias).dtype == torch.float32
            assert op(x, weight, bias=bias).dtype == torch.float32
    run_ranks(ranks, WORLD)


def test_collectives_keep_their_dtype_under_autocast():
    def ranks():
        x = drawn(7, state().world.rank, 4, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert all_reduce(x).dtype == torch.float32
            assert all_reduce(x.half()).dtype == torch.float16
    run_ranks(ranks, WORLD)


def test_kernels_do_not_see_the_autocast_of_their_host():
    """A product in the emulator is torch's; under autocast it would be rounded to bfloat16."""
    def ranks():
        x, out = torch.full((16, 16), 1.001), torch.empty(16, 16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            double[(1,)](x, out)
        assert torch.equal(out, 2 * x)
    run_ranks(ranks, 1)


def test_outputs_of_inference_mode_are_not_written_to_outside():
    def ranks():
        x = torch.ones(4)
        with torch.inference_mode():
            out = all_reduce(x)
            assert out.is_inference() and all_reduce(x, out=out) is out
        with pytest.raises(InvalidArgument, match="inference"):
            all_reduce(x, out=out)
        assert all_reduce(out).tolist() == [4.0] * 4
    run_ranks(ranks, WORLD)


def test_a_clean_state_is_clean_and_is_undone():
    with torch.inference_mode(), torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        with ambient.clean():
            t = torch.ones(2, 2, dtype=torch.float32)
            assert not t.is_inference() and t.device.type == "cpu" and (t @ t).dtype == torch.float32
            assert not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled() and torch.empty(1).device.type == "meta"
        assert torch.is_autocast_enabled("cpu")
    with pytest.raises(KeyError), ambient.clean():
        raise KeyError
    assert torch.is_grad_enabled()


def test_a_default_device_changes_nothing_in_initialisation():
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run_ranks(lambda: triton_dist.create_symm_tensor((2,), torch.float32).tolist(), WORLD)
    assert found == [[0.0, 0.0]] * WORLD

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Calls that repeat others take the short way to their plan; what differs in anything takes the long one."""
import gc
import weakref
from types import SimpleNamespace

import pytest
import remembered
import torch

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.ops import OPS, ag_gemm, gemm_rs
from triton_dist.ops.calls import record
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.testing import ag_gemm_float64, assert_matches, gemm_rs_float64, poisoned, random_tensor

M = N = K = 32
BF16 = torch.bfloat16


def tensor(*shape, seed=0, dtype=BF16):
    return random_tensor(*shape, dtype=dtype, seed=seed)


@pytest.mark.parametrize("method", ["portable", "unfused"])
@pytest.mark.parametrize("extra", [(), ("out",), ("bias",), ("bias", "out")], ids="+".join)
def test_repeated_calls_take_the_short_way_and_are_right(method, extra, long_ways):
    def script():
        group = resolve()
        w, b = tensor(N, K, seed=group.rank), tensor(N, seed=9) if "bias" in extra else None
        for seed in range(4):
            x, tall = tensor(M, K, seed=seed), tensor(2 * M, K, seed=seed)
            out = {"out": poisoned(2 * M, N, dtype=BF16)} if "out" in extra else {}
            assert_matches(ag_gemm(x, w, bias=b, method=method, **out), ag_gemm_float64(x, w, group, b), k=K)
            out = {"out": poisoned(M, N, dtype=BF16)} if "out" in extra else {}
            assert_matches(gemm_rs(tall, w, bias=b, method=method, **out), gemm_rs_float64(tall, w, group, b), k=2 * K,
                           roundings=3)
    run_ranks(script, 2)
    gemms = [op for op in long_ways if "gemm" in op]            # the collectives of unfused ones are calls of their own
    assert len(gemms) == 4, "the first call of each op on each rank"


def test_on_any_stream_repeated_calls_take_the_short_way(long_ways, monkeypatch):
    """On another one than the default a call may be the warm-up before a capture. What that needs is made at the first call."""
    monkeypatch.setattr(EmulatorBackend, "warms_up", lambda self: True)

    def script():
        group = resolve()
        w = tensor(N, K, seed=group.rank)
        for seed in range(4):
            x, tall = tensor(M, K, seed=seed), tensor(2 * M, K, seed=seed)
            assert_matches(ag_gemm(x, w, method="portable"), ag_gemm_float64(x, w, group), k=K)
            assert_matches(gemm_rs(tall, w, method="portable"), gemm_rs_float64(tall, w, group), k=2 * K, roundings=3)
        for op in (OPS["ag_gemm"], OPS["gemm_rs"]):
            plans = [plan for record in state().records[op].values() for plan in record.plans.values()]
            assert all(plan.captured is not False or plan.prepared for plan in plans)
    run_ranks(script, 2)
    assert sorted(long_ways) == ["ag_gemm"] * 2 + ["gemm_rs"] * 2


CHANGED = {  # what is called after ag_gemm(x, weight, bias, out) was: options over these; what is said, "" where it is right
    "another dtype": (lambda t: dict(x=t["x"].half(), weight=t["weight"].half(), bias=None, out=None), ""),
    "dtypes that differ": (lambda t: dict(x=t["x"].half()), "weight: expected torch.float16"),
    "another layout of x": (lambda t: dict(x=t["x"].t().contiguous().t()), ""),
    "another layout of out": (lambda t: dict(out=poisoned(N, M, dtype=BF16).t()), "out: expected a contiguous tensor"),
    "more rows": (lambda t: dict(x=tensor(2 * M, K, seed=3), out=None), ""),
    "rows that do not fit out": (lambda t: dict(x=tensor(2 * M, K, seed=3)), "out: expected shape"),
    "no bias": (lambda t: dict(bias=None), ""),
    "a vector to write to": (lambda t: dict(bias=None, out=t["bias"]), "out: expected 2 dimensions"),
    "out over x": (lambda t: dict(out=t["x"]), "out: must not overlap x"),
    "out over weight": (lambda t: dict(out=t["weight"]), "out: must not overlap weight"),
    "an odd address": (lambda t: dict(x=torch.cat([t["x"].flatten(), t["x"][0]])[1:1 + M * K].view(M, K)), ""),
    "negated memory": (lambda t: dict(x=torch._neg_view(t["x"])), "resolve_neg"),
    "a gradient": (lambda t: dict(x=t["x"].clone().requires_grad_()), "x: requires grad"),
    "no tensor": (lambda t: dict(x=[1.0]), "x: expected a torch.Tensor, found list"),
    "no weight": (lambda t: dict(weight=None), "weight: expected a torch.Tensor, found NoneType"),
    "no memory": (lambda t: dict(x=t["x"].to("meta")), "x: expected a tensor on cpu"),
    "another method": (lambda t: dict(method="unfused"), ""),
    "an unknown method": (lambda t: dict(method="fast"), "method: expected one of"),
    "no group": (lambda t: dict(group=7), "group: expected None"),
}


@pytest.mark.parametrize("change, says", CHANGED.values(), ids=CHANGED)
def test_a_call_that_differs_is_looked_at_in_full(change, says, long_ways):
    def script():
        group = resolve()
        given = dict(x=tensor(M, K), weight=tensor(N, K, seed=1), bias=tensor(N, seed=2), out=poisoned(M, N, dtype=BF16),
                     method="portable", group=None)
        ag_gemm(**given)
        ag_gemm(**given)
        long_ways.clear()
        given |= change(given)
        if says:
            with pytest.raises(InvalidArgument, match=says):
                ag_gemm(**given)
        else:
            out = ag_gemm(**given)
            assert_matches(out, ag_gemm_float64(given["x"], given["weight"], group, given["bias"]), k=K, roundings=2)
            assert long_ways
    run_ranks(script, 1)


def test_a_weight_that_wants_a_gradient_has_one_once_gradients_are_on(compares_nothing):
    def script():
        x, w = tensor(M, K), tensor(N, K, seed=1).requires_grad_()
        with torch.no_grad():
            assert not ag_gemm(x, w).requires_grad
            assert not ag_gemm(x, w).requires_grad
        assert ag_gemm(x, w).requires_grad
    run_ranks(script, 1)


def test_hop_dtype_and_tf32_are_part_of_a_call(long_ways, compares_nothing, monkeypatch):
    def script():
        x, w = tensor(2 * M, K, dtype=torch.float16), tensor(N, K, dtype=torch.float16)
        for hop in (None, None, torch.float32, None):
            gemm_rs(x, w, hop_dtype=hop, method="portable")
    run_ranks(script, 2)
    assert len(long_ways) == 4, "each hop_dtype once on each rank"
    long_ways.clear()

    def other():
        x, w = tensor(M, K, dtype=torch.float32), tensor(N, K, dtype=torch.float32)
        for allowed in (False, False, True):
            monkeypatch.setattr(EmulatorBackend, "allow_tf32", lambda self, allowed=allowed: allowed)
            ag_gemm(x, w, method="portable")
        return sorted({plan.call.options["PRECISION"] for plan in remembered.plans()})
    assert run_ranks(other, 1) == [["ieee", "tf32"]] and len(long_ways) == 2


def test_buffers_that_have_moved_are_seen(long_ways):
    def script():
        group = resolve()
        small, large, w = tensor(8, K), tensor(2048, K, seed=5), tensor(N, K, seed=group.rank)
        for x in (small, small, large, small, small):
            assert_matches(ag_gemm(x, w, method="portable"), ag_gemm_float64(x, w, group), k=K)
    run_ranks(script, 2)
    assert len(long_ways) == 6


def test_ranks_that_repeat_different_calls_are_told():
    def script():
        group = resolve()
        x, w = tensor(M, K), tensor(N, K)
        ag_gemm(x, w)
        gemm_rs(x, w)
        (ag_gemm if group.rank else gemm_rs)(x, w)
    with pytest.raises(InvalidArgument, match="ranks disagree"):
        run_ranks(script, 2)


def test_a_call_after_a_refused_one_is_agreed_on():
    def script():
        x, w = tensor(M, K), tensor(N, K)
        ag_gemm(x, w)
        if resolve().rank == 0:
            with pytest.raises(InvalidArgument):
                ag_gemm(x, w[:, :8])
        ag_gemm(x, w)
    with pytest.raises((CollectiveMismatch, InvalidArgument), match="ranks disagree|refused"):
        run_ranks(script, 2)


def test_a_call_refused_by_all_ranks_is_followed_by_one_that_is_looked_at(long_ways, compares_nothing):
    """Ranks agree on the next one, and go on."""
    def script():
        group, x, w = resolve(), tensor(M, K), tensor(N, K)
        for _ in range(3):
            ag_gemm(x, w, method="portable")
        with pytest.raises(InvalidArgument):
            ag_gemm(x, w[:, :8])
        refused = set(state().refused)
        for _ in range(3):
            assert_matches(ag_gemm(x, w, method="portable"), ag_gemm_float64(x, w, group), k=K)
        assert refused == {group.key} and not state().refused
        return state().calls[group.key]
    assert run_ranks(script, 2) == [[7], [7]]
    assert len(long_ways) == 2 * 3, "the first, the refused one and the one behind it"


def test_weights_of_one_shape_are_one_call_and_of_two_shapes_two(long_ways):
    def script():
        group, x = resolve(), tensor(M, K)
        for layer in range(4):
            for n in (N, 2 * N):
                w = tensor(n, K, seed=layer)
                assert_matches(ag_gemm(x, w, method="portable"), ag_gemm_float64(x, w, group), k=K)
    run_ranks(script, 1)
    assert len(long_ways) == 2


def test_addresses_without_end_are_forgotten_in_time(long_ways, monkeypatch):
    monkeypatch.setattr(record, "MOST", 4)

    def script():
        kept, w = [tensor(M, K, seed=seed) for seed in range(9)], tensor(N, K)
        for x in (*kept, *kept):
            assert_matches(ag_gemm(x, w, method="portable"), ag_gemm_float64(x, w, resolve()), k=K)
            assert all(len(found.known) <= 4 for found in remembered.records())
    run_ranks(script, 1)
    assert 1 < len(long_ways) < 18


def test_groups_are_told_apart(long_ways):
    def script():
        world, x, w = resolve(), tensor(M, K), tensor(N, K)
        half = world.new_group([world.rank // 2 * 2, world.rank // 2 * 2 + 1])
        for group in (world, half, half, None, world):
            assert ag_gemm(x, w, group=group, method="portable").shape[0] == M * (2 if group is half else 4)
    run_ranks(script, 4)
    assert len(long_ways) == 4 * 3, "world, half and None, once on each rank"


def test_tensors_are_not_kept_alive():
    def script():
        x, w = tensor(M, K), tensor(N, K)
        ag_gemm(x, w, method="portable")
        triton_dist.synchronize()
        gone = weakref.ref(x)
        del x
        gc.collect()
        assert gone() is None
    run_ranks(script, 1)


def test_without_torchs_guards_every_call_takes_the_long_way(long_ways, monkeypatch):
    """And so where they have become something else."""
    assert record._trusted()
    monkeypatch.setattr(record, "TensorGuards", None)
    assert not record._trusted()
    for wrong in (lambda *tensors, **sizes: None, lambda *tensors, **sizes: SimpleNamespace(check=lambda t: True)):
        monkeypatch.setattr(record, "TensorGuards", wrong)
        assert not record._trusted()
    monkeypatch.setattr(record, "_TRUSTED", False)

    def script():
        x, w = tensor(M, K), tensor(N, K)
        for _ in range(3):
            assert_matches(ag_gemm(x, w), ag_gemm_float64(x, w, resolve()), k=K)
    run_ranks(script, 2)
    assert len(long_ways) == 6

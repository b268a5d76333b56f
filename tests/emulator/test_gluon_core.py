# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The Hopper core, unedited, in virtual worlds: values in every mode, in calls with no barrier between."""
from unittest import mock

import pytest
import torch
from gluon_core import AG, BF16, BLOCK_K, F16, F32, RS, STEPS, back_to_back, small_core

from triton_dist.backends.emulator.engine.scheduler import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.cores.hopper import cores
from triton_dist.ops.calls import checks

pytestmark = pytest.mark.usefixtures("small_core")


def depth(steps):
    """A K of that many blocks, ragged where it can be."""
    return steps * BLOCK_K - (8 if steps in (1, 2, 5) else 0)


@pytest.mark.one
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_gemm_rs(world, mode):
    """All depths of K, hops in bf16, fp16 and fp32, with and without bias, ragged m and n, from call to call."""
    calls = []
    for i, steps in enumerate(STEPS):
        dtype, hop = [(BF16, None), (F16, None), (BF16, F32), (F16, F32)][i % 4]
        calls.append(RS([70, 64, 8][i % 3], [40, 24, 32][i % 3], depth(steps), dtype, bias=i % 2 == 0, hop_dtype=hop))
    for seed in range(2):
        run_ranks(back_to_back, world, calls[seed:] + calls[:seed], mode=mode, seed=seed, num_sms=2)


@pytest.mark.one
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_ag_gemm(world, mode):
    calls = [AG([130, 64, 72][i % 3], [40, 24, 32][i % 3], depth(steps), [BF16, F16][i % 2], bias=i % 2 == 0)
             for i, steps in enumerate(STEPS[1:])]
    for seed in range(2 if world < 4 else 1):               # 2 SMs a rank, or so many that narrow tiles are a wave
        run_ranks(back_to_back, world, calls[seed:] + calls[:seed], mode=mode, seed=seed, num_sms=2 + 3 * (1 - seed))


@pytest.mark.one
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("mode", MODES)
def test_gemm_rs_repeated(steps, mode):
    """Four calls of one shape, one rank slower than the others."""
    for hop in (None, F32):
        run_ranks(back_to_back, 2, [RS(100, 40, depth(steps), hop_dtype=hop)] * 4, slow=1, mode=mode, seed=steps, num_sms=1)


@pytest.mark.parametrize("steps", STEPS[1:])
@pytest.mark.parametrize("mode", MODES)
def test_ag_gemm_repeated(steps, mode):
    run_ranks(back_to_back, 2, [AG(100, 40, depth(steps))] * 4, slow=0, mode=mode, seed=steps, num_sms=1)


@pytest.mark.parametrize("mode", MODES)
def test_gemm_rs_with_a_k_of_its_own_on_each_rank(mode):
    calls = [RS(40, 24, lambda rank: depth(STEPS[(rank + i) % 3]), bias=True) for i in range(3)]
    run_ranks(back_to_back, 3, calls, mode=mode, seed=1, num_sms=2)


@pytest.mark.one
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", MODES)
def test_gemm_rs_whose_last_two_steps_alternate(world, mode, monkeypatch):
    """On all ranks, or only on those whose K is small: each waits for tiles that others send in an order of their own."""
    mixed = []
    monkeypatch.setattr(cores, "MARGIN", 8)
    monkeypatch.setattr(cores, "_pace", lambda *given, real=cores._pace: mixed.append(real(*given)[1]) or real(*given))
    uneven = RS(200, 24, lambda rank: depth([1, 30][rank % 2]))
    calls = [RS(130, 40, depth(2)), uneven, RS(200, 24, depth(3), bias=True), uneven]
    for sms in (1, 3):
        run_ranks(back_to_back, world, calls, slow=1 % world, mode=mode, seed=sms, num_sms=sms)
    assert any(mixed) == (world > 1) and 0 in mixed


class AGOfColumns(AG):
    columns = True


class RSOfColumns(RS):
    columns = True


@pytest.mark.one
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("mode", MODES)
def test_weights_with_contiguous_columns(mode, world):
    """As a backward pass has them: read as they are, in turn with weights of contiguous rows; the sums have the same bits."""
    calls = [kind([70, 64][i % 2], [40, 24, 32][i % 3], depth(steps), [BF16, F16][i % 2], bias=i % 2 == 0)
             for i, steps in enumerate(STEPS[1:]) for kind in (AGOfColumns, AG, RSOfColumns, RS)]
    def unchanged(t):
        assert t.stride(1) == 1, "a copy"
        return t
    with mock.patch.object(checks, "rows_contiguous", unchanged):
        run_ranks(back_to_back, world, calls, mode=mode, seed=1, num_sms=3)


def test_same_bits_in_every_schedule():
    calls = [RS(70, 40, 72, bias=True), RS(70, 40, 24, F16)]
    first = run_ranks(back_to_back, 2, calls, mode="eager")
    for mode in MODES[1:]:
        for rank, results in enumerate(run_ranks(back_to_back, 2, calls, mode=mode, seed=3)):
            assert all(torch.equal(x, y) for x, y in zip(results, first[rank]))


def test_ws_and_portable_ranks_in_one_call():
    """A rank whose K is zero runs the portable kernel, on the slots and flags of the core."""
    from unittest import mock

    from triton_dist.cores.hopper import cores
    with mock.patch.object(cores, "tma_can_read", lambda *tensors: all(t.numel() for t in tensors)):
        for mode in MODES:
            run_ranks(back_to_back, 2, [RS(70, 40, lambda rank: 48 * rank)] * 3, mode=mode, seed=2)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""grouped_gemm on the Hopper core, unedited, against a loop over experts in float64."""
import pytest
import torch
from test_grouped_gemm import BF16, F16, F32, expected, given

import triton_dist
from triton_dist.backends.emulator.engine.scheduler import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import grouped_gemm
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.testing import assert_matches, poisoned, random_tensor

ADVERSARIAL = {"ragged": [5, 0, 70, 1, 64], "all to one": [0, 0, 150, 0], "the first": [130, 0, 0], "the last": [0, 0, 128],
               "full tiles": [64, 128, 64], "one expert": [67], "many empty": [0] * 20 + [1] + [0] * 12 + [65]}


def multiplied(how, counts, k, n, dtype, act, weighted, align=8, columns=False):
    """Two calls of the core, checked; the rows of no expert keep what they had."""
    x, weight, told, rows = given(k, n, dtype, how, act, counts, align)
    if columns:
        weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    size = len(told["sources"]) if how == "gathered" else x.shape[:-1].numel()
    scale = random_tensor(size, dtype=F32, seed=7) if weighted else None
    results = []
    for _ in range(2):
        out = poisoned(*(told["sources"] if how == "gathered" else x[..., 0]).shape, n, dtype=dtype)
        results.append(grouped_gemm(x, weight, **told, act=act, row_weights=scale, out=out, method="ws").reshape(-1, n))
        triton_dist.synchronize()
    assert torch.equal(results[0].view(torch.int16), results[1].view(torch.int16))
    untouched = torch.ones(size, dtype=torch.bool)
    for e, wanted in expected(x, weight, rows, act, scale).items():
        untouched[rows[e][1]] = False
        assert_matches(results[0][rows[e][1]], wanted, k=k, roundings=2)
    assert results[0][untouched].isnan().all(), "a row of no expert was written"


@pytest.mark.parametrize("counts", ADVERSARIAL.values(), ids=ADVERSARIAL)
@pytest.mark.parametrize("how", ["by expert", "masked", "gathered"])
def test_values(how, counts):
    run_ranks(multiplied, 1, how, counts, 40, 72, BF16, None, False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["by expert", "masked", "gathered"])
@pytest.mark.parametrize("k, n, dtype, act, weighted", [(64, 72, F16, "silu_mul", True), (200, 136, BF16, None, True),
                                                        (8, 8, F16, "silu_mul", False)])
def test_epilogues(how, k, n, dtype, act, weighted, mode):
    run_ranks(multiplied, 1, how, [5, 0, 70, 1, 64], k, n, dtype, act, weighted, mode=mode, seed=1, num_sms=3)


def test_experts_side_by_side_and_columns():
    """No row between experts, so that what a tile loads is partly the next expert's; weights of contiguous columns."""
    run_ranks(multiplied, 1, "by expert", [3, 70, 0, 64, 129], 64, 72, BF16, None, True, 1, True, num_sms=2)
    run_ranks(multiplied, 1, "by expert", [3, 70, 0, 64, 129], 64, 72, BF16, "silu_mul", True, 1, num_sms=2)


def test_no_rows_at_all():
    run_ranks(multiplied, 1, "by expert", [0, 0, 0], 32, 16, BF16, None, False)


def test_what_the_core_cannot_read_is_refused_or_left_to_the_portable_kernel():
    def script():
        offsets = torch.tensor([0, 3, 6], dtype=torch.int32)
        x, weight = random_tensor(6, 20, dtype=BF16, seed=1), random_tensor(2, 16, 20, dtype=BF16, seed=2)
        with pytest.raises(InvalidArgument, match="multiples of 16 bytes"):
            grouped_gemm(x, weight, offsets=offsets, method="ws")
        with pytest.raises(InvalidArgument, match="fp16 and bf16"):
            grouped_gemm(x.float(), weight.float(), offsets=offsets, method="ws")
        with pytest.raises(InvalidArgument, match="method: expected one of"):
            grouped_gemm(x, weight, offsets=offsets, method="fast")
        out = grouped_gemm(x, weight, offsets=offsets)
        triton_dist.synchronize()
        assert_matches(out[3:], x[3:].double() @ weight[1].double().t(), k=20)

    run_ranks(script, 1)

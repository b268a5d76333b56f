# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How the Hopper core's grouped GEMM gets rows that `sources` names, beside what each way took.

Microseconds on one H200 of the first product of a layer, with "silu_mul", of 64 experts, bf16: the ways are rows that lie by
expert already, rows that are copied first, and rows that are gathered on their way to the product.
"""
from types import SimpleNamespace

import pytest
import torch

from triton_dist.cores.hopper.grouped_gemm import GroupedGemmCore
from triton_dist.ops.dispatch_grouped_gemm.plan import estimate
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.capabilities import GemmConfig

QWEN, DEEPSEEK = (2048, 1536), (7168, 4096)         # (K, N), gate and up together
# (K, N), tokens of each of two ranks: (in order, copied, gathered)
MEASURED = {
    (QWEN, 8192): (606, 762, 704),
    (QWEN, 4096): (356, 418, 382),
    (QWEN, 1024): (126, 145, 142),
    (QWEN, 128): (101, 106, 104.5),
    (QWEN, 16): (88, 92, 91),
    (DEEPSEEK, 8192): (6040, 6324, 7059),
    (DEEPSEEK, 1024): (1107, 1152, 1391),
    (DEEPSEEK, 128): (882, 873, 876),
}


@pytest.mark.parametrize("shape, tokens", MEASURED)
def test_the_way_is_the_fastest(shape, tokens):
    _, copied, gathered = MEASURED[shape, tokens]
    found = gathered if GroupedGemmCore.gathers(shape[1]) else copied
    assert found == min(copied, gathered)


@pytest.mark.parametrize("shape, tokens, measured", [(QWEN, 8192, 161), (QWEN, 1024, 43), (DEEPSEEK, 8192, 467),
                                                      (DEEPSEEK, 1024, 77)])
def test_the_estimate_of_the_ops_in_turn_is_what_they_took(shape, tokens, measured):
    """A dispatch by expert, measured on 2 x H200, top-8 of 128 experts; then the product of rows in order."""
    k, n = shape
    agreed = SimpleNamespace(experts=128, row=k, n=n, k=8, max_tokens=tokens, dtype=torch.bfloat16)
    choice = Choice("ws", GemmConfig(128, 256, 64, group_m=8, num_warps=8, num_stages=4), 1, 22)
    sent = estimate(SimpleNamespace(**{**vars(agreed), "n": 0}), 2, choice, 22, 132).in_turn
    assert sent == pytest.approx(1e3 * measured, rel=0.12)
    if tokens == 8192:
        found = estimate(agreed, 2, choice, 22, 132).in_turn
        assert found - sent == pytest.approx(1e3 * MEASURED[shape, tokens][0], rel=0.08)

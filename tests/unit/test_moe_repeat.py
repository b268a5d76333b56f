# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What tests/nvidia/moe.py says of a layer that is wrong: which tokens, and which of their experts are lost."""
import runpy
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "nvidia" / "moe_repeat.py"


@pytest.fixture(scope="module")
def reference():
    """Of 6 tokens with 3 of 8 experts, which 2 ranks share."""
    drawn = torch.Generator().manual_seed(0)
    weights_of = [[torch.randn(4, *shape, generator=drawn).bfloat16() / 4 for shape in ((24, 16), (16, 12))] for _ in range(2)]
    x, ids = torch.randn(6, 16, generator=drawn).bfloat16(), torch.rand(6, 8, generator=drawn).topk(3, 1).indices.to(torch.int32)
    ids[2] = torch.tensor([1, 6, 3])
    weights = torch.tensor([0.5, 0.3, 0.2]).repeat(6, 1)
    return runpy.run_path(str(SCRIPT))["Reference"](x, ids, weights, weights_of.__getitem__, 4, 2)


def test_the_reference_is_the_sum_of_choices(reference):
    assert reference.error(reference.wanted) == 0
    reference.check(reference.wanted.bfloat16(), "a call")


def test_a_lost_choice_is_named_with_its_rank(reference):
    found = reference.wanted.clone()
    found[2] -= 0.3 * reference.parts[2, 1].float()
    with pytest.raises(AssertionError, match=r"a call: relative error .*1 of 6 tokens.*: 2; 2 \(chunk.*lacks experts 6 "
                       r"\(rank 1, weight 0.30\), has 0.00 beside"):
        reference.check(found, "a call")


def test_a_row_in_place_of_another_is_seen_as_both(reference):
    found = reference.wanted.clone()
    found[2] += 0.5 * (reference.parts[3, 0] - reference.parts[2, 0]).float()
    assert "lacks experts 1 (rank 0, weight 0.50)" in reference.differences(found)
    assert "has 0.00 beside" not in reference.differences(found)


def test_a_router_that_chose_otherwise_is_told(reference):
    found = reference.wanted.clone()
    found[2] = 0
    other = reference.weights.clone()
    other[2, 0] = 0.4
    with pytest.raises(AssertionError, match="the router gave 1 tokens other choices"):
        reference.check(found, "a call", reference.ids, other)


def test_nan_is_wrong(reference):
    found = reference.wanted.clone()
    found[4, 7] = float("nan")
    with pytest.raises(AssertionError, match="1 of 6 tokens.*: 4;"):
        reference.check(found, "a call")

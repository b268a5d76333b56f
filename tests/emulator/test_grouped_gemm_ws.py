# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""grouped_gemm on the Hopper core, unedited, against a loop over experts in float64."""
from unittest import mock

import pytest
import torch
from test_grouped_gemm import BF16, F16, F32, expected, given

import triton_dist
from triton_dist.backends.emulator import backend as emulator
from triton_dist.backends.emulator.engine.scheduler import MODES
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.cores.hopper import grouped_gemm as core
from triton_dist.ops import grouped_gemm
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.workspace import reset
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


@pytest.fixture
def tall_tiles(monkeypatch):
    """Tiles of 128 rows, as on a GPU, and so short ones for what is left of an expert."""
    monkeypatch.setattr(emulator, "_core_tiles", lambda dtype, m: GemmConfig(128, 64, 32, group_m=2, num_warps=8, num_stages=3))
    monkeypatch.setattr(core, "FEW_ROWS", 0)


# What is left after whole tiles of 128 rows: nothing, a short tile, a full short tile, or more; with more than a group before it.
LEFT = {"short alone": [3, 64, 1], "both": [130, 200, 128, 0, 192], "after groups": [128 * 4 + 7, 5, 128 * 3 + 70],
        "none": [0, 0], "one of each": [129], "tall alone": [128, 100, 256]}


@pytest.mark.usefixtures("tall_tiles")
@pytest.mark.parametrize("programs", [1, 3, 5])
@pytest.mark.parametrize("counts", LEFT.values(), ids=LEFT)
def test_short_tiles(counts, programs):
    run_ranks(multiplied, 1, "by expert", counts, 40, 136, BF16, "silu_mul", True, num_sms=programs)


@pytest.mark.usefixtures("tall_tiles")
@pytest.mark.parametrize("mode", MODES)
def test_short_tiles_of_experts_side_by_side(mode):
    run_ranks(multiplied, 1, "by expert", [130, 70, 0, 64, 129, 5], 104, 200, F16, None, False, 1, mode=mode, seed=2, num_sms=4)
    run_ranks(multiplied, 1, "masked", [130, 70, 0, 64], 64, 72, BF16, None, True, mode=mode, seed=3, num_sms=2)
    run_ranks(multiplied, 1, "by expert", [3, 70, 140], 64, 72, BF16, None, True, 1, True, num_sms=2)


@pytest.mark.usefixtures("tall_tiles")
@pytest.mark.parametrize("programs", [1, 2, 7])
def test_programs_have_equally_many_tiles_of_each_height_in_one_order(programs, monkeypatch):
    """By the lists that the kernel has written. They keep the order of tiles in the columns of an expert."""
    counts, n, lists = [130, 300, 64, 0, 700, 10], 192, []

    def kept(self, words, like):
        lists.append(torch.full((words,), -1, dtype=torch.int32))
        return lists[-1]
    monkeypatch.setattr(core.Lists, "__call__", kept)
    run_ranks(multiplied, 1, "by expert", counts, 32, n, BF16, None, False, num_sms=programs)
    entries = lists[-1].view(-1, 4).tolist()
    own = [[tuple(entry) for entry in entries[p::programs] if entry[1] >= 0] for p in range(programs)]
    for p in range(programs):
        assert entries[p::programs][:len(own[p])] == [list(entry) for entry in own[p]], "a gap in the list of a program"
    heights = [[sum((rows <= 64) is short for _, rows, _, _ in mine) for mine in own] for short in (False, True)]
    assert all(max(many) - min(many) <= 1 for many in heights) and max(map(len, own)) - min(map(len, own)) <= 1
    every = [entry for mine in own for entry in mine]
    begins = [0, *torch.tensor([-(-count // 8) * 8 for count in counts]).cumsum(0).tolist()]
    wanted = {(begins[e] + row, min(128, count - row), e, column) for e, count in enumerate(counts)
              for row in range(0, count, 128) for column in range(n // 64)}
    assert len(every) == len(wanted) and set(every) == wanted
    for mine in own:
        assert [expert for _, _, expert, _ in mine] == sorted(expert for _, _, expert, _ in mine)


@pytest.mark.usefixtures("tall_tiles")
@pytest.mark.parametrize("mode", MODES)
def test_short_tiles_of_gathered_rows(mode):
    run_ranks(multiplied, 1, "gathered", [130, 70, 0, 64, 129, 5], 104, 200, F16, None, False, 1, mode=mode, seed=2, num_sms=4)
    run_ranks(multiplied, 1, "gathered", [3, 70, 140], 64, 72, BF16, "silu_mul", True, 1, mode=mode, seed=4, num_sms=3)
    run_ranks(multiplied, 1, "gathered", [3, 70, 140], 64, 72, BF16, None, True, 1, True, num_sms=2)


def test_gathered_rows_have_the_bits_of_copied_ones(monkeypatch):
    """Also with sources of int64, and with such as point outside of x."""
    def script():
        x, weight, told, rows = given(72, 40, BF16, "gathered", None, [5, 0, 70, 1])
        told["sources"][2] = 999
        found = []
        for most, dtype in ((core.GATHERED_N, torch.int32), (core.GATHERED_N, torch.int64), (0, torch.int32)):
            monkeypatch.setattr(core, "GATHERED_N", most)
            reset()
            given_now = dict(told, sources=told["sources"].to(dtype))
            found.append(grouped_gemm(x, weight, **given_now, method="ws"))
            triton_dist.synchronize()
        assert_matches(found[0][2], x[19].double() @ weight[0].double().t(), k=72)
        assert all(torch.equal(out[at], found[0][at]) for out in found for _, at, _ in rows)

    run_ranks(script, 1)


@pytest.mark.parametrize("n, act, copied", [(2048, None, False), (2056, None, True), (1024, "silu_mul", False),
                                            (1032, "silu_mul", True)])
def test_rows_are_gathered_for_narrow_weights_and_copied_for_wide_ones(n, act, copied):
    with mock.patch.object(core, "GatherRows", wraps=core.GatherRows) as made:
        run_ranks(multiplied, 1, "gathered", [5, 0, 3], 16, n, BF16, act, True)
    assert made.called == copied


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


def test_calls_on_one_stream_share_the_memory_of_their_lists(monkeypatch):
    """Not those on other streams, nor a graph's, whose replays may run beside them."""
    lists, like = core.Lists(), torch.zeros(1)
    stream = [object()]
    monkeypatch.setattr(EmulatorBackend, "eager_stream", lambda self: stream[0])
    first = lists(8, like)
    assert first.dtype == torch.int32 and first.numel() == 8
    assert lists(5, like) is first
    larger = lists(16, like)
    assert larger.numel() == 16 and lists(8, like) is larger
    stream.append(stream[0])
    stream[0] = None
    captured = lists(8, like)
    assert captured is not larger and lists(8, like) is not captured
    stream[0] = stream[1]
    assert lists(8, like) is larger
    stream[0] = object()
    other = lists(8, like)
    assert other is not larger
    for stream[0], memory in [(stream[1], larger), (stream[0], other)] * 2:         # by turns
        assert lists(8, like) is memory
    for stream[0] in map(str, range(100)):
        lists(8, like)
    assert len(lists._of) <= 16

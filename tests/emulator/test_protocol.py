# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The protocol's rules, as situations that go wrong when a rule is broken. test_protocol_mutants.py breaks them."""
from unittest import mock

import pytest
import remembered
from scenarios import AG, F32, RS, back_to_back, near_the_wrap, overtaking

from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops.ag_gemm import gather
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import workspace


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", [AG, RS])
def test_shapes_change_between_calls(op, mode):
    """Halves lie where capacity says, not where this call's shape would put them (rule 10); flags are not counts (7)."""
    calls = [op(70, 40, 96), op(9, 40, 50), op(40, 72, 64), op(70, 20, 96), op(1, 8, 16)]
    for seed in range(3):
        run_ranks(lambda: back_to_back(calls, repeat=2), 3, mode=mode, seed=seed)


@pytest.mark.parametrize("slow", [0, 2])
@pytest.mark.parametrize("mode", ["random", "skew", "priority"])
@pytest.mark.parametrize("op", [AG, RS])
def test_a_rank_that_is_overtaken(op, mode, slow):
    """Others may be one call ahead, never two (rules 10 and 11)."""
    run_ranks(lambda: overtaking([op(40, 40, 64), op(20, 24, 64)], slow=slow), 3, mode=mode, seed=slow)


@pytest.mark.parametrize("start", [2**31 - 3, -2**31 + 5])
@pytest.mark.parametrize("op, kind", [(AG, "ag_gemm"), (RS, "gemm_rs")])
def test_epochs_pass_the_wrap(op, kind, start):
    """Epochs compare by signed difference, or alternate between halves and compare for equality (rule 8)."""
    run_ranks(lambda: near_the_wrap([op(20, 24, 40), op(40, 16, 40)], [kind], start=start), 3, mode="late")


def test_epochs_that_the_device_counts_leave_out_zero():
    """0 is what fresh flags hold: the workspace grows just there."""
    def script():
        near_the_wrap([RS(20, 24, 40)], ["gemm_rs"], start=-2, repeat=1)
        overtaking([RS(200, 24, 40), RS(20, 24, 40)], slow=1, repeat=2)
        return workspace(resolve(), "gemm_rs").calls_begun()
    assert run_ranks(script, 3, mode="late") == [5] * 3


@pytest.mark.parametrize("mode", MODES)
def test_ranks_with_zero_tiles(mode):
    """A rank with nothing to compute still signals and still acquires (rule 11)."""
    calls = [AG(20, lambda r: 24 * (r == 1), 40), RS(20, 24, lambda r: 40 * (r == 1)), AG(40, lambda r: 0, 16),
             RS(40, 24, lambda r: 0)]
    for seed in range(3):
        run_ranks(lambda: overtaking(calls, slow=1, repeat=3), 3, mode=mode, seed=seed)


@pytest.mark.parametrize("mode", ["skew", "late", "random", "priority"])
def test_ranks_with_zero_tiles_wait_for_their_peers(mode):
    """Without the closing wait they would run two calls ahead and push over what a peer still reads (rule 11)."""
    calls = [AG(20, lambda r: 24 * (r == 1), 40), AG(40, lambda r: 24 * (r == 1), 40)]
    for seed in range(4):
        run_ranks(lambda: overtaking(calls, slow=1, repeat=4), 3, mode=mode, seed=seed)


@pytest.mark.parametrize("calls", [[AG(0, 8, 16)], [RS(0, 8, 16)], [RS(8, 0, 16)], [AG(8, 8, 0)], [AG(8, 0, 0)]])
def test_calls_that_are_empty_on_every_rank(calls):
    """They return before they touch the epoch, and calls after them work (rule 11)."""
    def script():
        back_to_back(calls + [type(calls[0])(8, 8, 16)], repeat=2)
    run_ranks(script, 3)


def test_flags_that_no_call_has_written_for_long(monkeypatch):
    """A flag left 2^31 calls behind would look new: flags are renewed in time (rule 8)."""
    from triton_dist.runtime import workspace as module
    monkeypatch.setattr(module, "RENEW_EVERY", 4)

    def script():
        back_to_back([AG(70, 72, 40)])
        space = module.workspace(resolve(), "ag_gemm")
        space.set_epoch(2**30)
        back_to_back([AG(1, 1, 1)], repeat=5)
        age = [space.epoch - int(flag) for flag in space.flags]
        assert max(age) <= 5, f"a flag is {max(age)} epochs old"
    run_ranks(script, 2)


def test_growth_while_counting():
    """A larger shape renews the flags at the epoch reached, also beyond the wrap (rules 8 and 10)."""
    def script():
        back_to_back([RS(4, 4, 8), AG(4, 4, 8)])
        for kind in ("gemm_rs", "ag_gemm"):
            workspace(resolve(), kind).set_epoch(2**31 - 2)
        back_to_back([RS(4, 4, 8), AG(4, 4, 8), RS(300, 300, 8), AG(300, 30, 300, dtype=F32)], repeat=2)
    run_ranks(script, 2)


def test_a_call_that_fails_after_it_began_poisons_the_workspace():
    """Peers may be one call ahead, so later calls are refused (rule 12)."""
    def script():
        from triton_dist.runtime.errors import WorkspacePoisoned
        back_to_back([RS(4, 4, 8)])
        plan = remembered.known("gemm_rs")[0].plan

        def broken(*_):
            raise ValueError("no such launch")
        with mock.patch.object(plan, "launch", broken), pytest.raises(ValueError, match="no such launch"):
            back_to_back([RS(4, 4, 8)])
        with pytest.raises(WorkspacePoisoned, match="no such launch"):
            back_to_back([RS(4, 4, 8)])
        back_to_back([AG(4, 4, 8)])        # another kind of op is not affected
    run_ranks(script, 1)


@pytest.mark.parametrize("mode", MODES)
def test_pieces_change_between_calls(mode, monkeypatch):
    """A flag belongs to one writer for good, however many pieces a call has (rule 7)."""
    monkeypatch.setattr(gather, "PIECE_BYTES", 4096)
    for seed in range(3):
        run_ranks(lambda: overtaking([AG(256, 24, 64), AG(64, 24, 8), AG(128, 24, 64)], slow=1), 3, mode=mode, seed=seed)

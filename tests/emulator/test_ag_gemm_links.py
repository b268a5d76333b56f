# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ag_gemm's pushes by copies: to one peer after another through a switch, to all at once where each peer has its own link."""
from dataclasses import replace

import pytest
import torch
from scenarios import AG, BF16, F32, back_to_back, near_the_wrap, overtaking, side_stream, two_groups

import triton_dist
from triton_dist.backends.amd.machines import MI300X
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.engine.streams import Stream
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.ops import ag_gemm
from triton_dist.ops.ag_gemm import gather
from triton_dist.ops.tuning import model
from triton_dist.runtime.state import state

RAGGED = [AG(70, 40, 96, bias=True), AG(9, 41, 50, dtype=BF16), AG(20, lambda rank: 24 * (rank == 1), 40),
          AG(40, 72, 64, dtype=F32), AG(1, 1, 1)]


@pytest.fixture
def machine(monkeypatch):
    """machine(switched): emulated ranks are on a machine with a switch or without one."""
    def be(switched):
        found = replace(MI300X, fuse_gather_bytes=0, switched=switched)
        monkeypatch.setattr(EmulatorBackend, "machine_model", lambda self: found)
    monkeypatch.setattr(gather, "PIECE_BYTES", 4096)
    return be


@pytest.fixture
def done(monkeypatch):
    """(rank, stream) of each step of a copy or a flag write, in the order in which they are done."""
    log, real = [], Stream._transfer

    def noted(stream, what, steps):
        def note(step):
            log.append((stream.device.rank, stream.name))
            return step()
        return real(stream, what, [lambda step=step: note(step) for step in steps])
    monkeypatch.setattr(Stream, "_transfer", noted)
    return log


def in_turns(streams):
    """How often a stream goes on after another one has done a step."""
    return sum(a != b and a in streams[:i] for i, (b, a) in enumerate(zip(streams, streams[1:])))


@pytest.mark.parametrize("switched, streams", [(True, 1), (False, 3)])
def test_pushes_are_under_way_at_once_where_each_peer_has_a_link(machine, done, switched, streams):
    machine(switched)

    def script():
        back_to_back([AG(256, 24, 64), AG(70, 40, 96)])
        return len(state().side_streams)
    assert run_ranks(script, 4, mode="random", seed=1) == [streams] * 4
    for rank in range(4):
        own = [stream for of, stream in done if of == rank]
        assert len(set(own)) == streams and (in_turns(own) > 0) is not switched, own


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_ragged_shapes_back_to_back(machine, world):
    machine(switched=False)

    def script():
        back_to_back(RAGGED, repeat=1 if world == 8 else 2)
        return len(state().side_streams)
    assert run_ranks(script, world, mode="late", seed=world) == [max(1, world - 1)] * world     # made once


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_is_overtaken(machine, mode):
    machine(switched=False)
    run_ranks(lambda: overtaking([AG(256, 24, 64), AG(64, 24, 8), AG(40, 40, 64)], slow=1), 3, mode=mode, seed=1)


def test_epochs_pass_the_wrap(machine):
    machine(switched=False)
    run_ranks(lambda: near_the_wrap([AG(20, 24, 40), AG(40, 16, 40)], ["ag_gemm"]), 3, mode="late")


def test_two_groups_and_two_streams(machine):
    machine(switched=False)
    run_ranks(lambda: two_groups([AG(20, 24, 40), AG(70, 40, 96)]), 4, mode="late")
    run_ranks(lambda: side_stream([AG(20, 24, 40), AG(70, 40, 96)]), 3, mode="late")


def test_an_input_may_be_overwritten_once_the_call_has_ended(machine):
    """The caller's stream waits for the pushes to all peers."""
    machine(switched=False)

    def script():
        rank = state().world.rank
        x = torch.full((64, 64), float(rank + 1))
        out = ag_gemm(x, torch.eye(64), method="portable")
        x.fill_(-5.0)
        triton_dist.synchronize()
        assert out[:, 0].tolist() == [1.0 + r for r in range(4) for _ in range(64)]
    for mode in MODES:
        run_ranks(script, 4, mode=mode)


def test_the_checker_finds_nothing(machine):
    machine(switched=False)
    report = check_kernel(lambda: overtaking([AG(256, 24, 64), AG(64, 24, 8)], slow=1, repeat=3), 3, 8)
    assert report.clean and report.accesses, str(report)


def in_place():
    """x of a call is written by the call before it and by the one after it, which hears of no peer."""
    world = state().world
    alone = [world.new_group([rank]) for rank in range(world.size)][world.rank]
    x, weight = torch.full((64, 64), 0.5), torch.eye(64)
    for _ in range(3):
        rows = ag_gemm(x, weight, method="portable")
        ag_gemm(rows[:64], weight, group=alone, out=x, method="portable")


@pytest.mark.parametrize("missing", ["", "pushes wait for the caller", "the caller waits for pushes"])
def test_the_checker_finds_a_stream_that_is_not_joined(machine, monkeypatch, missing):
    """One of the streams that only a machine without a switch has."""
    machine(switched=False)
    real = Stream.wait_stream

    def wait(stream, other):
        pushing = {"pushes wait for the caller": stream, "the caller waits for pushes": other}.get(missing)
        if pushing is None or pushing not in state().side_streams[1:]:
            real(stream, other)
    monkeypatch.setattr(Stream, "wait_stream", wait)
    report = check_kernel(in_place, 3, 12)
    assert report.clean == (not missing) and report.accesses, str(report)


def test_the_model_lets_all_shards_arrive_at_once():
    """8 ranks, so little N that bytes take the time: a seventh of the time of pushes in turn."""
    config = EmulatorBackend.gemm_config(None, BF16, 1024)
    machines = (replace(MI300X, fused_us=0.0, switched=switched) for switched in (True, False))
    in_turn, at_once = ({e.method: e.ms for e in model.ag_gemm_estimates(machine, 1024, 64, 8192, 8, 2, config, False)}
                        for machine in machines)
    assert in_turn["portable"] > 6 * at_once["portable"] and in_turn["unfused"] == at_once["unfused"]

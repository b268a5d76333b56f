# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tuning on emulated ranks: all decide alike whatever each measures, what fails on one is tried by none, files are kept."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import remembered
import torch
from scenarios import AG, F16, RS, back_to_back

from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.ops import explain
from triton_dist.ops.tuning import measure, table, tables
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state

ROOT = Path(__file__).resolve().parents[2]
OPS = {"ag_gemm": AG, "gemm_rs": RS}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "1")
    return tmp_path / "tuned.json"


class Clock:
    """Stands for time: a candidate takes what `of(rank, choice)` says, and runs once. `calls` counts the batches of all ranks."""

    def __init__(self, monkeypatch, of):
        self.calls, real, names, ran = 0, measure._times, {}, {}

        def times(group, runs, rounds, calls, step):
            names.update({id(run): choice for choice, run in runs.items()})
            return real(group, runs, rounds, calls, step)

        def batch(group, run, calls):
            self.calls += 1
            if id(run) not in ran:
                ran[id(run)] = run          # kept: then no other has its id
                run()
            return of(group.rank, names[id(run)])
        monkeypatch.setattr(measure, "_times", times)
        monkeypatch.setattr(measure, "batch", batch)


def decisions():
    """All that this rank has decided, each once."""
    return remembered.decisions()


def auto(op, *shape, repeat=2, **options):
    """Two calls by `auto`, checked; then what was decided on this rank."""
    call = OPS[op](*shape, **options)
    call.method = "auto"
    back_to_back([call], repeat=repeat)
    decision, = decisions()
    return decision


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("op", OPS)
def test_ranks_that_measure_different_times_decide_alike(world, op, monkeypatch):
    """By its own times each rank would choose differently; by the slowest rank's, the portable kernel is best."""
    def of(rank, choice):
        mine = {"ws": 1 + rank, "portable": 1.9, "unfused": 1 + world - rank}
        return mine[choice.method] + choice.pieces / 100
    Clock(monkeypatch, of)
    found = run_ranks(lambda: auto(op, 20, 40, 48, dtype=F16), world)
    assert all(decision == found[0] for decision in found)
    assert found[0].choice.method == "portable" and "1.9 ms at this shape" in found[0].reason


@pytest.mark.one
@pytest.mark.parametrize("mode", ["random", "late"])
@pytest.mark.parametrize("op", OPS)
def test_by_the_emulators_own_clock(op, mode):
    found = run_ranks(lambda: auto(op, 20, 40, 48, dtype=F16), 3, mode=mode)
    assert all(decision == found[0] for decision in found) and found[0].entry.ms


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("bad", [0, 2])
def test_a_tiling_that_one_rank_cannot_build_is_tried_by_none(op, bad, own_cache, monkeypatch):
    prepare = EmulatorBackend.prepare

    def failing(self, kernel, grid, args, kwargs, varying=None):
        if kwargs.get("GROUP_M") == 4 and "STAGES" in kwargs and resolve().rank == bad:
            raise RuntimeError("out of resource: shared memory\nRequired: 1, limit: 0")
        return prepare(self, kernel, grid, args, kwargs, varying)
    monkeypatch.setattr(EmulatorBackend, "prepare", failing)
    Clock(monkeypatch, lambda rank, choice: 1.0 if choice.method == "ws" and choice.config.group_m == 4 else 2.0)
    found = run_ranks(lambda: auto(op, 20, 40, 48, dtype=F16), 3)
    assert all(decision == found[0] for decision in found)
    failed, = {why for decision in found for why in decision.entry.failed.values()}
    assert failed == f"rank {bad}: RuntimeError: out of resource: shared memory"
    assert found[0].choice.config.group_m != 4
    assert "out of resource" in own_cache.read_text()


def test_where_all_tilings_fail_auto_is_unfused_and_a_method_says_why(monkeypatch):
    prepare = EmulatorBackend.prepare

    def failing(self, kernel, grid, args, kwargs, varying=None):
        if "GROUP_M" in kwargs:
            raise RuntimeError("no compiler")
        return prepare(self, kernel, grid, args, kwargs, varying)
    Clock(monkeypatch, lambda rank, choice: 1.0)
    monkeypatch.setattr(EmulatorBackend, "prepare", failing)
    assert [d.choice for d in run_ranks(lambda: auto("ag_gemm", 20, 40, 48, dtype=F16), 2)] == [Choice("unfused")] * 2

    def script():
        call = AG(20, 40, 48, dtype=F16)
        call.method = "ws"
        with pytest.raises(RuntimeError, match="no compiler"):
            back_to_back([call])
        return [decision.choice.method for decision in decisions()]
    assert run_ranks(script, 2) == [["ws"]] * 2


def test_a_known_shape_is_not_timed_again(monkeypatch):
    clock = Clock(monkeypatch, lambda rank, choice: {"ws": 1.0, "portable": 2.0, "unfused": 3.0}[choice.method])
    first = run_ranks(lambda: auto("gemm_rs", 20, 40, 48, dtype=F16), 3)
    made, clock.calls = clock.calls, 0
    again = run_ranks(lambda: auto("gemm_rs", 20, 40, 48, dtype=F16), 3)
    assert made and not clock.calls and [d.choice for d in again] == [d.choice for d in first]
    run_ranks(lambda: auto("gemm_rs", 21, 40, 48, dtype=F16), 3)           # of the same class
    assert not clock.calls
    run_ranks(lambda: auto("gemm_rs", 20, 40, 48, dtype=F16), 2)           # in another world
    assert clock.calls


def test_force_times_once_a_process_and_0_never(monkeypatch):
    clock = Clock(monkeypatch, lambda rank, choice: 1.0)
    for mode, measures in (("force", True), ("force", True), ("0", False)):
        monkeypatch.setenv("TRITON_DIST_AUTOTUNE", mode)
        clock.calls = 0
        run_ranks(lambda: auto("ag_gemm", 20, 40, 48, dtype=F16, repeat=3), 2)
        assert bool(clock.calls) is measures
    trials = (2 * len(_ways()) + 5 * len(_ways())) * 2
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "force")
    clock.calls = 0
    run_ranks(lambda: auto("ag_gemm", 20, 40, 48, dtype=F16, repeat=3), 2)
    assert clock.calls == trials, "candidates are timed in two trials and five rounds, on both ranks, at the first call only"


def test_what_is_tried_of_a_shard_is_pieces_inside_a_node_and_programs_over_nodes():
    inside, over = _ways(512, 2), _ways(512, 2, nodes=2)
    assert len({way.pieces for way in inside}) > 1 and {way.pieces for way in over} == {0}
    assert len(over) == len(set(over)) and {way.comm_sms for way in over} == {0, 1, 2, 4, 16}


def _ways(m=20, world=1, nodes=1):
    from triton_dist.ops import OPS

    def script():
        op, group = OPS["ag_gemm"], resolve()
        return op.candidates(op.at(m * world, 1, 48, F16, group), group)
    return run_ranks(script, world, nodes=nodes)[0]


def test_0_does_not_read_the_cache(own_cache, monkeypatch):
    Clock(monkeypatch, lambda rank, choice: 1.0 if choice.method == "unfused" else 2.0)
    assert run_ranks(lambda: auto("ag_gemm", 20, 40, 48, dtype=F16), 2)[0].choice.method == "unfused"
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "0")
    own_cache.write_text("not read, so not complained of")
    assert run_ranks(lambda: auto("ag_gemm", 20, 40, 48, dtype=F16), 2)[0].choice.method == "portable"


@pytest.mark.parametrize("content", ['{"format": 1, "entr', '{"format": 99, "entries": []}', '{"theme": "dark"}'])
def test_a_file_that_is_no_table_is_warned_about_and_replaced(content, own_cache, monkeypatch):
    clock = Clock(monkeypatch, lambda rank, choice: 1.0)
    own_cache.write_text(content)
    with pytest.warns(RuntimeWarning, match=r"tuned\.json is no table of measured times.*new ones will replace it") as warned:
        run_ranks(lambda: auto("ag_gemm", 20, 40, 48, dtype=F16), 2)
    assert len(warned) == 1 and clock.calls
    assert len(table.read(own_cache)) == 1 and Path(f"{own_cache}.bad").read_text() == content


def test_figures_of_other_kernels_or_devices_are_not_used(own_cache, monkeypatch):
    clock = Clock(monkeypatch, lambda rank, choice: 1.0)
    run_ranks(lambda: auto("ag_gemm", 20, 40, 48, dtype=F16), 2)
    for field, other in (("kernels", "0123456789ab"), ("triton", "3.5.0"), ("device", "NVIDIA H100"), ("topology", "1+1")):
        content = json.loads(own_cache.read_text())
        content["entries"][:] = [{**content["entries"][0], field: other}]
        own_cache.write_text(json.dumps(content))
        clock.calls = 0
        run_ranks(lambda: auto("ag_gemm", 20, 40, 48, dtype=F16), 2)
        assert clock.calls, field
        table.add(own_cache, [])
        assert len(table.read(own_cache)) == 2, "both stay"


def test_a_shipped_table_holds_for_its_machine_whatever_the_version(tmp_path, monkeypatch):
    Clock(monkeypatch, lambda rank, choice: 1.0 if choice.method == "unfused" else 2.0)
    run_ranks(lambda: auto("gemm_rs", 20, 40, 48, dtype=F16), 2)
    shipped = tmp_path / "tuned_x.json"
    shipped.write_text((tmp_path / "tuned.json").read_text().replace('"triton": "', '"triton": "9'))
    (tmp_path / "tuned.json").unlink()
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "0")
    monkeypatch.setattr(EmulatorBackend, "tables", lambda self: [shipped])
    assert run_ranks(lambda: auto("gemm_rs", 20, 40, 48, dtype=F16), 2)[0].choice.method == "unfused"
    assert run_ranks(lambda: auto("gemm_rs", 20, 40, 48, dtype=F16), 3)[0].choice.method == "portable"


def test_where_nothing_can_be_written_the_op_runs_and_a_warning_says_so(tmp_path, monkeypatch):
    Clock(monkeypatch, lambda rank, choice: 1.0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", str(tmp_path / "file" / "folder"))
    with pytest.warns(RuntimeWarning, match="measured times are not kept"):
        run_ranks(lambda: auto("ag_gemm", 20, 40, 48, dtype=F16), 2)


def test_a_mode_that_makes_no_sense_is_said_by_every_rank(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "yes")

    def script():
        with pytest.raises(InvalidArgument, match="TRITON_DIST_AUTOTUNE='yes': expected 0, 1 or force"):
            auto("ag_gemm", 20, 40, 48)
    run_ranks(script, 2)


@pytest.mark.full
@pytest.mark.parametrize("op", OPS)
def test_the_workspace_goes_on_after_tuning_and_results_are_right(op, monkeypatch):
    """Epochs stay agreed: other shapes, a larger one that moves the buffers, then the tuned shape again."""
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "force")

    def script(op):
        calls = [OPS[op](*shape, dtype=F16) for shape in ((9, 24, 40), (70, 33, 130), (9, 24, 40), (3, 200, 16))]
        for call in calls:
            call.method = "auto"
        calls[2].method = "portable"
        back_to_back(calls, repeat=2, slow=1)
    run_ranks(script, 3, op, mode="late")


def test_an_explicit_method_is_tuned_among_its_own_tilings(monkeypatch):
    Clock(monkeypatch, lambda rank, choice: {"ws": 3.0, "portable": 2.0, "unfused": 1.0}[choice.method] - choice.pieces / 10
          - (choice.method == "ws" and choice.config.group_m == 1))

    def script():
        call = AG(20, 40, 48, dtype=F16)
        call.method = "ws"
        back_to_back([call])
        call.method = "auto"
        back_to_back([call])
        return [decision.choice for decision in decisions()]
    for ws, best in run_ranks(script, 2):
        assert ws.method == "ws" and ws.config.group_m == 1 and best == Choice("unfused")


def test_ranks_whose_weights_differ_in_size_tune_together(monkeypatch):
    Clock(monkeypatch, lambda rank, choice: 1.0)
    found = run_ranks(lambda: auto("ag_gemm", 20, lambda rank: 8 * rank, 48, dtype=F16), 3)
    assert found[0].entry.shape.n == 24 and all(decision == found[0] for decision in found)


@pytest.mark.parametrize("op", OPS)
def test_a_linear_of_another_size_decides_for_itself(op, monkeypatch):
    """What ranks must agree on does not hold N of ag_gemm, K of gemm_rs: the sum over ranks does, and explain keeps them apart.

    A size that differs by one, as in uneven splits, takes the decision of the known one.
    """
    fastest = {}
    Clock(monkeypatch, lambda rank, choice: 1.0 if choice.method == fastest["now"] else 2.0)
    shape = {"ag_gemm": lambda size: (20, size, 48), "gemm_rs": lambda size: (20, 40, size)}[op]
    whole = {"ag_gemm": lambda size: (40, 2 * size, 48), "gemm_rs": lambda size: (40, 40, 2 * size)}[op]

    def script():
        for size, method in ((16, "unfused"), (96, "portable")):
            fastest["now"] = method
            call = OPS[op](*shape(size), dtype=F16)
            call.method = "auto"
            back_to_back([call], repeat=1)
        uneven = OPS[op](*(size if size != 96 else lambda rank: 97 - rank for size in shape(96)), dtype=F16)
        uneven.method = "auto"
        back_to_back([uneven], repeat=1)
        return decisions(), [explain(op, *whole(size), dtype=F16) for size in (16, 96)]
    for made, (small, large) in run_ranks(script, 2):
        assert [found.choice.method for found in made] == ["unfused", "portable"]
        assert (small.chosen, large.chosen) == ("unfused", "portable")
        assert "1 ms at this shape" in small.reason and "1 ms at this shape" in large.reason


def test_explain_names_the_shape_that_decided_for_unequal_parts(monkeypatch):
    Clock(monkeypatch, lambda rank, choice: 1.0 if choice.method == "ws" else 2.0)

    def script():
        auto("ag_gemm", 20, lambda rank: 16 + 48 * rank, 48, dtype=F16)
        return explain("ag_gemm", 40, 4096, 48, dtype=F16)
    for found in run_ranks(script, 2):
        assert found.chosen == "ws" and "1 ms at ag_gemm float16 M=40 N=80 K=48 on" in found.reason
        assert "this shape" not in found.reason


@pytest.mark.parametrize("op", ["gemm_rs", pytest.param("ag_gemm", marks=pytest.mark.full)])
def test_over_nodes(op, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "force")
    found = run_ranks(lambda: auto(op, 20, 40, 48, dtype=F16), 4, nodes=2)
    assert found[0].entry.place.topology == "2+2" and all(decision == found[0] for decision in found)


def test_what_was_tried_is_printed_and_explained(monkeypatch, capsys):
    Clock(monkeypatch, lambda rank, choice: 1.5 if choice.method == "ws" else 2.0)
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")

    def script():
        before = str(explain("gemm_rs", 64, 40, 96, dtype=F16))
        auto("gemm_rs", 32, 40, 48, dtype=F16)
        return before, str(explain("gemm_rs", 64, 40, 96, dtype=F16)), explain("gemm_rs", 64, 40, 96, dtype=torch.bfloat16)
    for before, after, other in run_ranks(script, 2):
        assert "portable, because the device has not been measured" in before
        assert "ws, because of 6 measured it was the fastest, 1.5 ms at this shape on" in after
        assert after.count("\n->") == 1 and "->        -    1.5000  ws" in after and "2.0000  unfused" in after
        assert other.chosen == "portable" and not other.candidates
    printed = capsys.readouterr().out
    assert printed.count("triton_dist tuned gemm_rs float16 M=64 N=40 K=96 on 2 x emulator") == 1
    assert printed.count(" ms  ") == 6


@pytest.mark.full
def test_the_command_writes_a_table(tmp_path):
    out = tmp_path / "table.json"
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT / "python"))
    done = subprocess.run([sys.executable, "-m", "triton_dist", "tune", "ag_gemm", "gemm_rs", "--nproc_per_node", "2",
                           "--shapes", "16,16,16", "--dtype", "float16", "--out", str(out)],
                          env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {entry.shape.op for entry in table.read(out)} == {"ag_gemm", "gemm_rs"}
    assert f"written: 2 shapes to {out}" in done.stdout and done.stdout.count("triton_dist tuned") == 2
    assert table.read(out) == table.read(tables.cache_file())

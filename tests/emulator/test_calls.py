# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The one way of all ops from a call to its launch: its steps, the log of decisions, and what each op says of itself."""
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from profiled import profiled

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.ops import OPS
from triton_dist.ops.calls.possible import METHODS
from triton_dist.ops.op import ROLES
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.testing import random_tensor

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text()
OURS = [name for name, op in OPS.items() if op.function.__module__.startswith("triton_dist.")]
F16 = torch.float16


def tensor(*shape, dtype=F16):
    return random_tensor(*shape, dtype=dtype, seed=1)


def walk(kind):
    """(file, function) of the page's table of a first or a repeated call."""
    table = PAGE.partition(f"| {kind} call | function |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `([\w/.]+)` \| `([\w.]+)` \|", table, re.M)
    assert len(found) > 5
    return found


def made(call):
    """Functions of the package that a call enters, in order: (file, function)."""
    entered = []

    def note(frame):
        if "/triton_dist/" in frame.f_code.co_filename:
            entered.append((frame.f_code.co_filename.rpartition("/triton_dist/")[2], frame.f_code.co_qualname))
    profiled(call, note)
    return entered


def test_a_call_goes_the_way_that_the_page_shows(monkeypatch):
    """Each function of the page's two tables is entered, in this order, and the first way has at most 17 of them."""
    monkeypatch.setattr(EmulatorBackend, "compares_calls", False)

    def script():
        x, w = tensor(16, 64), tensor(32, 64)
        return [made(lambda: ops.ag_gemm(x, w, method="portable")) for _ in range(3)]
    first, _, repeated = run_ranks(script, 1)[0]
    for kind, entered in (("first", first), ("repeated", repeated)):
        rest = iter(entered)
        for step in walk(kind):
            assert step in rest, f"{kind}: {step} is not entered, or not in its turn"
    assert len(walk("first")) <= 17 and len(walk("repeated")) <= 13
    assert not {step for step in walk("first") if step[1] in ("Calls._planned", "AgGemm.check", "Fused.compile")} & {*repeated}


@pytest.mark.parametrize("name", OURS)
def test_an_op_says_all_about_itself(name):
    """Words for methods and roles that all ops share, the unfused way last; explain and inputs at given sizes."""
    op = OPS[name]
    assert op.methods[-1] == "unfused" and set(op.methods) <= set(METHODS) and len(set(op.methods)) == len(op.methods)
    assert op.tensors and {*op.tensors.values(), *op.outputs.values()} <= set(ROLES)
    arguments = [argument.name for argument in op.operator._schema.arguments]
    assert set(op.tensors) <= set(arguments) and ("group" in arguments) is not op.local

    def script():
        group = resolve()
        given = {key: tensor(*size) if isinstance(size, tuple) else size for key, size in op.inputs(32, 16, 64, group).items()}
        explained, before = ops.explain(name, 32, 16, 64, dtype=F16), dict(given)
        op.function(**given, **({} if op.local else {"group": group}))
        triton_dist.synchronize()
        agreed = op.at(32, 16, 64, F16, group)
        assert [choice.method for choice in op.candidates(agreed, group)] and given.keys() == before.keys()
        assert hash(agreed) == hash(op.at(32, 16, 64, F16, group)) and f"op={name}" in str(agreed)
        return explained.chosen, explained.reason
    for chosen, reason in run_ranks(script, 2):
        assert chosen in op.methods and reason


ROWS, IDS, WEIGHT = torch.ones(4, 16), torch.tensor([[0, 1]] * 4), torch.ones(1, 16, 16)
WHOLE = [
    (lambda n: ops.ag_gemm(ROWS, torch.eye(16), comm_sms=n, method="portable"), 1),
    (lambda n: ops.all_to_all_vdev(ROWS, torch.tensor([2, 2]), capacity=n), 8),
    (lambda n: ops.all_to_all_vdev_2d(ROWS, torch.tensor([2, 2]), capacity=n), 8),
    (lambda n: ops.all_to_all_vdev_2d(ROWS, torch.tensor([2, 2]), capacity=8, major_align=n), 1),
    (lambda n: ops.ep_dispatch(ROWS, IDS, num_experts=n), 2),
    (lambda n: ops.ep_dispatch(ROWS, IDS, num_experts=2, capacity=n), 1),
    (lambda n: ops.ep_dispatch(ROWS, IDS, num_experts=2, layout="expert", align=n), 1),
    (lambda n: ops.ep_dispatch(ROWS, IDS, num_experts=2, max_tokens=n), 5),
    (lambda n: ops.ep_dispatch_send(ROWS, IDS, num_experts=n).recv(), 2),
    (lambda n: ops.dispatch_grouped_gemm(ROWS, IDS, None, WEIGHT, num_experts=n, act=None), 2),
    (lambda n: ops.dispatch_grouped_gemm(ROWS, IDS, None, WEIGHT, num_experts=2, act=None, max_tokens=n), 5)]


def test_numbers_that_equal_a_whole_number_are_refused_after_a_call_with_it_too(compares_nothing):
    def script():
        for call, number in WHOLE:
            for _ in range(2):
                call(number)
            for alike in (float(number), numpy.int64(number), numpy.float32(number), *[True] * (number == 1)):
                with pytest.raises(InvalidArgument, match="expected a whole number|comm_sms: expected"):
                    call(alike)
            call(number)
    run_ranks(script, 2)


def test_calls_with_equal_numbers_of_other_types_are_not_taken_for_each_other(long_ways, compares_nothing):
    """Such as an epsilon of 1 and one of 1.0: whether each is allowed is the op's to say. Of equal ones the last is known."""
    def script():
        x, weight, taken = torch.ones(4, 16), torch.ones(16), []
        for eps in (1.0, 1.0, 1, numpy.float64(1), 1.0, 1.0):
            before = len(long_ways)
            ops.all_reduce_rmsnorm(x, weight, eps=eps)
            taken.append(len(long_ways) > before)
        assert taken == [True, False, True, True, True, False]
    run_ranks(script, 1)


def test_no_word_of_a_method_is_unused():
    assert {method for name in OURS for method in OPS[name].methods} == set(METHODS)


@pytest.fixture
def lines(caplog):
    """What has been logged, a line for each decision."""
    caplog.set_level(logging.INFO, "triton_dist.plans")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "triton_dist.plans"]


def test_a_decision_is_logged_once_with_shape_ranks_way_and_reason(lines):
    def script():
        x = tensor(16, 64)
        for _ in range(3):
            ops.ag_gemm(x, tensor(32, 64))
            ops.all_reduce(x)
            ops.all_reduce(x, method="push")
    run_ranks(script, 2)
    for rank in range(2):
        mine = [line for line in lines() if line.startswith(f"rank {rank} of [0, 1]: ")]
        assert len(mine) == 3
        assert re.search(r"ag_gemm: .*m=16, k=64.* runs by portable \d+x\d+x\d+ .*, because the device has not been", mine[0])
        assert re.search(r"all_reduce: .*n=1024.* runs by one_shot, because 2048 bytes are no more than 2097152$", mine[1])
        assert re.search(r"all_reduce: .*n=1024.* runs by push, because it was asked for$", mine[2])


def test_fallbacks_are_logged_with_their_reason(lines, monkeypatch):
    """Of a rank alone: an operand that the core cannot read. Of all: a group over nodes."""
    def misaligned():
        x = torch.cat([tensor(16 * 64), tensor(8)])[4:4 + 16 * 64].view(16, 64) if resolve().rank == 1 else tensor(16, 64)
        ops.ag_gemm(x, tensor(32, 64))
    with monkeypatch.context() as patch:
        patch.setattr(EmulatorBackend, "core", preferred(EmulatorBackend.core))
        with pytest.warns(RuntimeWarning, match="runs the portable kernel on this rank"):
            run_ranks(misaligned, 2)
    assert sum("ag_gemm runs the portable kernel on this rank" in line and "x begins at" in line for line in lines()) == 1
    run_ranks(lambda: ops.all_reduce(tensor(4, 4)), 4, nodes=2)
    assert sum("runs by unfused, because not all of ranks [0, 1, 2, 3] can load" in line for line in lines()) == 4


def preferred(core):
    """The device's core as one that a rule without figures takes."""
    def found(self, op):
        it = core(self, op)
        if it is not None:
            it.preferred = True
        return it
    return found


@pytest.mark.full
def test_the_log_is_printed_where_the_environment_asks_for_it():
    script = ("import torch, triton_dist\nfrom triton_dist import ops\ntriton_dist.initialize_distributed()\n"
              "ops.all_gather(torch.ones(4, 4))\n")
    for value, printed in (("plans", 1), ("", 0)):
        environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", TRITON_DIST_LOG=value,
                           PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60,
                              check=False)
        assert done.returncode == 0 and done.stderr.count("triton_dist.plans: rank 0 of [0]: all_gather: ") == printed
    environment["TRITON_DIST_LOG"] = "plan"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 1 and "TRITON_DIST_LOG='plan': expected plans" in done.stderr


def test_records_are_one_for_an_op_and_a_group_and_go_with_it():
    def script():
        world = resolve()
        half = world.new_group([world.rank // 2 * 2, world.rank // 2 * 2 + 1])
        for group in (None, world, half):
            ops.all_reduce(tensor(4, 4), group=group)
        found = state().records[OPS["all_reduce"]]
        assert found[None] is found[world] and found[half] is not found[world]
        assert all(len(record.plans) == 1 and record.known and len(record.first_uses) == 2 for record in found.values())
        triton_dist.reset(half)
        assert half not in state().records[OPS["all_reduce"]] and world in state().records[OPS["all_reduce"]]
        assert (ops.all_reduce(tensor(4, 4), group=half) == 2 * tensor(4, 4)).all()
    run_ranks(script, 4)

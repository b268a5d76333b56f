# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Races on global memory: one kernel that is right, and what is reported when one thing of it is taken away."""
import inspect
from types import SimpleNamespace

import pytest
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.checker import check_kernel
from triton_dist.checker.host_memory import HostOperations
from triton_dist.checker.storages import ByStorage


@triton_dist.jit
def ring(x, buffer, flag, out, epoch, WAIT: tl.constexpr, SCOPE: tl.constexpr, SEMANTIC: tl.constexpr, FENCE: tl.constexpr,
         BARRIER: tl.constexpr, LOOP: tl.constexpr, TOKEN: tl.constexpr):
    offsets = tl.arange(0, 64)
    successor = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buffer, successor) + offsets, tl.load(x + offsets))
    if BARRIER:
        tl.debug_barrier()
    tl.atomic_xchg(dl.symm_at(flag, successor), epoch, sem="release", scope="sys")
    if LOOP:
        for _ in range(2):
            token = dl.wait(flag, 1, SCOPE, SEMANTIC, epoch)
            source = buffer
            if TOKEN:
                source = dl.consume_token(buffer, token)
            tl.store(out + offsets, tl.load(source + offsets))        # in the loop
    else:
        if WAIT:
            dl.wait(flag, 1, SCOPE, SEMANTIC, epoch)
        if FENCE:
            dl.fence("acquire", "sys")
        tl.store(out + offsets, tl.load(buffer + offsets))        # behind the wait


RIGHT = dict(WAIT=True, SCOPE="sys", SEMANTIC="acquire", FENCE=False, BARRIER=True, LOOP=False, TOKEN=True)


def script(calls=1, barrier=True, **options):
    def host(rank):
        device = triton_dist.device()
        buffer = triton_dist.create_symm_tensor((64,), torch.float32, name="inbox")
        flag = triton_dist.create_symm_tensor((1,), torch.int32, name="arrived")
        out = torch.zeros(64, device=device)
        for call in range(calls):
            ring[(1,)](torch.full((64,), float(rank), device=device), buffer, flag, out, call + 1, **{**RIGHT, **options})
            triton_dist.synchronize()
            if barrier:
                torch_barrier()
    return host


def torch_barrier():
    from triton_dist.runtime.groups import resolve
    resolve().barrier()


def line(text):
    """Number of the only line of `ring` with this text."""
    lines, start = inspect.getsourcelines(ring.fn)
    found = [start + i for i, source in enumerate(lines) if text in source]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("options", [
    {}, {"calls": 3}, {"SEMANTIC": "relaxed", "FENCE": True}, {"LOOP": True}, {"LOOP": True, "calls": 2}], ids=str)
def test_what_is_right_is_clean(options):
    report = check_kernel(script(**options), world_size=3, schedules=10)
    assert report.clean, str(report)
    assert report.schedules == 10 and report.programs == 30 * options.get("calls", 1) and report.accesses


@pytest.mark.parametrize("options, words, place", [
    ({"WAIT": False}, "no signal, barrier, stream order or event", "# behind the wait"),
    ({"SCOPE": "gpu"}, "scope 'gpu'", "dl.wait(flag, 1, SCOPE, SEMANTIC, epoch)"),
    ({"SEMANTIC": "relaxed"}, "it is read relaxed", "# behind the wait"),
    ({"BARRIER": False}, "release without the CTA barrier", "# behind the wait"),
    ({"LOOP": True, "TOKEN": False}, "missing consume_token in loop", "# in the loop"),
    ({"calls": 2, "barrier": False}, "not ordered", "tl.store(dl.symm_at(buffer, successor)"),
], ids=["no wait", "narrow scope", "relaxed", "no CTA barrier", "no token", "next call overtakes"])
def test_what_is_missing_is_named(options, words, place):
    report = check_kernel(script(**options), world_size=3)
    assert [fault.kind for fault in report.faults] == ["race"]
    fault = report.faults[0]
    assert words in fault.text and ("inbox" in fault.text or "arrived" in fault.text)
    lines = inspect.getsourcelines(ring.fn)
    wanted = [lines[1] + i for i, source in enumerate(lines[0]) if place in source]
    assert {where[1] for where in fault.where} & set(wanted), (fault.where, wanted)
    assert all(where[0] == __file__ for where in fault.where)


def test_a_replay_is_the_same_run():
    from triton_dist.checker.faults import Faults
    from triton_dist.checker.report import Report
    from triton_dist.checker.run import run_schedule
    from triton_dist.checker.schedules import parse
    first = check_kernel(script(WAIT=False), world_size=3, seed=5, modes=["random"])
    again, faults = Report(), Faults()
    run_schedule(lambda: script(WAIT=False)(rank_of_caller()), parse(first.faults[0].token), faults, again)
    assert [f.text for f in faults.found] == [f.text for f in first.faults]
    assert again.accesses == first.accesses


def rank_of_caller():
    from triton_dist.runtime.state import state
    return state().world.rank


def test_numbers_are_written_where_memory_had_been_left_unwritten():
    """torch.tensor may take the place of a torch.empty that has gone: the place is forgotten, as with any new tensor."""
    forgotten = []
    memory = SimpleNamespace(unwritten=SimpleNamespace(keep=lambda storage, value: forgotten.remove(storage.data_ptr()),
                                                       pop=forgotten.append), drafts=ByStorage(), at=lambda place: None)
    with HostOperations(memory):
        numbers, zeros, scratch = torch.tensor([1.0, 2.0]), torch.zeros(2), torch.empty(2)
    assert [t.untyped_storage().data_ptr() in forgotten for t in (numbers, zeros, scratch)] == [True, True, False]


def test_unwritten_memory_that_is_freed_and_used_again_unseen_is_no_fault():
    """As a workspace that is made outside of all modes, where a torch.empty of the script was."""
    unwritten = ByStorage()
    scratch, other = torch.empty(2), torch.empty(2)
    base, left = scratch.untyped_storage().data_ptr(), other.untyped_storage().data_ptr()
    for t in (scratch, other):
        unwritten.keep(t.untyped_storage(), True)
    view = scratch[:1]
    del scratch
    assert unwritten.get(base)               # as long as a view has the storage
    del view
    assert unwritten.get(base) is None and unwritten.get(left) and len(unwritten) == 1


@triton_dist.jit
def read(x, out):
    offsets = tl.arange(0, 64)
    tl.store(out + offsets, tl.load(x + offsets))


@pytest.mark.parametrize("joins", [True, False])
def test_a_torch_operation_follows_what_its_stream_waits_for(joins):
    """As x may be overwritten behind an op that has pushed it on a side stream; also where that stream has ended already."""
    def host():
        x, out, other = torch.zeros(64), torch.zeros(64), torch.zeros(64)
        side, current = triton_dist.new_stream(), triton_dist.current_stream()
        side.wait_stream(current)
        with triton_dist.use_stream(side):
            read[(1,)](x, out)
        read[(1,)](other, other)
        if joins:
            current.wait_stream(side)
        x.fill_(1.0)
    report = check_kernel(host, world_size=1)
    assert report.clean == joins and (joins or report.faults[0].kind == "race"), str(report)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Calls in two halves are clean under the checker, and what keeps them right is needed."""
from importlib import import_module
from unittest import mock

import pytest
import torch
from checking import MODES, check_edited
from experts import F32, anywhere
from scenarios import dawdle

import triton_dist
from triton_dist.checker import check_kernel
from triton_dist.ops import ep_combine, ep_combine_send, ep_dispatch, ep_dispatch_send
from triton_dist.ops.ep import chunks
from triton_dist.ops.ep.split import Lane
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

dispatch, combine = import_module("triton_dist.ops.ep_dispatch.op"), import_module("triton_dist.ops.ep_combine.op")
EPOCH = "epoch = tl.load(control + pid)  # of the call that was sent"
MATRIX = "dl.ll_load(inbox + cells, epoch, known)"
ROWS = 'dl.wait(arrived + peer * flags_source + t, 1, "sys", "acquire", epoch)'
SENT = "(rank < WORLD) & ((rank != here) | (FIRST == 0)) & (t * ROUND < going))"
BACK = 'dl.wait(arrived + r * flags_source + place // ROUND, 1, "sys", "acquire", epoch)'
GIVEN = "(rank < WORLD) & (rank != index) & (t * ROUND < giving))"

DISPATCH = {  # name: (old, new)
    "it takes the call before": (EPOCH, EPOCH.replace("+ pid)", "+ pid) - 1")),
    "it does not wait for the matrix": (MATRIX, "tl.load(inbox + cells, mask=known, other=0).to(tl.int32)"),
    "it does not wait for rows": (ROWS, "0"),
    "a relaxed wait": (ROWS, ROWS.replace("acquire", "relaxed")),
    "a wait of this device": (ROWS, ROWS.replace('"sys"', '"gpu"')),
    "nothing is released": (f"        dl.notify_each(everyone + t, epoch, {SENT}\n", ""),
    "rows keep to one half": ("rows_in = data + (epoch & 1).to(tl.int64) * half", "rows_in = data"),
}
COMBINE = {
    "it takes the call before": (EPOCH, EPOCH.replace("+ pid)", "+ pid) - 1")),
    "it does not hear of all": ("dl.ll_load(inbox + rank * PITCH, epoch, (rank < WORLD) & (pid == senders * chunks))", "pass"),
    "it does not wait for rows": (BACK, "0"),
    "a relaxed wait": (BACK, BACK.replace("acquire", "relaxed")),
    "a wait of this device": (BACK, BACK.replace('"sys"', '"gpu"')),
    "nothing is released": (f"                dl.notify_each(everyone + t, epoch, {GIVEN}\n", ""),
    "rows keep to one half": ("rows_in = data + (epoch & 1).to(tl.int64) * half", "rows_in = data"),
}


@pytest.fixture(autouse=True)
def rounds(monkeypatch):
    """A few rows a round."""
    monkeypatch.setattr(chunks, "MOVED", chunks.Pieces(128, 128))
    monkeypatch.setattr(chunks, "SUMMED", chunks.Pieces(128, 128))


def ids_of(rank, seed):
    """Ranks 1 and 2 have nothing for each other in every other call."""
    ids = anywhere(rank, seed, 4, 2, 6).int()
    return torch.where(ids > 1, -1, ids) if seed % 2 else ids


def dispatches():
    send_dispatches(8, 3)


def combines():
    send_combines(8, 3)


def send_dispatches(calls, later):
    """Two calls under way at a time, every `later`-th received at the end, and a slow rank."""
    group, sent = resolve(), []
    xs = [random_tensor(4, 24, dtype=F32, seed=10 * call + group.rank) for call in range(calls)]
    for call, x in enumerate(xs):
        if group.rank == 1:
            dawdle()
        sent.append(ep_dispatch_send(x, ids_of(group.rank, call), num_experts=6))
        if call % later:
            sent[call].recv()
    results = [s.recv() for s in sent]
    triton_dist.synchronize()
    for call, came in enumerate(results):
        whole = ep_dispatch(xs[call], ids_of(group.rank, call), num_experts=6, method="unfused")
        rows = slice(int(whole.rows))
        assert torch.equal(came.x[rows], whole.x[rows]) and torch.equal(came.topk_ids, whole.topk_ids)


def send_combines(calls, later):
    """Dispatches in one go, then combines in two halves, as above."""
    group = resolve()
    x = random_tensor(4, 24, dtype=F32, seed=group.rank)
    came = [ep_dispatch(x, ids_of(group.rank, i), num_experts=6, layout="expert", group=group) for i in range(2)]
    triton_dist.synchronize()
    ys = [random_tensor(len(came[0].x), 24, dtype=F32, seed=10 * call + group.rank) for call in range(calls)]
    sent = []
    for call, y in enumerate(ys):
        if group.rank == 1:
            dawdle()
        sent.append(ep_combine_send(y, came[call // 2 % 2].handle))
        if call % later:
            sent[call].recv()
    results = [s.recv() for s in sent]
    triton_dist.synchronize()
    for call, out in enumerate(results):
        assert torch.equal(out, ep_combine(ys[call], came[call // 2 % 2].handle, method="unfused"))


def check(module, kernel, calls, edits, folder, schedules=12):
    return check_edited(module, kernel, edits, calls, folder, schedules, num_sms=1)


def test_unchanged_they_are_clean(tmp_path):
    for module, kernel, calls in ((dispatch, "ep_dispatch_kernel", dispatches), (combine, "ep_combine_kernel", combines)):
        report = check(module, kernel, calls, [], tmp_path, 1)
        assert report.clean and report.accesses, str(report)


@pytest.mark.full
@pytest.mark.parametrize("calls", [dispatches, combines])
def test_they_are_clean_on_many_schedules(calls):
    report = check_kernel(calls, 3, 50)
    assert report.clean and report.schedules == 50, str(report)


@pytest.mark.parametrize("name", DISPATCH)
def test_a_mutant_of_dispatch_is_reported(name, tmp_path):
    assert not check(dispatch, "ep_dispatch_kernel", dispatches, [DISPATCH[name]], tmp_path).clean


@pytest.mark.parametrize("name", COMBINE)
def test_a_mutant_of_combine_is_reported(name, tmp_path):
    assert not check(combine, "ep_combine_kernel", combines, [COMBINE[name]], tmp_path).clean


@pytest.mark.parametrize("send", [send_dispatches, send_combines])
def test_a_call_under_way_must_be_taken_before_the_next_send_on_its_workspace(send):
    def forget(lane):
        lane.under_way = None

    def all_received_late():
        send(4, 1)

    assert (report := check_kernel(all_received_late, 3, 1, modes=["random"], num_sms=1)).clean, str(report)
    with mock.patch.object(Lane, "settle", forget):
        assert not check_kernel(all_received_late, 3, 4, modes=MODES, num_sms=1).clean

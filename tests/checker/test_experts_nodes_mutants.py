# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Each wait, signal, put and token of dispatch and combine over nodes is needed: without one, the checker or a result says so."""
from importlib import import_module
from unittest import mock

import pytest
import torch
from checking import MODES
from experts import EP, F32, to_the_first
from mutants import edited, load, source_of
from scenarios import dawdle, overtaking

import triton_dist
from triton_dist.checker import check_kernel
from triton_dist.ops import ep_combine, ep_dispatch
from triton_dist.ops.ep import chunks
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

EP_OPS = "triton_dist.ops"
DEVICE, PUT = f"{EP_OPS}.internode.kernels", f"{EP_OPS}.ep_dispatch.kernels"
DISPATCH, COMBINE = f"{EP_OPS}.ep_dispatch.nodes_kernel", f"{EP_OPS}.ep_combine.nodes_kernel"
BOX = "dl.consume_token(boxes_came, token)"
ROWS = 'dl.wait(arrived + p * flags_source + first, last - first + 1, "sys", "acquire", epoch)'
TOLD = "        dl.ll_store(to_peers, each << 16 | going, epoch, (near < EACH) & (part == 0))\n        to_nodes"
FORWARDED = "            dl.ll_store(to_peers, each << 16 | going, epoch, (near < EACH) & (part == 0))\n            put_chunk"
ROUNDS = "            dl.notify_each(everyone + t, epoch, (rank < WORLD) & (t * ROUND < giving))\n"
NOTIFIED = "        dl.notify_each(everyone + t, epoch, (rank < WORLD) & ((rank != here) | (FIRST == 0)) & (t * ROUND < going))\n"
SIGNAL = 'dl.wait(signal, 1, "sys", "acquire", word_of(epoch), cmp=CMP)'
NET_WAIT = "    shmem.signal_wait_until(dl.consume_token(signal, token), _NE, word_of(epoch - 1))\n"
HALF = " + (epoch & 1).to(tl.int64) * half"

# name: (module, old, new)
OF_DISPATCH = {
    "it does not wait for other nodes": (DEVICE, [(SIGNAL, "0"), (NET_WAIT, "")]),
    "it waits for the last call of other nodes": (DEVICE, [(SIGNAL, SIGNAL.replace("epoch", "epoch - 1")), (NET_WAIT, "")]),
    "rows are forwarded before they come": (PUT, [("for u in range(known, needed)", "for u in range(known, 0)")]),
    "a round too few is waited for": (PUT, [("// ROUND + 1\n", "// ROUND\n")]),
    "scales are forwarded before they come": (PUT, [("scales = dl.consume_token(scales, arrived_from_node(signals + rounds + u, "
                                                     'epoch, "eq"))', "pass")]),
    "rounds are not told": (PUT, [(NOTIFIED, "")]),
    "all rounds have one flag": (PUT, [(NOTIFIED, NOTIFIED.replace("everyone + t", "everyone"))]),
    "boxes are read before they come": (DISPATCH, [('token = arrived_from_node(told, epoch, "eq")', "token = 0")]),
    "a box is read without the token": (DISPATCH, [(BOX, "boxes_came")]),
    "own node is not told": (DISPATCH, [(TOLD, "        to_nodes")]),
    "numbers are not forwarded": (DISPATCH, [(FORWARDED, "            put_chunk")]),
    "rows to other nodes keep to one half": (DISPATCH, [("rows_sent = rows_out" + HALF, "rows_sent = rows_out")]),
    "boxes keep to one half": (DISPATCH, [("boxes_sent = boxes_out + (epoch & 1).to(tl.int64) * meta_half",
                                           "boxes_sent = boxes_out")]),
    "signals keep to one half": (DISPATCH, [("came = signals + (epoch & 1) * signals_half", "came = signals")]),
    "all rounds have one signal": (DISPATCH, [("n * row, told + 1 + t, epoch", "n * row, told + 1, epoch")]),
    "rows go to the node's first rank": (DISPATCH, [("dl.team_world_rank(team, goal * EACH + place)",
                                                     "dl.team_world_rank(team, goal * EACH)")]),
    "the epoch is not counted": (DISPATCH, [("    count_call(control, epoch)\n", "")]),
}
OF_COMBINE = {
    "it does not wait for other nodes": (DEVICE, [(SIGNAL, "0"), (NET_WAIT, "")]),
    "boxes are read before they come": (COMBINE, [('token = arrived_from_node(came + origin * signals_node, epoch, "eq")',
                                                   "token = 0")]),
    "a box is read without the token": (COMBINE, [(BOX, "boxes_came")]),
    "it does not wait for rows of its node": (COMBINE, [(ROWS, "0")]),
    "a relaxed wait": (COMBINE, [(ROWS, ROWS.replace("acquire", "relaxed"))]),
    "a wait of this device": (COMBINE, [(ROWS, ROWS.replace('"sys"', '"gpu"'))]),
    "it waits for the first of its rounds": (COMBINE, [(ROWS, ROWS.replace("last - first + 1", "1"))]),
    "it waits for the last of its rounds": (COMBINE, [(ROWS, ROWS.replace("+ first, last - first + 1", "+ last, 1"))]),
    "rounds are not told": (COMBINE, [(ROUNDS, "")]),
    "all rounds have one flag": (COMBINE, [(ROUNDS, ROUNDS.replace("everyone + t", "everyone"))]),
    "sums are read before they come": (COMBINE, [("for u in range(first, last + 1)", "for u in range(first, first)")]),
    "sums are read before the last of them come": (COMBINE, [("for u in range(first, last + 1)", "for u in range(first, last)")]),
    "it does not hear of its node": (COMBINE, [("PITCH, epoch, (near < EACH) & (pid == 0))",
                                                "PITCH, epoch, (near < EACH) & (pid < 0))")]),
    "its node does not hear of it": (COMBINE, [("    dl.ll_store(to_peers, 1 + 0 * near, epoch, (near < EACH) & (pid == 0))\n",
                                                "")]),
    "signals keep to one half": (COMBINE, [("    came = signals + (epoch & 1) * signals_half + chunk * (1 + 2 * rounds)\n    if",
                                            "    came = signals + chunk * (1 + 2 * rounds)\n    if")]),
    "rows of the node keep to one half": (COMBINE, [(f"    rows_in = data{HALF}\n    rows_sent",
                                                     "    rows_in = data\n    rows_sent")]),
    "sums keep to one half": (COMBINE, [(f"    rows_sent = rows_out{HALF}\n", "    rows_sent = rows_out\n")]),
    "boxes keep to one half": (COMBINE, [("boxes_sent = boxes_out + (epoch & 1).to(tl.int64) * meta_half",
                                          "boxes_sent = boxes_out")]),
    "the epoch is not counted": (COMBINE, [("    count_call(control, epoch)  # while the packets travel\n", "")]),
}
# Modules that have the kernels, and from which module of each chain they are imported.
USERS = {DISPATCH: (f"{EP_OPS}.ep_dispatch.nodes", ["ep_dispatch_nodes_kernel"]),
         COMBINE: (f"{EP_OPS}.ep_combine.nodes", ["ep_combine_nodes_kernel", "ep_combine_take_kernel"])}


@pytest.fixture(autouse=True)
def rounds(monkeypatch):
    """A row a round of a dispatch, two rows a round of a combine."""
    monkeypatch.setattr(chunks, "MOVED", chunks.Pieces(128, 128))
    monkeypatch.setattr(chunks, "NODES", chunks.Pieces(256, 128))


def dispatches():
    """A slow rank, shapes that change and one that does not, several rounds, scales."""
    first = EP(6, 24, combine=False, method="two_level", scales=2)
    return overtaking([first, first, EP(4, 40, capacity=5, combine=False, method="two_level"), first], slow=1, repeat=1)


def combines():
    """One dispatch, to the first rank alone, so that others have no rows for it; then combines, which rank 1 is slow to begin.

    The last rank has no tokens, so that rank 1 sums nothing for it, and has not waited for any rows before its own.
    """
    group = resolve()
    tokens = 6 * (group.rank < 3)
    ids = to_the_first(group.rank, 5, tokens, 1, 8).int()
    came = ep_dispatch(random_tensor(tokens, 24, dtype=F32, seed=group.rank), ids, num_experts=8, layout="expert", max_tokens=6,
                       method="two_level")
    triton_dist.synchronize()
    ys = [random_tensor(len(came.x), 24, dtype=F32, seed=10 * call + group.rank) for call in range(3)]
    results = []
    for y in ys:
        if group.rank == 1:
            dawdle()
        results.append(ep_combine(y, came.handle, method="two_level"))
    triton_dist.synchronize()
    for y, out in zip(ys, results):
        torch.testing.assert_close(out, ep_combine(y, came.handle, method="unfused"))


def check(calls, kernels, edits, folder, schedules=12):
    """What is found where the kernels of module `kernels` come from edited sources. edits: (module, [(old, new)]), or None."""
    user, names = USERS[kernels]
    changed = {} if edits is None else {edits[0]: load(edits[0].split(".")[-1], edited(source_of(edits[0]), edits[1]), folder)}
    for module in (PUT, kernels):          # those that import what has changed
        renamed = [(f"from {old} import", f"from {new.__name__} import") for old, new in changed.items() if old != module
                   and f"from {old} import" in source_of(module)]
        if renamed and module not in changed:
            changed[module] = load(module.split(".")[-1], edited(source_of(module), renamed), folder)
    found = changed.get(kernels, import_module(kernels))
    with mock.patch.multiple(user, **{name: getattr(found, name) for name in names}):
        return check_kernel(calls, 4, schedules, nodes=2, modes=MODES, num_sms=1)


def test_unchanged_they_are_clean(tmp_path):
    for calls, kernels in ((dispatches, DISPATCH), (combines, COMBINE)):
        report = check(calls, kernels, None, tmp_path, 1)
        assert report.clean, str(report)


@pytest.mark.parametrize("name", OF_DISPATCH)
def test_a_mutant_of_dispatch_is_reported(name, tmp_path):
    assert not check(dispatches, DISPATCH, OF_DISPATCH[name], tmp_path).clean


@pytest.mark.parametrize("name", OF_COMBINE)
def test_a_mutant_of_combine_is_reported(name, tmp_path):
    assert not check(combines, COMBINE, OF_COMBINE[name], tmp_path).clean

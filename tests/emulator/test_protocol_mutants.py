# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Each protocol test fails when its rule is broken: one statement of a kernel, an op or the workspace replaced at a time."""
from importlib import import_module
from unittest import mock

import pytest
from mutants import mutated
from scenarios import AG, RS, back_to_back, near_the_wrap, overtaking

from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops.ag_gemm import fused as ag_fused, gather
from triton_dist.ops.gemm_rs import fused as rs_fused
from triton_dist.runtime.errors import HangError
from triton_dist.runtime.workspace import Workspace

ag_user = import_module("triton_dist.ops.ag_gemm.op")      # triton_dist.ops.ag_gemm is the function
AG_KERNEL, RS_KERNEL = "triton_dist.ops.ag_gemm.kernels", "triton_dist.ops.gemm_rs.kernels"
EMULATOR = "triton_dist.backends.emulator.backend"
AG_PLACE = gather.Portable, "kernel", lambda m: m.ag_gemm_kernel
RS_PLACE = rs_fused.Portable, "kernel", lambda m: m.gemm_rs_kernel
AG_OP, WORKSPACE = "triton_dist.ops.ag_gemm.fused", "triton_dist.runtime.workspace"


def shapes(op):
    """An odd number of calls, repeated, so that each shape meets both halves."""
    calls = [op(70, 40, 96), op(9, 40, 50), op(40, 72, 64), op(70, 20, 96), op(1, 8, 16)]
    return lambda: back_to_back(calls, repeat=2)


def overtaken(op, slow=0):
    return lambda: overtaking([op(40, 40, 64), op(20, 24, 64)], slow=slow, repeat=4)


def wrap(op, kind):
    return lambda: near_the_wrap([op(20, 24, 40), op(40, 16, 40)], [kind])


def old_flags():
    """Flags that no call has written for nearly 2^31 calls."""
    near_the_wrap([RS(20, 24, 40), RS(40, 24, 40)], ["gemm_rs"], start=-2**31 + 5)


def pieces():
    """Shards pushed in one, two and four pieces, in turn."""
    return overtaking([AG(256, 24, 64), AG(64, 24, 8), AG(128, 24, 64)], slow=1, repeat=3)


def no_tiles():
    return overtaking([AG(20, lambda r: 24 * (r == 1), 40), AG(40, lambda r: 24 * (r == 1), 40)], slow=1, repeat=4)


# name: (module, old, new, (object, attribute, what of the mutant to put there), scenario)
MUTANTS = {
    "ag_gemm does not wait (1)": (
        AG_KERNEL, 'dl.wait(flags + tile_m // piece_tiles * world + chunk, 1, "sys", "acquire", epoch, cmp="ge")', "0",
        AG_PLACE, overtaken(AG)),
    "ag_gemm waits for the wrong piece (16)": (
        AG_KERNEL, "tile_m // piece_tiles * world + chunk, 1,", "0 * world + chunk, 1,", AG_PLACE, pieces),
    "ag_gemm compares unsigned (8)": (
        AG_KERNEL, 'world + chunk, 1, "sys", "acquire", epoch, cmp="ge")',
        'world + chunk, 1 * (epoch > 0), "sys", "acquire", epoch, cmp="ge")',
        AG_PLACE, wrap(AG, "ag_gemm")),
    "ag_gemm without the closing wait (11)": (
        AG_KERNEL, "if tl.program_id(0) == 0:", "if tl.program_id(0) < 0:", AG_PLACE, no_tiles),
    "ag_gemm writes the flag before the data (1)": (
        EMULATOR,
        "            stream.copy(to, base + offset, nbytes, keep=source)\n            stream.write_value32(flag, value)",
        "            stream.write_value32(flag, value)\n            stream.copy(to, base + offset, nbytes, keep=source)",
        (EmulatorBackend, "push", lambda m: m.EmulatorBackend.push), overtaken(AG)),
    "ag_gemm pushes before the stream's earlier work is done (15)": (
        AG_OP, "side.wait_stream(current)", "pass", (ag_fused.Fused, "run", lambda m: m.Fused.run), None),
    "gemm_rs does not wait (1)": (
        RS_KERNEL, 'dl.wait(flags + 2 * ((step - 1) * tiles + tile), 1, "sys", "acquire", epoch)', "0",
        RS_PLACE, overtaken(RS)),
    "gemm_rs waits for any epoch (7)": (
        RS_KERNEL, '1, "sys", "acquire", epoch)', '1, "sys", "acquire", 1, cmp="ge")', RS_PLACE, overtaken(RS)),
    "gemm_rs takes flags of long ago for new ones (8)": (
        RS_KERNEL, '1, "sys", "acquire", epoch)', '1, "sys", "acquire", epoch, cmp="ge")', RS_PLACE, old_flags),
    "gemm_rs keeps to one half of its flags (10)": (
        RS_KERNEL, "    flags += epoch & 1\n", "", RS_PLACE, overtaken(RS)),
    "gemm_rs adds to its flags (7)": (
        RS_KERNEL, "dl.notify(flags + 2 * (step * tiles + tile), successor, epoch)",
        'dl.notify(flags + 2 * (step * tiles + tile), successor, 1, "add")', RS_PLACE, shapes(RS)),
    "gemm_rs signals before it stores (1)": (
        RS_KERNEL, "            tl.store(slot + where, acc.to(slots.dtype.element_ty), mask=inside)\n"
        "            dl.notify(flags + 2 * (step * tiles + tile), successor, epoch)",
        "            dl.notify(flags + 2 * (step * tiles + tile), successor, epoch)\n"
        "            tl.store(slot + where, acc.to(slots.dtype.element_ty), mask=inside)",
        RS_PLACE, overtaken(RS)),
    "gemm_rs takes the half from the shape (10)": (
        RS_KERNEL, "    slots_in = slots + (epoch & 1).to(tl.int64) * half\n"
        "    slots_out = dl.symm_at(slots, successor) + (epoch & 1).to(tl.int64) * half",
        "    slots_in = slots + (epoch & 1).to(tl.int64) * (world - 1) * m * n\n"
        "    slots_out = dl.symm_at(slots, successor) + (epoch & 1).to(tl.int64) * (world - 1) * m * n",
        RS_PLACE, shapes(RS)),
    "gemm_rs keeps to one half (10)": (
        RS_KERNEL, "slots_out = dl.symm_at(slots, successor) + (epoch & 1).to(tl.int64) * half",
        "slots_in = slots\n    slots_out = dl.symm_at(slots, successor)", RS_PLACE, overtaken(RS)),
    "gemm_rs has an epoch for each program (9)": (
        RS_KERNEL, "count_call(control, epoch)", "tl.store(control + tl.program_id(0), epoch)", RS_PLACE, shapes(RS)),
    "the workspace keeps to one half (10)": (
        WORKSPACE, "return self.derived(dtype, lambda: list(self.data.view(dtype).view(self.num_halves, -1)))",
        "return [self.data[:self.half_bytes].view(dtype)] * self.num_halves",
        (Workspace, "halves", lambda m: m.Workspace.halves), overtaken(AG)),
    "the workspace places halves by the shape (10)": (
        AG_OP, "space.halves(x.dtype)", "space.data.view(x.dtype)[:2 * group.size * self.pitch * self.k].chunk(2)",
        (ag_user, "Fused", lambda m: m.Fused), shapes(AG)),
    "the workspace leaves new flags at zero (8)": (
        WORKSPACE, "self.flags.fill_(epoch)", "pass", (Workspace, "_restart_at", lambda m: m.Workspace._restart_at),
        lambda: near_the_wrap([AG(20, 24, 40)], ["ag_gemm"], start=-2**31 + 5)),
}


def caught(scenario) -> bool:
    """True when some schedule shows the fault: a wrong result or a hang."""
    for seed in range(8):
        for mode in ("random", "skew", "late", "priority"):
            try:
                run_ranks(scenario, 3, mode=mode, seed=seed)
            except (AssertionError, HangError):
                return True
    return False


def late_input():
    """A side stream still computes x when ag_gemm is called on it."""
    import torch

    import triton_dist
    from triton_dist.ops import ag_gemm
    from triton_dist.runtime.backend import backend
    from triton_dist.runtime.groups import resolve
    from triton_dist.testing import ag_gemm_float64, assert_matches, random_tensor
    group, side = resolve(), triton_dist.new_stream()
    source = random_tensor(40, 64, dtype=torch.float16, seed=group.rank)
    w = random_tensor(24, 64, dtype=torch.float16, seed=50 + group.rank)
    for _ in range(4):
        x = torch.full_like(source, float("nan"))
        with triton_dist.use_stream(side):
            backend().copy(x, source, side)
            out = ag_gemm(x, w, method="portable")
        triton_dist.synchronize()
        assert_matches(out, ag_gemm_float64(source, w, group), k=64)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(gather, "PIECE_BYTES", 4096)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, tmp_path):
    module, old, new, (target, attribute, find), scenario = MUTANTS[name]
    with mock.patch.object(target, attribute, find(mutated(module, old, new, tmp_path))):
        assert caught(scenario or late_input), f"survived: {name}"


@pytest.mark.parametrize("name", MUTANTS)
def test_the_rule_kept_is_not_reported(name):
    scenario = MUTANTS[name][4] or late_input
    run_ranks(scenario, 3, mode="skew", seed=0)

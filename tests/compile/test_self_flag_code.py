# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels of self-flagged stores compiled for every target: each access is made once, by one thread, 16 bytes wide."""
import re

import amd_isa
import pytest
from compile_util import CUDA, HIP, compile_kernel, instructions, position

from triton_dist.ops.exchange.kernels import one_hop_self_flagged
from triton_dist.ops.all_reduce.kernels import two_hops_self_flagged
from triton_dist.ops.all_reduce_rmsnorm.kernels import one_hop_rmsnorm, two_hops_rmsnorm

POINTERS = {"slots": "*i32", "control": "*i32", "team": "*i32", "scale": "*fp32", "scales": "*fp32", "quantised": "*i8"}
OPERANDS = ("x", "weight", "bias", "residual", "shift", "out", "residual_out")
KERNELS = [one_hop_self_flagged, two_hops_self_flagged, one_hop_rmsnorm, two_hops_rmsnorm]
TAKE, EMPTY = r"ld\.relaxed\.sys\.global\.v4\.b32", r"st\.global\.v4\.b32 \[%\w+\], \{t, t, t, t\}"
SEND = r"st\.volatile\.global\.v4\.b32"


def compiled(kernel, target: str, dtype: str = "bf16", world: int = 2, whole: bool = True, each: int = 1, warps: int = 8,
             quant: str = "", keep: bool = True, center: bool = False, bias: bool = True, one_row: bool = True, **options):
    """`kernel` with operands of `dtype`, as its op launches it. keep: the norm is stored in `dtype`, beside a quantised one."""
    types = {name: "constexpr" if name.isupper() else POINTERS.get(name, "i32") for name in kernel.arg_names}
    types.update({name: f"*{dtype}" for name in OPERANDS if name in types})
    known = dict(SCATTER=False, OP="sum", WORLD=world, THREADS=warps * (64 if target in HIP else 32), EACH=each, WHOLE=whole,
                 EPS=1e-6, WEIGHT_BIAS=0.0, HAS_BIAS=bias, HAS_RESIDUAL=True, ONE_ROW=one_row, HAS_OUT=keep, QUANT=quant,
                 CENTER=center, HAS_SHIFT=center)
    aligned = (*(OPERANDS if whole else ()), *POINTERS, "half", *(("n",) if "weight" in types and whole else ()))
    return compile_kernel(kernel, types, {name: value for name, value in known.items() if name in types}, target,
                          divisible=aligned, num_warps=warps, num_stages=1, **options)


def count(lines: list, pattern: str) -> int:
    return sum(bool(re.search(pattern, line)) for line in lines)


def sends_and_takes(kernel, world: int, each: int) -> tuple:
    """How many of each a thread makes in the kernel's text."""
    terms = 1 if world == 2 else world          # of two, only the other's is taken
    if kernel in (one_hop_self_flagged, one_hop_rmsnorm):
        return (world - 1) * each, terms * each
    return 2 * (world - 1) * each, (terms + (world - 1 if kernel is two_hops_self_flagged else 1)) * each


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("world, each", [(2, 1), (2, 4), (4, 1), (8, 1)])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_each_store_and_each_poll_stands_once(kernel, world, each, whole):
    """Triton may repeat an operation to have its result in another layout. A slot that is taken twice never fills again."""
    built = compiled(kernel, "sm_90", world=world, each=each, whole=whole)
    sends, takes = sends_and_takes(kernel, world, each)
    ttgir, lines = built.asm["ttgir"].splitlines(), instructions(built)
    assert (count(ttgir, "tdist_sf_store"), count(ttgir, "elementwise_inline_asm.*POLL")) == (sends, takes)
    rounds = count(lines, SEND) // sends        # LLVM may write the first turn of a loop apart
    assert rounds in (1, 2)
    assert (count(lines, SEND), count(lines, TAKE), count(lines, EMPTY)) == (rounds * sends, rounds * takes, rounds * takes)


@pytest.mark.every("kernel", "target")
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("target", CUDA)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_everything_is_sixteen_bytes_wide_and_nothing_is_fenced(kernel, target, dtype):
    built = compiled(kernel, target, dtype)
    lines = instructions(built)
    assert not [line for line in lines if re.search(r"\b(atom|red|fence|membar)\b", line)]
    assert not [line for line in lines if re.search(r"(ld|st)\.global\S*\.b16", line)], "element by element"
    assert count(lines, r"ld\.global\.v4\.b32") and count(lines, r"st\.global\.v4\.b32 \[ %")


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kernel", [one_hop_self_flagged, two_hops_self_flagged], ids=lambda k: k.__name__)
def test_reductions_stay_in_registers(kernel, whole):
    built = compiled(kernel, "sm_90", whole=whole)
    assert built.metadata.shared == 0
    assert not [line for line in instructions(built) if re.search(r"\.shared|shfl", line)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_with_bounded_waits_a_slot_is_polled_by_the_same_loop_which_reads_the_clock_seldom(kernel):
    """So a wait that is short takes no longer. A slot that has not filled in time is reported behind the loop."""
    lines, usual = instructions(compiled(kernel, "sm_90", bounded=True)), instructions(compiled(kernel, "sm_90"))
    takes = count(lines, TAKE)
    assert takes and takes % sends_and_takes(kernel, 2, 1)[1] == 0
    assert count(lines, EMPTY) == count(lines, r"ld\.const\.u64 limit") == takes
    assert count(lines, r"mov\.b32 polls, 4096") == 2 * takes and count(lines, "trap")
    assert not count(usual, r"mov\.b32 polls|limit") and not count(usual, "trap")


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("target", HIP)
def test_hip_stores_sixteen_bytes_and_polls_eight(target, kernel):
    lines = instructions(compiled(kernel, target))
    position(lines, amd_isa.PAIR_STORE[target])
    position(lines, amd_isa.PAIR_LOAD[target].replace("x4", "x2"))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_only_the_team_is_read_before_the_kernel_ahead_has_ended(kernel, target):
    from test_collective_code import parameters_behind
    lines = instructions(compiled(kernel, target))
    wait = position(lines, r"griddepcontrol\.wait")
    position(lines, r"griddepcontrol\.launch_dependents", wait)
    early = [(i, line) for i, line in enumerate(lines[:wait]) if ".global" in line]
    for i, line in early:
        assert line.startswith("ld.")
        assert parameters_behind(lines[:i], line.partition("[")[2]) == {kernel.arg_names.index("team")}

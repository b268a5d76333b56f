# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The norm's finish compiled for every target: what is quantised stays in registers, and costs no exchange of its own."""
import re
import subprocess
from pathlib import Path

import amd_isa
import pytest
import triton
from compile_util import CUDA, HIP, TARGETS, code, instructions
from test_self_flag_code import compiled, count

from triton_dist.ops.all_reduce_rmsnorm.kernels import one_hop_rmsnorm, two_hops_rmsnorm

KERNELS = [one_hop_rmsnorm, two_hops_rmsnorm]
QUANTS = ["tensor", "row", "group"]
BARRIER, SHARED = r"bar(rier)?\.(cta\.)?sync", r"(ld|st)\.shared"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel, quant", [*zip(KERNELS * 2, QUANTS), (one_hop_rmsnorm, "group")])
def test_it_compiles_for_every_target(kernel, quant, target):
    built = compiled(kernel, target, quant=quant, keep=False)
    if target in HIP:
        amd_isa.assert_sound(built, target)
    by_instruction = target in CUDA and int(target[3:]) >= 89
    assert count(instructions(built), r"cvt\.rn\.satfinite\.e4m3x2\.f32") == (4 * (1 + (kernel is two_hops_rmsnorm))
                                                                             if by_instruction else 0)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("quant", QUANTS)
def test_quantising_needs_no_barrier_no_memory_and_no_spill_of_its_own(kernel, quant):
    """Of rows of 8192: a row's largest size travels with its mean of squares; that of a group stays inside a warp."""
    plain, built = (compiled(kernel, "sm_90", warps=32, quant=word) for word in ("", quant))
    lines, usual = instructions(built), instructions(plain)
    norms, values = 1 + (kernel is two_hops_rmsnorm), 2 if quant == "row" else 1
    spare = norms - 1                   # two norms in a row may share a few words' exchange, one that is of two values may not
    assert 0 < count(usual, BARRIER) <= count(lines, BARRIER) <= count(usual, BARRIER) + spare
    assert 0 < count(lines, SHARED) <= values * count(usual, SHARED) + 4 * spare
    assert count(lines, r"redux\.sync\.max") == (norms if quant == "row" else 0), "in place of five exchanges of lanes"
    assert count(lines, r"st\.global\.b64") == norms, "eight numbers in one store"
    assert spilled(built) == 0


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("quant", QUANTS)
def test_other_dtypes_stay_in_registers_too(quant, dtype):
    plain, built = (compiled(one_hop_rmsnorm, "sm_90", dtype, warps=32, quant=word) for word in ("", quant))
    lines = instructions(built)
    assert count(lines, SHARED) == (2 if quant == "row" else 1) * count(instructions(plain), SHARED) and spilled(built) == 0
    assert not count(lines, r"st\.global\.b(8|16)") and count(lines, r"st\.global\.b64") == (dtype != "fp32")


@pytest.mark.parametrize("quant", QUANTS)
def test_rows_that_begin_anywhere_are_stored_byte_by_byte(quant):
    lines = instructions(compiled(one_hop_rmsnorm, "sm_90", whole=False, quant=quant))
    assert count(lines, r"st\.global\.b8") == 8


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_layer_norm_has_one_exchange_more(target):
    plain, built = (compiled(one_hop_rmsnorm, target, center=center) for center in (False, True))
    barrier = BARRIER if target in CUDA else "s_barrier"
    assert count(instructions(built), barrier) > count(instructions(plain), barrier)


def spilled(built) -> int:
    """Bytes that ptxas stores to memory for want of registers."""
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas-blackwell"        # takes any version of PTX
    told = subprocess.run([ptxas, "-v", "--gpu-name=sm_90a", "-o", "/dev/null", "/dev/stdin"], input=code(built), text=True,
                          capture_output=True, check=True).stderr
    return int(re.search(r"(\d+) bytes spill stores", told)[1])

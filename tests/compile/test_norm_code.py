# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The norm's finish compiled for every target: what is quantised stays in registers, and costs no exchange of its own."""
import re
import subprocess
import tempfile
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
    if quant == "row":                  # Triton 3.9 takes it between warps as well
        assert count(lines, r"redux\.sync\.max") in (norms, 2 * norms), "in place of five exchanges of lanes"
    assert count(lines, r"st\.global\.b64") == norms, "eight numbers in one store"
    assert spilled(built) == 0


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("quant", QUANTS)
def test_other_dtypes_stay_in_registers_too(quant, dtype):
    plain, built = (compiled(one_hop_rmsnorm, "sm_90", dtype, warps=32, quant=word) for word in ("", quant))
    lines = instructions(built)
    assert count(lines, SHARED) <= (2 if quant == "row" else 1) * count(instructions(plain), SHARED) and spilled(built) == 0
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


@pytest.mark.parametrize("warps", [4, 16, 32])
def test_a_program_of_one_row_has_one_exchange_and_no_loop_over_rows(warps):
    """Counts of the kernel that decoders call most. One barrier is count_call's; nothing follows what an option leaves out."""
    built = compiled(one_hop_rmsnorm, "sm_90", warps=warps)
    lines, lanes = instructions(built), min(warps, 32).bit_length() - 1
    assert (count(lines, BARRIER), count(lines, SHARED), count(lines, r"shfl\.sync")) == (2, 2, 5 + lanes)
    assert "scf.for" not in built.asm["ttgir"]
    assert not count(lines, r"cvt\.rn\.bf16\.f32") and count(lines, r"cvt\.rn\.bf16x2\.f32") == 8


@pytest.mark.parametrize("options", [{}, {"quant": "tensor", "keep": False}, {"quant": "row", "keep": False}, {"center": True}],
                         ids=["plain", "tensor", "row", "layernorm"])
def test_lanes_of_a_warp_go_on_together_once_their_words_have_come(options):
    """Lanes that leave a loop one by one run all that follows apart, unless the assembler sees where they meet.

    On 2 x H200 that took a row of 8192 from 3.5 to 3.9 us. BRA.DIV is a branch for lanes that are apart, YIELD lets them be.
    """
    built = compiled(one_hop_rmsnorm, "sm_90", warps=32, **options)
    lines = sass(built)
    assert not count(lines, r"BRA\.DIV|WARPSYNC\.COLLECTIVE|\bYIELD\b") and count(lines, r"VOTE\.ANY")


def test_the_plain_norm_is_no_longer_than_it_was():
    """Instructions and registers for a row of 8192 with a residual. Two programs of 1024 threads fit an SM."""
    built = compiled(one_hop_rmsnorm, "sm_90", warps=32, bias=False)
    assert len([line for line in sass(built) if "NOP" not in line]) <= 280
    assert int(re.search(r"Used (\d+) registers", assembled(built))[1]) <= 32 and spilled(built) == 0


def test_little_of_the_scales_of_groups_follows_the_exchange_of_the_row():
    """On 2 x H200, 256 rows of 8192 and two programs on an SM, an instruction that all warps run there takes 8 ns.

    So sizes are compared while the sums of squares are on their way, and what the largest is rounded to takes no slow conversion.
    """
    plain, built = (sass(compiled(one_hop_rmsnorm, "sm_90", warps=32, quant=quant, keep=not quant, bias=False))
                    for quant in ("", "group"))
    after = [len(lines[max(i for i, line in enumerate(lines) if re.search(r"BAR\.SYNC", line)):ended(lines)])
             for lines in (plain, built)]
    assert after[1] <= after[0] + 80 and not count(built, r"F2F\.")
    first_of_squares = min(i for i, line in enumerate(built) if "MUFU.RSQ" in line)
    assert max(i for i, line in enumerate(built) if "VIMNMX" in line or "SHFL" in line) < first_of_squares


def ended(lines: list) -> int:
    """Where the last EXIT is; behind it are functions."""
    return max(i for i, line in enumerate(lines) if "EXIT" in line)


def tool(name: str, *args: object, **options: object) -> subprocess.CompletedProcess:
    """Runs one of the programs for machine code that come with Triton."""
    return subprocess.run([Path(triton.__file__).parent / "backends/nvidia/bin" / name, *args], capture_output=True, check=True,
                          **options)


def sass(built) -> list[str]:
    """The machine's own instructions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(built.asm["cubin"])
        told = tool("nvdisasm", "-c", file.name, text=True).stdout
    return [line for line in told.splitlines() if re.match(r"\s+/\*[0-9a-f]{4,}\*/", line)]


def assembled(built) -> str:
    """What ptxas says of a kernel."""
    options = "-v", "--gpu-name=sm_90a", "-o", "/dev/null", "/dev/stdin"
    return tool("ptxas-blackwell", *options, input=code(built), text=True).stderr       # takes any version of PTX


def spilled(built) -> int:
    """Bytes that ptxas stores to memory for want of registers."""
    return int(re.search(r"(\d+) bytes spill stores", assembled(built))[1])

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernel for bias, residual and norm of rows, compiled for every target, and what must hold of the code for it to be fast."""
import re

import amd_isa
import pytest
from compile_util import HIP, TARGETS, compile_kernel, instructions, position
from test_norm_code import assembled, spilled
from test_self_flag_code import count

from triton_dist.ops.norm_rows.kernels import norm_rows_kernel

POINTERS = {"scale": "*fp32", "scales": "*fp32", "quantised": "*i8"}
DATA = ("x", "weight", "bias", "residual", "out", "total", "shift")


def compiled(target: str, dtype: str = "bf16", warps: int = 8, each: int = 4, norm: bool = True, residual: bool = True,
             bias: bool = False, center: bool = False, quant: str = "", keep: bool = True, whole: bool = True):
    """The kernel with rows whose sizes and strides are divisible by 16, as usual shapes are."""
    types = {name: "constexpr" if name.isupper() else f"*{dtype}" if name in DATA else POINTERS.get(name, "i32")
             for name in norm_rows_kernel.arg_names}
    known = dict(EPS=1e-6, WEIGHT_BIAS=0.0, CENTER=center, HAS_BIAS=bias, HAS_RESIDUAL=residual, HAS_TOTAL=residual or bias,
                 HAS_SHIFT=center, NORM=norm, HAS_OUT=norm and keep, QUANT=quant,
                 THREADS=warps * (64 if target in HIP else 32), EACH=each, WHOLE=whole)
    aligned = tuple(name for name, kind in types.items() if kind != "constexpr" and name not in ("row_step", "group_step"))
    return compile_kernel(norm_rows_kernel, types, known, target, divisible=aligned, num_warps=warps, num_stages=1)


@pytest.mark.every("target")
@pytest.mark.parametrize("options", [
    {}, dict(residual=False), dict(norm=False, bias=True), dict(center=True, bias=True, dtype="fp16"),
    dict(quant="row", keep=False), dict(quant="group", dtype="fp32"), dict(quant="tensor", whole=False, each=1)],
    ids=["usual", "norm alone", "addition alone", "layernorm", "fp8 row", "fp8 group", "odd rows"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_for_every_target_keeps_its_row_in_registers(target, options):
    built = compiled(target, **options)
    if target in HIP:
        amd_isa.assert_sound(built, target)
    assert not re.search(r"(\.local\.|scratch_)", "\n".join(instructions(built)))
    if target == "sm_90":
        assert spilled(built) == 0


@pytest.mark.parametrize("warps, each, residual", [(16, 2, True), (8, 2, True), (8, 4, False), (4, 4, False)])
def test_as_many_programs_fit_on_an_sm_as_hide_memory(warps, each, residual):
    """Of rows of 8192 and of 4096: at least 1024 threads of an SM have their loads on the way, 16 bytes each and more."""
    built = compiled("sm_90", warps=warps, each=each, residual=residual)
    lines = instructions(built)
    assert int(re.search(r"Used (\d+) registers", assembled(built))[1]) <= 64 and spilled(built) == 0
    assert count(lines, r"ld\.global\.v4") == (2 + residual) * each and count(lines, r"st\.global\.v4") == (1 + residual) * each


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_nothing_is_read_or_written_before_its_turn(target):
    lines = instructions(compiled(target))
    turn = position(lines, r"griddepcontrol\.wait")
    assert not [line for line in lines[:turn] if re.search(r"\b(ld\.global|st\.global)", line)]

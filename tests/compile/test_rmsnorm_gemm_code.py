# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernels of rmsnorm_gemm compiled for every target, and what must hold of the code for it to be fast."""
import re

import pytest
from compile_util import HIP, TARGETS, code, compile_kernel, instructions, position
from test_norm_code import spilled

from triton_dist.ops.rmsnorm_gemm.kernels import few_rows_kernel

OPERANDS = ("x", "weight", "bias", "residual", "out", "total")


def built(kernel, target: str, dtype: str, known: dict, **options):
    """`kernel` with operands of `dtype`; sizes and strides divisible by 16, as usual shapes are, but for the number of rows."""
    types = {name: "constexpr" if name.isupper() else f"*{dtype}" if name in OPERANDS else "i32" for name in kernel.arg_names}
    aligned = tuple(name for name, kind in types.items() if kind != "constexpr" and name != "m")
    return compile_kernel(kernel, types, known, target, divisible=aligned, **options)


def compiled(target: str, dtype: str = "bf16", rows: int = 16, silu: bool = True, columns: int = 64, depth: int = 128,
             warps: int = 4, stages: int | None = None, ahead: int = 2):
    """The product, with a bias."""
    known = dict(HAS_BIAS=True, SILU=silu, EVEN_K=True, PRECISION="ieee", AHEAD=ahead, BLOCK_M=rows, BLOCK_N=columns,
                 BLOCK_K=depth)
    return built(few_rows_kernel, target, dtype, known, num_warps=warps, num_stages=stages or (2 if target in HIP else 4))


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_for_every_target_multiplies_by_mma(target, dtype, silu):
    text = "\n".join(instructions(compiled(target, dtype, silu=silu, depth=64)))
    assert re.search("mfma" if target in HIP else r"(mma\.sync|wgmma|tcgen05\.mma)", text)


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_fp32_is_multiplied_without_rounding_its_operands(target):
    text = "\n".join(instructions(compiled(target, "fp32", depth=32)))
    assert not re.search(r"mma\S*\.(tf32|bf16)", text) and re.search(r"fma|mfma_f32_\d+x\d+x\d+_?f32", text)


@pytest.mark.parametrize("rows, columns, warps, stages, programs", [
    (16, 64, 4, 6, 1), (16, 64, 4, 4, 2), (32, 64, 4, 6, 1), (32, 64, 4, 4, 2), (64, 64, 4, 6, 1), (64, 128, 8, 3, 1)])
@pytest.mark.parametrize("target", ["sm_90", pytest.param("sm_100", marks=pytest.mark.full)])
def test_weights_are_on_their_way_while_others_are_multiplied(target, rows, columns, warps, stages, programs):
    """As decoders call it: weights pass registers by, nothing is spilled, and as many programs fit on an SM as are to run."""
    kernel = compiled(target, rows=rows, columns=columns, warps=warps, stages=stages)
    text = "\n".join(instructions(kernel))
    assert re.search(r"cp\.async\.cg\.shared\.global", text) and re.search(r"(wgmma\.mma_async|tcgen05\.mma)", text)
    assert not re.search(r"(mma\.sync|\.local\.)", text)
    assert programs * (kernel.metadata.shared + 1024) <= 228 << 10
    if target == "sm_90":
        assert spilled(kernel) == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_weights_are_asked_for_before_the_turn_and_nothing_is_read(target):
    lines = instructions(compiled(target, depth=64))
    ask = position(lines, r"prefetch\.global\.L2")
    if target == "sm_80":
        assert "griddepcontrol" not in code(compiled(target, depth=64))
        return
    turn = position(lines, r"griddepcontrol\.wait")
    assert ask < turn and not [line for line in lines[:turn] if re.search(r"\b(ld\.global|cp\.async|st\.global)", line)]
    assert not [line for line in lines[turn:] if "prefetch" in line]

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernel of gemm_ar_rmsnorm compiled for every target, and what must hold of the code for it to be fast."""
import re

import pytest
from compile_util import HIP, PAIR, TARGETS, compile_kernel, instructions, position
from test_gemm_ar_code import multiplies_and_moves_whole_pairs
from test_norm_code import spilled

from triton_dist.ops.gemm_ar_rmsnorm.kernels import gemm_ar_rmsnorm_kernel

POINTERS = {"slots": "*i64", "control": "*i32", "team": "*i32"}
OPERANDS = ("x", "weight", "bias", "residual", "norm_weight", "out", "residual_out")


def compiled(target: str, dtype: str = "bf16", world: int = 4, rows: int = 16, split: int = 1, each: int = 2, shared: bool = True,
             whole: bool = True, boxes: bool = False, columns: int = 64, warps: int = 4, stages: int | None = None):
    """The kernel with operands of `dtype` and a bias and a residual; k and the strides divisible by 16, as usual shapes are."""
    kernel = gemm_ar_rmsnorm_kernel
    types = {name: "constexpr" if name.isupper() else POINTERS.get(name, "i32") for name in kernel.arg_names}
    types.update({name: f"*{dtype}" for name in OPERANDS})
    depth = 128 if rows < 64 and warps == 8 else 64
    if boxes:
        types.update(x=f"tensordesc<{dtype}[{rows}, {depth}]>", weight=f"tensordesc<{dtype}[{columns}, {depth}]>")
    known = dict(EPS=1e-6, WEIGHT_BIAS=0.0, WORLD=world, RANKS=1 << (world - 1).bit_length(), SPLIT=split, EACH=each,
                 SHARED=shared, HAS_BIAS=True, HAS_RESIDUAL=True, WHOLE=whole, BOXES=boxes, EVEN_K=True, PRECISION="ieee",
                 THREADS=warps * (64 if target in HIP else 32), BLOCK_M=rows, BLOCK_N=columns, BLOCK_K=depth)
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name in ("half", "k", "stride_x", "stride_w")]
    return compile_kernel(kernel, types, known, target, divisible=tuple(aligned), num_warps=warps,
                          num_stages=stages or (2 if target in HIP else 4))


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_for_every_target_moves_whole_pairs(target, several):
    multiplies_and_moves_whole_pairs(instructions(compiled(target, split=2, shared=several)), target)


@pytest.mark.parametrize("rows, split, each", [(16, 2, 1), (32, 2, 8), (64, 1, 16)])
@pytest.mark.parametrize("target", ["sm_90", pytest.param("sm_100", marks=pytest.mark.full)])
def test_boxes_pass_registers_by_and_rows_stay_in_them(target, rows, split, each):
    """As decoders call it on 2 GPUs: weights go from memory to the MMA by TMA and shared memory, and nothing is spilled."""
    kernel = compiled(target, world=2, rows=rows, split=split, each=each, boxes=True, columns=128, warps=8, stages=5)
    text = "\n".join(instructions(kernel))
    assert re.search(r"cp\.async\.bulk\.tensor\.2d", text) and re.search(r"(wgmma\.mma_async|tcgen05\.mma)", text)
    assert not re.search(r"(cp\.async\.c[ag]|mma\.sync|\.local\.)", text)
    assert kernel.metadata.shared <= 227 << 10
    if target == "sm_90":
        assert spilled(kernel) == 0


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_nothing_is_fenced(dtype, world, whole):
    """Packets carry their flag; whatever the dtype, the number of ranks and the alignment."""
    lines = instructions(compiled("sm_90", dtype, world, split=2, whole=whole))
    assert not [line for line in lines if re.search(r"\b(atom|red|membar|fence\.(acq_rel|sc))\b", line)]
    position(lines, "ld" + PAIR)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The GEMM-AllReduce kernel compiled for every target, and what must hold of the code for it to be fast."""
import re

import amd_isa
import pytest
from compile_util import HIP, PAIR, TARGETS, compile_kernel, instructions, position

from triton_dist.ops.gemm_ar.kernels import gemm_ar_kernel

POINTERS = {"slots": "*i64", "control": "*i32", "team": "*i32"}
OPERANDS = ("x", "weight", "bias", "residual", "out")


def compiled(target: str, dtype: str = "bf16", world: int = 4, rows: int = 16, split: int = 1, two_shot: bool = False,
             even_k: bool = True, whole: bool = True, boxes: bool = False, columns: int = 64, stages: int | None = None):
    """The kernel with operands of `dtype` and a bias and a residual; k and the strides divisible by 16, as usual shapes are."""
    kernel, warps = gemm_ar_kernel, 4
    types = {name: "constexpr" if name.isupper() else POINTERS.get(name, "i32") for name in kernel.arg_names}
    types.update({name: f"*{dtype}" for name in OPERANDS})
    if boxes:
        types.update(x=f"tensordesc<{dtype}[{rows}, 64]>", weight=f"tensordesc<{dtype}[{columns}, 64]>")
    known = dict(WORLD=world, RANKS=1 << (world - 1).bit_length(), TWO_SHOT=two_shot, SPLIT=split, HAS_BIAS=True,
                 HAS_RESIDUAL=True, WHOLE=whole, BOXES=boxes, EVEN_K=even_k, PRECISION="ieee",
                 THREADS=warps * (64 if target in HIP else 32), BLOCK_M=rows, BLOCK_N=columns, BLOCK_K=64)
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name in ("half", "k", "stride_x", "stride_w")]
    return compile_kernel(kernel, types, known, target, divisible=tuple(aligned), num_warps=warps,
                          num_stages=stages or (2 if target in HIP else 4))


def multiplies_and_moves_whole_pairs(lines, target):
    """Asserts that tiles are multiplied by matrix units, and that both packets of a pair are stored and loaded at once."""
    if target in HIP:
        assert re.search("mfma", "\n".join(lines))
        position(lines, amd_isa.PAIR_STORE[target])
        position(lines, amd_isa.PAIR_LOAD[target])
    else:
        assert any(re.search(r"(mma\.sync|tcgen05\.mma|wgmma)", line) for line in lines)
        position(lines, "st" + PAIR)
        position(lines, "ld" + PAIR)


@pytest.mark.parametrize("split, two_shot", [(1, False), (2, True)])
@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_for_every_target_moves_whole_pairs(target, split, two_shot):
    multiplies_and_moves_whole_pairs(instructions(compiled(target, split=split, two_shot=two_shot)), target)


@pytest.mark.parametrize("even_k", [True, False])
@pytest.mark.parametrize("split", [1, 4])
@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_weights_stream_in_wide_copies(target, rows, split, even_k):
    text = "\n".join(instructions(compiled(target, rows=rows, split=split, even_k=even_k)))
    copies = re.findall(r"cp\.async\.\S+.*?0x([0-9a-f]+)", text)
    assert copies, "no cp.async: the loop is not pipelined"
    assert set(copies) == {"10"}, f"copies of {set(copies)} bytes, expected 0x10"


@pytest.mark.parametrize("two_shot", [False, True])
@pytest.mark.parametrize("rows, split", [(16, 4), (32, 2), (64, 2)])
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_boxes_pass_registers_by(target, rows, split, two_shot):
    """Weights go from memory to the MMA by TMA and shared memory, and nothing is spilled."""
    kernel = compiled(target, rows=rows, split=split, two_shot=two_shot, boxes=True, columns=128, stages=6)
    text = "\n".join(instructions(kernel))
    assert re.search(r"cp\.async\.bulk\.tensor\.2d", text) and re.search(r"(wgmma\.mma_async|tcgen05\.mma)", text)
    assert not re.search(r"(cp\.async\.c[ag]|mma\.sync|\.local\.)", text)
    assert kernel.metadata.shared <= 227 << 10


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_nothing_is_fenced(dtype, world, whole):
    """Packets carry their flag; whatever the dtype, the number of ranks and the alignment. What wgmma has is of shared memory."""
    lines = instructions(compiled("sm_90", dtype, world, split=2, whole=whole))
    assert not [line for line in lines if re.search(r"\b(atom|red|membar|fence\.(acq_rel|sc))\b", line)]
    position(lines, "ld" + PAIR)


@pytest.mark.parametrize("dtype, each", [("bf16", 2), ("fp32", 4)])
def test_a_word_is_sent_once_to_each_rank(dtype, each):
    """128 threads hold a tile of 16 x 64 elements, each its own words; what several threads have would travel several times."""
    for two_shot, expected in ((False, 4 * each), (True, each + 1)):
        lines = instructions(compiled("sm_90", dtype, two_shot=two_shot))
        assert sum(bool(re.search("st" + PAIR, line)) for line in lines) == expected

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernel of all_reduce_rmsnorm compiled for every target, and what must hold of the code for it to be fast."""
import re

import pytest
from compile_util import CUDA, HIP, PAIR, TARGETS, compile_kernel, instructions, position

from triton_dist.ops.all_reduce_rmsnorm.kernels import all_reduce_rmsnorm_kernel

POINTERS = {"slots": "*i64", "control": "*i32", "team": "*i32"}
OPERANDS = ("x", "weight", "bias", "residual", "out", "residual_out")


def compiled(target: str, dtype: str = "bf16", world: int = 4, two_shot: bool = False, whole: bool = True, warps: int = 16):
    """The kernel with operands of `dtype`, a bias and a residual; n divisible by 16, as usual rows are."""
    kernel = all_reduce_rmsnorm_kernel
    types = {name: "constexpr" if name.isupper() else POINTERS.get(name, "i32") for name in kernel.arg_names}
    types.update({name: f"*{dtype}" for name in OPERANDS})
    known = dict(EPS=1e-6, TWO_SHOT=two_shot, HAS_BIAS=True, HAS_RESIDUAL=True, WORLD=world, RANKS=1 << (world - 1).bit_length(),
                 THREADS=warps * (64 if target in HIP else 32), WHOLE=whole)
    aligned = (*OPERANDS, *POINTERS, "half", "n") if whole else (*POINTERS, "half")
    return compile_kernel(kernel, types, known, target, divisible=aligned, num_warps=warps, num_stages=1)


@pytest.mark.parametrize("two_shot", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_for_every_target_moves_whole_pairs(target, two_shot):
    lines = instructions(compiled(target, two_shot=two_shot))
    if target in HIP:
        position(lines, r"global_store_dwordx4 .* sc0 sc1")
        position(lines, r"global_load_dwordx4 .* sc0 sc1")
    else:
        position(lines, "st" + PAIR)
        position(lines, "ld" + PAIR)


@pytest.mark.parametrize("two_shot", [False, True])
@pytest.mark.parametrize("target", CUDA)
def test_the_norm_reads_the_row_behind_a_barrier_in_wide_loads(target, two_shot):
    """Four elements a thread, twice: of the row and of the weight; behind the last wait and the barrier."""
    lines = instructions(compiled(target, two_shot=two_shot))
    waited = max(i for i, line in enumerate(lines) if re.search("ld" + PAIR, line))
    barrier = max(i for i, line in enumerate(lines) if "bar.sync" in line)
    wide = [i for i, line in enumerate(lines) if re.search(r"ld\.global\S*\.v2\.b32", line)]
    assert barrier > waited and len([i for i in wide if i > barrier]) >= 2
    stores = [i for i, line in enumerate(lines) if re.search(r"st\.global\S*\.v2\.b32", line)]
    assert max(stores) > max(wide)


@pytest.mark.parametrize("two_shot", [False, True])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_nothing_is_fenced(dtype, world, whole, two_shot):
    """Packets carry their flag; whatever the dtype, the number of ranks and the alignment."""
    lines = instructions(compiled("sm_90", dtype, world, two_shot, whole))
    assert not [line for line in lines if re.search(r"\b(atom|red|fence|membar)\b", line)]
    position(lines, "ld" + PAIR)

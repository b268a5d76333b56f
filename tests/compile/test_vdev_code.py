# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernel of all_to_all_vdev compiled for every target, and what must hold of the code for it to be fast."""
import re

import amd_isa
import pytest
from compile_util import (CUDA, HIP, PAIR, PLAIN_RELEASE, TARGETS, compile_kernel, instructions, position,
                          released_behind_a_barrier)

from triton_dist.ops.all_to_all_vdev.kernels import all_to_all_vdev_kernel

POINTERS = {"slots": "*i64", "flags": "*i32", "control": "*i32", "team": "*i32"}


def compiled(target: str, dtype: str = "bf16", world: int = 4, splits: str = "i64", whole: bool = True, warps: int = 8):
    """The kernel with rows of a multiple of 16 elements where `whole`."""
    kernel = all_to_all_vdev_kernel
    types = {name: "constexpr" if name.isupper() else POINTERS.get(name, "i32") for name in kernel.arg_names}
    types.update({name: f"*{dtype}" for name in ("x", "out", "data")})
    types.update({name: f"*{splits}" for name in ("in_splits", "out_splits_offsets")})
    known = dict(WORLD=world, RANKS=1 << (world - 1).bit_length(), BLOCK=4096)
    aligned = ("x", "out", "data", "in_splits", "out_splits_offsets", *POINTERS, "slots_half", "half",
               *(("row",) if whole else ()))
    return compile_kernel(kernel, types, known, target, divisible=aligned, num_warps=warps, num_stages=1)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_for_every_target_moves_whole_pairs_and_wide_rows(target):
    """16 bytes a thread: x, what came, and both stores; and packets of counts."""
    lines = instructions(compiled(target))
    if target in HIP:
        position(lines, amd_isa.PAIR_STORE[target])
        position(lines, amd_isa.PAIR_LOAD[target])
        assert sum("global_load_dwordx4" in line for line in lines) > 1
    else:
        position(lines, "st" + PAIR)
        position(lines, "ld" + PAIR)
        assert not [line for line in lines if re.search(r"(ld|st)\.global\.b16", line)]
        for what in (r"ld\.global\S*\.v4\.b32", r"st\.global\S*\.v4\.b32"):
            position(lines, what)


@pytest.mark.parametrize("target", CUDA)
def test_rows_are_released_behind_a_barrier(target):
    released_behind_a_barrier(instructions(compiled(target)))


def test_code_of_rows_does_not_grow_with_ranks():
    """Else 64 ranks compile for half a minute."""
    moves = [[line for line in instructions(compiled("sm_90", world=world)) if re.search(r"st\.global\S*\.v4\.b32", line)]
             for world in (8, 64)]
    assert len(moves[0]) == len(moves[1]) > 0


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("splits", ["i32", "i64"])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_other_dtypes_and_worlds(dtype, world, splits, whole):
    assert "ld" in "".join(instructions(compiled("sm_90", dtype, world, splits, whole)))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernel of the all-to-alls of chunks compiled for every target, and what must hold of the code for it to be fast."""
import re

import pytest
from amd_isa import assert_sound
from compile_util import CUDA, HIP, TARGETS, compile_kernel, instructions, position, released_behind_a_barrier

from triton_dist.ops.all_to_all_vdev_2d.kernels import all_to_all_vdev_2d_kernel

POINTERS = {"packets": "*i64", "flags": "*i32", "control": "*i32", "team": "*i32"}


def compiled(target: str, dtype: str = "bf16", world: int = 4, splits: str = "i64", by_rank: bool = True, experts: int = 32):
    """The kernel for rows of a multiple of 16 elements."""
    kernel = all_to_all_vdev_2d_kernel
    types = {name: "constexpr" if name.isupper() else POINTERS.get(name, "i32") for name in kernel.arg_names}
    types.update({name: f"*{dtype}" for name in ("x", "out", "data")})
    types.update({name: f"*{splits}" for name in ("in_splits", "out_splits_offsets")})
    known = dict(BY_RANK=by_rank, EXPERTS=experts, E_PAD=1 << (experts - 1).bit_length(), WORLD=world,
                 RANKS=1 << (world - 1).bit_length(), ROWS=2, COLS=8192)
    aligned = ("x", "out", "data", "in_splits", "out_splits_offsets", *POINTERS, "packets_half", "half", "flags_half",
               "flags_source", "row")
    return compile_kernel(kernel, types, known, target, divisible=aligned, num_warps=8, num_stages=1)


@pytest.mark.parametrize("by_rank", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_for_every_target_moves_wide_rows(target, by_rank):
    made = compiled(target, by_rank=by_rank)
    lines = assert_sound(made, target) if target in HIP else instructions(made)
    for what in ((r"global_load_dwordx4", r"global_store_dwordx4") if target in HIP else
                 (r"ld\.global\S*\.v4\.b32", r"st\.global\S*\.v4\.b32")):
        position(lines, what)


@pytest.mark.parametrize("target", CUDA)
def test_rows_are_released_behind_a_barrier(target):
    released_behind_a_barrier(instructions(compiled(target)))


def test_code_of_rows_does_not_grow_with_ranks():
    stores = r"st\.global\S*\.v4\.b32"
    moves = [[line for line in instructions(compiled("sm_90", world=world, experts=4)) if re.search(stores, line)]
             for world in (8, 64)]
    assert len(moves[0]) == len(moves[1]) > 0


@pytest.mark.parametrize("splits", ["i32", "i64"])
@pytest.mark.parametrize("world, experts", [(1, 1), (2, 128), (3, 5)])
def test_other_dtypes_and_worlds(world, experts, splits):
    assert "ld" in "".join(instructions(compiled("sm_90", "fp32", world, splits, experts=experts)))

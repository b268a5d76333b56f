# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch and combine of few tokens compiled for every target: each slot is taken once, 16 bytes at a time, without a fence."""
import re

import amd_isa
import pytest
import triton
from amd_isa import assert_sound
from compile_util import HIP, TARGETS, compile_kernel, instructions, position
from test_norm_code import spilled
from test_self_flag_code import EMPTY, SEND, TAKE, count

from triton_dist.ops.ep_combine.self_flagged_kernel import ep_combine_self_flagged
from triton_dist.ops.ep_dispatch.self_flagged_kernel import ep_dispatch_self_flagged

POINTERS = {
    **dict.fromkeys(("weights", "scales", "scales_out", "weights_out"), "*fp32"),
    **dict.fromkeys(("ids", "ids_out", "told", "positions", "sources", "slots", "control", "team"), "*i32"),
    "packets": "*i64",
}
ROWS_OF = ("x", "y", "out", "bias", "residual")
KNOWN = dict(K=8, CHOICES=8, WEIGHTS=True, ORDERED=False, EXPANDED=False, MASKED=False, E_LOC=32, E_PAD=32, TOKENS=1, EACH=1,
             PARTS=1, PITCH=256, TELLERS=1, BLOCK=128, PLACED=False, WEIGHTED=False, HAS_BIAS=False, HAS_RESIDUAL=True)
BY_EXPERT = dict(ORDERED=True, EXPANDED=True, TELLERS=4, COUNTED=64)


def compiled(kernel, target: str, dtype: str = "bf16", world: int = 2, vectors: int = 896, quant: bool = False, parts: int = 1,
             warps: int = 32, **known):
    """`kernel` for rows of `vectors` vectors, as its op launches it."""
    threads = warps * (64 if target in HIP else 32)
    if threads > 1024:
        threads, warps = 1024, 16
    pieces = -(-vectors // threads)
    scales = vectors // 8 if quant else 0
    head = max(threads, 1 << (16 + scales + pieces - 1).bit_length())
    known = {**KNOWN, "WORLD": world, "RANKS": 1 << (world - 1).bit_length(), "THREADS": threads, "PIECES": pieces,
             "PARTS": parts, "SCALES": scales, "QUANT": quant, "HEAD": head, "COUNTED": 256, **known}
    types = {
        name: "constexpr" if name.isupper() else POINTERS.get(name, f"*{dtype}" if name in ROWS_OF else "i32")
        for name in kernel.arg_names
    }
    if quant:
        types["out"] = "*i8"
    return compile_kernel(kernel, types, {name: value for name, value in known.items() if name in types}, target,
                          divisible=[n for n, ty in types.items() if ty[0] == "*" or n in ("half", "packets_half", "vectors")],
                          num_warps=warps, num_stages=1, **({} if kernel is ep_dispatch_self_flagged else
                                                            dict(enable_fp_fusion=False)))


KERNELS = {
    "dispatch self-flagged": (ep_dispatch_self_flagged, {}),
    "dispatch self-flagged, by expert": (ep_dispatch_self_flagged, BY_EXPERT),
    "dispatch self-flagged, fp8 on the way": (ep_dispatch_self_flagged, dict(quant=True, vectors=448, warps=16)),
    "combine self-flagged": (ep_combine_self_flagged, dict(PLACED=True, WEIGHTED=True)),
    "combine self-flagged, compact": (ep_combine_self_flagged, {}),
}
ONES = list({kernel: name for name, (kernel, _) in reversed(KERNELS.items())}.values())  # one form of each


@pytest.mark.every("kernel", "target")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", ONES)
def test_a_kernel_for_every_target_sends_and_takes_wide_words(kernel, target):
    """A slot is sent and taken once, by one thread, and nothing is fenced. 16 bytes a thread, taken as two pairs on AMD GPUs."""
    function, known = KERNELS[kernel]
    made = compiled(function, target, **known)
    ttgir = made.asm["ttgir"].splitlines()
    assert count(ttgir, "tdist_sf_store") == 1
    if target in HIP:
        lines = assert_sound(made, target)
        assert count(ttgir, "tdist_sf_take_pair") == 2
        position(lines, amd_isa.PAIR_STORE[target])
        position(lines, amd_isa.PAIR_LOAD[target].replace("x4", "x2"))
        position(lines, r"global_load_dwordx4")
        position(lines, r"global_store_dwordx4")
        assert not [line for line in lines if re.match(r"buffer_(wb|inv)", line)]
        return
    lines = instructions(made)
    assert count(ttgir, "elementwise_inline_asm.*POLL") == 1
    takes = count(lines, TAKE)
    assert takes == count(lines, EMPTY) and takes in (1, 2) and count(lines, SEND)  # LLVM may write a loop's first turn apart
    assert not [line for line in lines if re.search(r"\b(atom|red|fence|membar)\b", line)]
    assert not [line for line in lines if re.search(r"(ld|st)\.global\S*\.b16", line)], "element by element"
    assert count(lines, r"ld\.global\.v4\.b32") and count(lines, r"st\.global\.v4\.b32 \[ %")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name not in ONES])
def test_another_form_of_it_does_too(kernel, target):
    test_a_kernel_for_every_target_sends_and_takes_wide_words(kernel, target)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_hardly_anything_is_spilled(kernel, dtype):
    """ptxas gives each thread 64 registers, so that an SM has room for 1024 threads. A few words of addresses may not fit.

    Triton 3.9 unrolls the loop over choices, which in fp32 takes more.
    """
    function, known = KERNELS[kernel]
    unrolled = kernel == "combine self-flagged" and dtype == "fp32" and not triton.__version__.startswith("3.6")
    assert spilled(compiled(function, "sm_90", dtype, **known)) <= (144 if unrolled else 32 if "fp8" in kernel else 0)


@pytest.mark.parametrize("kernel", ["dispatch self-flagged", "dispatch self-flagged, fp8 on the way"])
def test_a_program_that_moves_rows_meets_few_barriers(kernel):
    """Three for the key, which fp8 does without, and one before the epoch is counted. They cost more than all else of a token."""
    function, known = KERNELS[kernel]
    lines = instructions(compiled(function, "sm_90", **known))
    first = position(lines, r"ld\.global\.v4\.b32")  # tellers, which load no rows, stand elsewhere in the text
    taken = position(lines, TAKE, first)
    assert count(lines[first:taken], r"bar\.sync") <= (1 if "fp8" in kernel else 4)


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_other_worlds_and_pieces(kernel, target):
    function, known = KERNELS[kernel]
    for more in (dict(world=8), dict(world=1, K=1, CHOICES=1), dict(world=3, parts=2, warps=4, TOKENS=4)):
        assert instructions(compiled(function, target, **{**known, **more}))

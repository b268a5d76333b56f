# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The portable op kernels compiled for every target, and what must hold of the code."""
import re

import amd_isa
import pytest
from compile_util import ONE_HIP, PLAIN_RELEASE, TARGETS, compile_kernel, instructions, position

from triton_dist.ops.ag_gemm.arrived_kernel import arrived_kernel
from triton_dist.ops.ag_gemm.by_sms_kernels import ag_gemm_by_sms_kernel, push_kernel
from triton_dist.ops.ag_gemm.enter_kernel import enter_kernel
from triton_dist.ops.ag_gemm.kernels import ag_gemm_kernel
from triton_dist.ops.gemm_rs.kernels import gemm_rs_kernel
from triton_dist.ops.gemm_rs.scatter_kernel import gemm_rs_scatter_kernel

KERNELS = [ag_gemm_kernel, ag_gemm_by_sms_kernel, gemm_rs_kernel, gemm_rs_scatter_kernel]
CONSTEXPRS = dict(HAS_BIAS=True, PRECISION="ieee", BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP_M=8)
_POINTERS = {"flags": "*i32", "control": "*i32", "team": "*i32"}


def compiled(kernel, target: str, even_k: bool = True, dtype: str = "bf16", **tiling):
    """`kernel` with operands of `dtype`; n, k and the strides divisible by 16, as usual shapes are.

    tiling: constexprs and options in place of the usual ones, as GemmConfig.options() gives them."""
    pointers = {"x", "gathered", "weight", "bias", "out", "slots"}
    types = {name: f"*{dtype}" if name in pointers else _POINTERS.get(name, "i32") for name in kernel.arg_names}
    types.update({name: "constexpr" for name in kernel.arg_names if name.isupper()})
    attrs = ("x", "gathered", "weight", "bias", "out", "slots", "flags", "control", "team", "half", "n", "k", "stride_x",
             "stride_w")
    constants = dict(CONSTEXPRS, EVEN_K=even_k, **({"MOST": 32} if kernel is ag_gemm_by_sms_kernel else {}))
    if "GATED" in kernel.arg_names:
        constants["GATED"] = False
    constants.update({name: value for name, value in tiling.items() if name.isupper()})
    options = {"num_warps": 8, "num_stages": 2 if target.startswith("gfx") else 3,
               **{name: value for name, value in tiling.items() if not name.isupper()}}
    return compile_kernel(kernel, types, constants, target, divisible=attrs, **options)


def compiled_push(kernel, target: str):
    """A kernel that pushes bf16 rows, all numbers but that of the pieces divisible by 16."""
    pointers = {"x": "*bf16", "gathered": "*bf16", "flags": "*i32", "control": "*i32", "team": "*i32"}
    types = {name: "constexpr" if name.isupper() else pointers.get(name, "i32") for name in kernel.arg_names}
    block = 16 * 64 * 8 if target.startswith("gfx") else 16 * 32 * 8
    divisible = [name for name, ty in types.items() if ty != "constexpr" and name != "pieces"]
    return compile_kernel(kernel, types, dict(BLOCK=block, MOST=32), target, divisible=divisible, num_warps=16)


@pytest.mark.every("kernel", "target")
@pytest.mark.parametrize("target", ONE_HIP)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_kernel_compiles_and_acquires_before_it_loads(kernel, target):
    assert_acquires_before_it_loads(kernel, target)


@pytest.mark.every("target")
@pytest.mark.parametrize("target", ["sm_90", "gfx942", *(pytest.param(target, marks=pytest.mark.full) for target in TARGETS
                                                         if target not in ("sm_90", "gfx942"))])
@pytest.mark.parametrize("kernel", [ag_gemm_kernel, ag_gemm_by_sms_kernel], ids=lambda k: k.__name__)
def test_gate_and_up_are_joined_on_every_target(kernel, target):
    text, plain = ("\n".join(assert_acquires_before_it_loads(kernel, target, GATED=gated)) for gated in (True, False))
    assert re.search("v_exp_f32" if target.startswith("gfx") else r"ex2\.approx", text)
    assert not re.search(r"scratch_(load|store)|\.local\.", text)
    passed = [len(re.findall("ds_bpermute|shfl", each)) for each in (text, plain)]
    assert passed[0] == passed[1], "gate and up are in different threads"


def assert_acquires_before_it_loads(kernel, target, **options):
    """The instructions of a kernel, in which an acquire comes before what it is for."""
    lines = instructions(compiled(kernel, target, **options))
    if target.startswith("gfx"):
        assert re.search("mfma", "\n".join(lines))
        position(lines, r"(global|buffer)_load_(lds_)?dwordx4", amd_isa.acquire(lines, target, "sys"))
    else:
        spin = position(lines, r"ld\.relaxed\.sys|ld\.acquire\.sys")
        fence = position(lines, r"fence\.acq|ld\.acquire\.sys", spin)
        position(lines, r"cp\.async|ld\.global", fence)
    return lines


@pytest.mark.parametrize("even_k", [True, False])
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_main_loop_stays_pipelined_with_wide_copies(kernel, target, even_k):
    text = "\n".join(instructions(compiled(kernel, target, even_k)))
    copies = re.findall(r"cp\.async\.\S+.*?0x([0-9a-f]+)", text)
    assert copies, "no cp.async: the loop is not pipelined"
    assert set(copies) == {"10"}, f"copies of {set(copies)} bytes, expected 0x10"
    assert ("wgmma.mma_async" if target == "sm_90" else "mma.sync") in text


@pytest.mark.parametrize("kernel", [gemm_rs_kernel, gemm_rs_scatter_kernel], ids=lambda k: k.__name__)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_a_tile_signals_after_a_barrier_and_a_release(target, kernel):
    lines = instructions(compiled(kernel, target))
    release = position(lines, r"fence\.(release|acq_rel)\.sys" if PLAIN_RELEASE else r"atom\.global\.sys\.release\.exch")
    barrier = max(i for i in range(release) if "bar.sync" in lines[i] or "barrier" in lines[i])
    store = max(i for i in range(release) if re.search(r"st\.global", lines[i]))
    assert store < barrier < release
    if PLAIN_RELEASE:
        position(lines, r"st\.relaxed\.sys", release)


@pytest.mark.parametrize("target", TARGETS)
def test_a_push_moves_16_bytes_at_a_time_and_signals_after_a_barrier_and_a_release(target):
    lines = instructions(compiled_push(push_kernel, target))
    if target.startswith("gfx"):
        wide, narrow = r"_{}_dwordx4", r"_{}_(ushort|short)"
        barrier, release = r"s_barrier", amd_isa.flag_write(target, "sys")
    else:
        wide, narrow = r"{}\.global\.v4\.b32", r"{}\.global\S*\.b16"
        barrier, release = r"bar\.sync", r"st\.relaxed\.sys" if PLAIN_RELEASE else r"atom\.global\.sys\.release\.exch"
    short = ("load", "store") if target.startswith("gfx") else ("ld", "st")
    for how in short:
        position(lines, wide.format(how))
        assert not any(re.search(narrow.format(how), line) for line in lines)
    at = position(lines, release)              # code of a loop may lie behind what follows it: look between barrier and release
    before = lines[max(i for i in range(at) if re.search(barrier, lines[i])):at]
    assert not any(re.search(wide.format(short[1]), line) for line in before)
    if target.startswith("gfx"):
        amd_isa.release_before(lines, at, target, "sys")
    elif PLAIN_RELEASE:
        position(before, r"fence\.(release|acq_rel)\.sys")


def compiled_enter(target):
    """The kernel in which ranks meet before a captured call."""
    types = {name: "constexpr" if name.isupper() else "i32" if name == "count" else "*i32" for name in enter_kernel.arg_names}
    return compile_kernel(enter_kernel, types, dict(BLOCK=256), target, num_warps=1)


def compiled_arrived(target):
    """The kernel that waits for a gather without a GEMM."""
    types = {name: "*i32" if name == "flags" else "i32" for name in arrived_kernel.arg_names}
    return compile_kernel(arrived_kernel, types, {}, target, num_warps=1)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_ranks_enter_a_captured_call_by_a_release_and_an_acquire(target):
    """Flags are cleared before peers are told."""
    lines = instructions(compiled_enter(target))
    clear = position(lines, r"st\.global\S*\.b32")
    barrier = position(lines, r"bar\.(warp\.)?sync", clear)
    release = position(lines, r"fence\.(release|acq_rel)\.sys" if PLAIN_RELEASE else r"atom\.global\.sys\.release\.exch", barrier)
    position(lines, r"ld\.(relaxed|acquire)\.sys", release)
    position(lines, r"fence\.acq|ld\.acquire\.sys", release)      # code of a loop may lie anywhere


@pytest.mark.parametrize("target", TARGETS)
def test_a_gather_without_a_gemm_is_waited_for_with_acquire(target):
    lines = instructions(compiled_arrived(target))
    if target.startswith("gfx"):
        assert amd_isa.acquire(lines, target, "sys") > 0
    else:
        position(lines, r"ld\.(relaxed|acquire)\.sys")
        position(lines, r"fence\.acq|ld\.acquire\.sys")

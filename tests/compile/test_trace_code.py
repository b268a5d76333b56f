# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The recorder in compiled kernels: identical code where it is off, and what it costs where it is on."""
import functools
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import test_collective_code
import test_core_code
import test_experts_code
import test_experts_few_code
import test_gemm_ar_code
import test_op_code
import test_self_flag_code
import test_vdev_code
import triton.language as tl
from compile_util import CUDA, TARGETS, code, compile_kernel, dynamic_symbols, instructions, vendor
from triton.compiler.errors import CompilationError

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.gpu.trace_library import library
from triton_dist.cores.hopper import ag_gemm_ws, gemm_ws
from triton_dist.language.trace_abi import LIBRARY, SYMBOL
from triton_dist.ops.ag_gemm import by_sms_kernels, kernels as ag_gemm_kernels
from triton_dist.ops.all_reduce import kernels as all_reduce_kernels
from triton_dist.ops.all_reduce_rmsnorm import kernels as rmsnorm_kernels
from triton_dist.ops.all_to_all_vdev import kernels as vdev_kernels
from triton_dist.ops.ep_combine import kernels as combine_kernels, self_flagged_kernel as combine_few_kernels
from triton_dist.ops.ep_dispatch import (by_expert_kernel, kernels as dispatch_kernels, place_kernels,
                                         self_flagged_kernel as dispatch_few_kernels)
from triton_dist.ops.exchange import kernels as exchange_kernels
from triton_dist.ops.gemm_ar import kernels as gemm_ar_kernels
from triton_dist.ops.gemm_rs import kernels as gemm_rs_kernels, scatter_kernel
from triton_dist.ops.grouped_gemm import kernels as grouped_kernels
from triton_dist.trace import clocks

PORTABLE = [(ag_gemm_kernels, "ag_gemm_kernel"), (gemm_rs_kernels, "gemm_rs_kernel"),
            pytest.param(scatter_kernel, "gemm_rs_scatter_kernel", marks=pytest.mark.full)]
CLOCK = {"nvidia": r"globaltimer", "amd": r"s_memrealtime|s_sendmsg_rtn"}


def traced(target: str) -> dict:
    return dict(extern_libs={LIBRARY: library(vendor(target))})


def without_recorder(module, folder):
    """A copy of a module in which nobody calls the recorder."""
    lines = [line for line in Path(module.__file__).read_text().splitlines(keepends=True) if "dl.trace_" not in line]
    assert len(lines) < len(Path(module.__file__).read_text().splitlines())
    path = folder / f"plain_{module.__name__.rpartition('.')[2]}_{folder.name.replace('-', '_')}.py"
    path.write_text("".join(lines))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    made = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def same(one, other) -> None:
    """The same instructions in the same order, registers and labels alike."""
    def text(kernel) -> list:
        return [re.sub(r"\$L__\w+|\.LBB\w+|\.Ltmp\d+", "L", line) for line in instructions(kernel)
                if not re.match(r"(\$L__tmp\d+|\.Ltmp\d+|\$L__func\w*):", line)]
    assert text(one) == text(other) and len(text(one)) > 50


@pytest.mark.parametrize("target", [
    pytest.param(target, marks=[pytest.mark.full][:target not in ("sm_90", "gfx942")]) for target in TARGETS])
@pytest.mark.parametrize("module, name", PORTABLE, ids=["ag_gemm_kernel", "gemm_rs_kernel", "gemm_rs_scatter_kernel"])
def test_off_the_code_is_the_same(module, name, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    plain = getattr(without_recorder(module, tmp_path), name)
    same(test_op_code.compiled(getattr(module, name), target), test_op_code.compiled(plain, target))


def test_off_the_code_of_the_core_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    shared = without_recorder(gemm_ws, tmp_path)
    text = Path(ag_gemm_ws.__file__).read_text()
    path = tmp_path / "plain_gather.py"
    path.write_text(text.replace("triton_dist.cores.hopper.gemm_ws import", f"{shared.__name__} import"))
    spec = importlib.util.spec_from_file_location("plain_gather", path)
    plain = sys.modules["plain_gather"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    same(test_core_code.compiled(ag_gemm_ws.ag_gemm_ws_kernel), test_core_code.compiled(plain.ag_gemm_ws_kernel))


def test_off_the_code_of_a_push_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    plain = without_recorder(by_sms_kernels, tmp_path)
    for target in ("sm_90", "gfx942"):
        same(*(test_op_code.compiled_push(module.push_kernel, target) for module in (by_sms_kernels, plain)))


EXCHANGES = [(exchange_kernels, "one_hop_packets"), (exchange_kernels, "one_hop_push"), (all_reduce_kernels, "two_shot_kernel"),
             (all_reduce_kernels, "push_kernel"), (dispatch_kernels, "ep_dispatch_kernel"),
             (combine_kernels, "ep_combine_kernel"), (exchange_kernels, "one_hop_self_flagged"),
             (all_reduce_kernels, "two_hops_self_flagged"), (rmsnorm_kernels, "one_hop_rmsnorm"),
             (rmsnorm_kernels, "two_hops_rmsnorm"), (place_kernels, "place_kernel"),
             (place_kernels, "expand_kernel"), (by_expert_kernel, "rows_by_expert_kernel"),
             (dispatch_few_kernels, "ep_dispatch_self_flagged"),
             (combine_few_kernels, "ep_combine_self_flagged")]
OFTEN = ("one_hop_push", "two_shot_kernel", "ep_combine_kernel", "two_hops_rmsnorm")          # the rest under --full


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("module, name", [
    pytest.param(*case, marks=[pytest.mark.full][:case[1] not in OFTEN]) for case in EXCHANGES],
    ids=lambda value: value if isinstance(value, str) else "")
def test_off_the_code_of_an_exchange_is_the_same(module, name, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    compiled = (test_experts_few_code if name.startswith("ep_") and name.endswith("self_flagged") else
                test_experts_code if name.startswith(("ep_", "place_", "expand_", "rows_by_")) else
                test_self_flag_code if name.endswith(("self_flagged", "rmsnorm")) else test_collective_code).compiled
    known = test_experts_code.KERNELS["expand"][1] if name == "expand_kernel" else {}
    same(*(compiled(getattr(some, name), target, **known) for some in (module, without_recorder(module, tmp_path))))


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_off_the_code_of_all_to_all_vdev_is_the_same(target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    plain, found = without_recorder(vdev_kernels, tmp_path), []
    for module in (vdev_kernels, plain):
        monkeypatch.setattr(test_vdev_code, "all_to_all_vdev_kernel", module.all_to_all_vdev_kernel)
        found.append(test_vdev_code.compiled(target))
    same(*found)


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("kernel", test_experts_code.GEMMS)
def test_off_the_code_of_a_grouped_gemm_is_the_same(kernel, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    function, known = test_experts_code.GEMMS[kernel]
    plain = getattr(without_recorder(grouped_kernels, tmp_path), function.__name__)
    same(*(test_experts_code.compiled_gemm(some, target, **known) for some in (function, plain)))


@pytest.mark.full
@pytest.mark.parametrize("two_shot", [False, True])
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_off_the_code_of_gemm_ar_is_the_same(two_shot, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    plain, found = without_recorder(gemm_ar_kernels, tmp_path), []
    for module in (gemm_ar_kernels, plain):
        monkeypatch.setattr(test_gemm_ar_code, "gemm_ar_kernel", module.gemm_ar_kernel)
        found.append(test_gemm_ar_code.compiled(target, two_shot=two_shot))
    same(*found)


@triton_dist.jit
def records(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for lap in range(n):
        dl.trace_start("mma", lap, 7)
        a = tl.load(x + i) * 2
        dl.trace_stop("mma", lap)
        tl.store(x + i, a)


@triton_dist.jit
def records_nonsense(x):
    dl.trace_start("lunch", 0)


@pytest.mark.parametrize("target", TARGETS)
def test_on_it_is_inlined_and_stores_times(target):
    kernel = compile_kernel(records, dict(x="*fp32", n="i32", BLOCK="constexpr"), dict(BLOCK=256), target, **traced(target))
    text = code(kernel)
    assert len(re.findall(CLOCK[vendor(target)], text)) >= 2 and not re.search(r"tdist_trace_(event|clock)\b", "".join(
        instructions(kernel)))
    stores = [line for line in instructions(kernel) if re.match(r"st\.volatile\.global\.b64|(global|flat)_store_dwordx2", line)]
    assert len(stores) >= 3, "start, number and stop"
    assert not [line for line in instructions(kernel) if re.match(r"bar\.sync|s_barrier|fence|membar", line)]
    if target in CUDA:
        assert SYMBOL.encode() in kernel.asm["cubin"]
    else:
        assert dynamic_symbols(kernel.asm["hsaco"])[SYMBOL], "exported, so that the host can fill it"


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_on_ag_gemm_stays_pipelined(target):
    kernel = compile_kernel_of_op(target)
    lines = instructions(kernel)
    assert any(re.search(r"cp\.async|(global|buffer)_load_(lds_)?dwordx4", line) for line in lines)
    assert len([line for line in lines if re.search(CLOCK[vendor(target)], line)]) >= 6        # wait, mma, store: start and stop


def compile_kernel_of_op(target: str):
    options = {"num_warps": 8, "num_stages": 3 if target in CUDA else 2, **traced(target)}
    return test_op_code.compiled(ag_gemm_kernels.ag_gemm_kernel, target, **options)


def test_on_the_core_records_in_every_role(monkeypatch):
    monkeypatch.setattr(test_core_code, "compile_kernel", functools.partial(compile_kernel, **traced("sm_90")))
    lines = instructions(test_core_code.compiled(ag_gemm_ws.ag_gemm_ws_kernel))
    assert len([line for line in lines if "globaltimer" in line]) >= 10         # wait, load, mma, add, store
    assert any("wgmma" in line for line in lines)


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_on_a_grouped_gemm_stays_pipelined(target, monkeypatch):
    monkeypatch.setattr(test_experts_code, "compile_kernel", functools.partial(compile_kernel, **traced(target)))
    lines = instructions(test_experts_code.compiled_gemm(grouped_kernels.grouped_gemm_kernel, target))
    assert any(re.search(r"cp\.async|(global|buffer)_load_(lds_)?dwordx4", line) for line in lines)
    assert any(re.search(r"wgmma|v_mfma", line) for line in lines)
    assert len([line for line in lines if re.search(CLOCK[vendor(target)], line)]) >= 4        # mma, store: start and stop


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_on_the_kernels_of_rows_record(target, monkeypatch):
    """In each: as many reads of the clock as there are places that record, at least."""
    for module in (test_experts_code, test_self_flag_code, test_vdev_code):
        monkeypatch.setattr(module, "compile_kernel", functools.partial(compile_kernel, **traced(target)))
    found = {"place": (test_experts_code.compiled(place_kernels.place_kernel, target), 4),
             "norm": (test_self_flag_code.compiled(rmsnorm_kernels.two_hops_rmsnorm, target), 12),
             "splits": (test_vdev_code.compiled(target), 10)}
    for name, (kernel, least) in found.items():
        assert len([line for line in instructions(kernel) if re.search(CLOCK[vendor(target)], line)]) >= least, name


@pytest.mark.parametrize("target", TARGETS)
def test_the_clocks_kernel_compiles(target):
    types = dict(flag="*i32", times="*i64", peer="i32", FIRST="constexpr", TRIPS="constexpr")
    kernel = compile_kernel(clocks.trips_kernel, types, dict(FIRST=True, TRIPS=8), target, num_warps=1, **traced(target))
    assert len(re.findall(CLOCK[vendor(target)], code(kernel))) >= 2


def test_an_unknown_event_is_refused():
    with pytest.raises(CompilationError) as caught:
        compile_kernel(records_nonsense, dict(x="*fp32"), {}, "sm_90", **traced("sm_90"))
    error = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    assert "trace_start: event must be one of 'tile', 'wait'" in str(error)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every kernel of the ops and the tutorials compiled for AMD GPUs: order of memory, width of accesses, spills, LDS."""
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import test_op_code
import torch
import triton
from amd_isa import ISA, acquire, assert_sound, flag_write, release_before
from amd_kernels import KERNELS, TUTORIALS
from compile_util import HIP, position

from triton_dist import ops
from triton_dist.backends.amd import machines
from triton_dist.ops.ag_gemm.kernels import ag_gemm_kernel
from triton_dist.ops.gemm_rs.kernels import gemm_rs_kernel
from triton_dist.ops.gemm_rs.scatter_kernel import MOST_ROWS, gemm_rs_scatter_kernel
from triton_dist.ops.internode import kernels as internode

FLAGGED = [name for name in KERNELS if re.search("packets|self-flagged|tutorial 12", name)]    # data says itself that it is there
# One form of each kernel of the ops.
OF_OPS = [name for name in KERNELS if not name.startswith("tutorial")]
ONES = list({(KERNELS[name].func, KERNELS[name].args[:1]): name for name in reversed(OF_OPS)}.values())
# A word a thread, one word, or data that a library moves.
SMALL = [
    "ag_gemm in graphs, enter", "ag_gemm's gather alone, wait", "ep_place", "tutorial 0", "tutorial 1, drained",
    "tutorial 2, await_all", "tutorial 3, flat", "tutorial 3, two_levels", "tutorial 9", "tutorial 11"
]
WIDE = r"(global|buffer)_(load|store)_(lds_)?dwordx4"


@pytest.mark.every("name", "target")
@pytest.mark.parametrize("name", ONES)
@pytest.mark.parametrize("target", HIP)
def test_kernel_is_sound(name, target):
    """No spills, LDS within bounds; polls past the caches; write-backs waited for; 16-byte accesses of data."""
    lines = assert_sound(KERNELS[name](target), target)
    if name not in FLAGGED + SMALL:
        position(lines, WIDE)
    assert not [line for line in lines if re.match(r"(global|buffer)_store_byte", line)], "bytes are stored one by one"


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in ONES])
@pytest.mark.parametrize("target", HIP)
def test_another_form_or_a_tutorials_kernel_is_sound(name, target):
    test_kernel_is_sound(name, target)


@pytest.mark.parametrize("name", FLAGGED)
@pytest.mark.parametrize("target", HIP)
def test_flagged_words_need_no_cache_control(name, target):
    """Words carry their flags: nothing is written back and nothing dropped."""
    assert not [line for line in assert_sound(KERNELS[name](target), target) if re.match(r"buffer_(wb|inv)", line)]


# How many places of each kernel tell peers that data is there, and whether it waits for such words.
SIGNALS = {"ag_gemm": (0, True), "ag_gemm by_sms": (0, True), "ag_gemm by_sms push": (1, False), "gemm_rs": (1, True),
           "gemm_rs scatter": (1, True),
           "all_gather push": (1, True), "reduce_scatter push": (1, True), "all_reduce push": (2, True),
           "all_to_all_vdev": (1, True), "ep_dispatch": (1, False), "ep_dispatch by expert": (1, False), "ep_combine": (1, True),
           "ep_exchange_rows": (1, True),
           "ep_combine compact": (1, True), "tutorial 0": (2, False), "tutorial 6": (1, True), "tutorial 11": (2, False)}


def test_every_kernel_is_here(monkeypatch):
    """Of the ops, but for device functions over nodes, which kernels call; and those that tutorials launch."""
    class Seen(Exception):
        pass

    def seen(source, **options):
        raise Seen(source.fn)
    monkeypatch.setattr(triton, "compile", seen)
    listed = set()
    for compile_for in KERNELS.values():
        with pytest.raises(Seen) as found:
            compile_for("gfx942")
        listed.add(found.value.args[0])
    modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}.")]
    ours = {value for module in modules for value in vars(module).values() if isinstance(value, type(ag_gemm_kernel))}
    called = {getattr(internode, name) for name in ("word_of", "arrived_from_node", "send", "copy", "share", "gather")}
    assert {kernel.__name__ for kernel in ours - called - listed} == set()
    files = {(Path(kernel.fn.__code__.co_filename).name, kernel.__name__) for kernel in listed}
    launched = {(path.name, name) for path in sorted(TUTORIALS.glob("*.py"))
                for name in re.findall(r"\b(\w+)\[\(", path.read_text())}
    gluon = {("10-gluon.py", "all_reduce")}             # its layouts are for warps of 32
    assert launched - files == gluon and len(launched) > 10


def test_the_page_has_every_kernel():
    page = (Path(__file__).resolve().parents[2] / "docs" / "amd_registers.md").read_text()
    listed = re.findall(r"^\| ([^|]+?) \| (gfx\w+) \|", page, re.M)
    assert listed == [(name, target) for name in KERNELS for target in HIP], "run tools/amd_table.py"


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("target", HIP)
def test_flags_follow_the_stores_of_every_wave_and_loads_follow_an_acquire(name, target):
    """A signal costs one write-back of the L2, however many peers it is for."""
    lines, (signals, waits) = assert_sound(KERNELS[name](target), target), SIGNALS[name]
    backs = [i for i, line in enumerate(lines) if re.match(ISA[target]["sys"].back, line)]
    assert len(backs) == signals == sum(line.startswith("buffer_wbl2") for line in lines)
    for back in backs:
        flag = position(lines, r"(global|buffer)_(store|atomic)", back)
        if re.match(r"global_atomic_add", lines[flag]):
            assert re.match(flag_write(target, "sys", "add"), lines[flag]), lines[flag]
        else:
            assert re.match(r"(global|buffer)_store_dword ", lines[flag]), lines[flag]
            assert target == "gfx90a" or lines[flag].endswith("sc0 sc1"), lines[flag]
        release_before(lines, flag, target, "sys")
    if waits:
        position(lines, WIDE, acquire(lines, target, "sys"))


@pytest.mark.parametrize("kernel", [ag_gemm_kernel, gemm_rs_kernel, gemm_rs_scatter_kernel], ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("target", HIP)
@pytest.mark.parametrize("dtype, name", [(torch.bfloat16, "bf16"), (torch.float32, "fp32")])
@pytest.mark.parametrize("m", [64, 4096])
def test_every_tiling_that_is_tried_compiles_without_spills(m, dtype, name, target, kernel):
    """Those that measuring chooses from, for few and many rows."""
    for tiling in machines.gemm_configs(dtype, m):
        if kernel is gemm_rs_scatter_kernel and tiling.block_m > MOST_ROWS:
            continue
        assert_sound(test_op_code.compiled(kernel, target, dtype=name, **tiling.options()), target)

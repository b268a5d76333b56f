# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernels over nodes compiled over a stand-in for NVSHMEM, and what must hold of the code."""
import re

import fake_nvshmem
import pytest
from compile_util import compile_kernel, instructions

from triton_dist.backends.nvidia import nvshmem_library
from triton_dist.language.shmem_abi import LIBRARY
from triton_dist.ops.gemm_rs.nodes_kernel import gemm_rs_nodes_kernel
from triton_dist.ops.internode.kernels import all_gather_kernel, gather_kernel, reduce_scatter_kernel
from triton_dist.ops.internode.pieces import OPTIONS

TARGETS = ["sm_80", "sm_90"]
_TYPES = {"flags": "*i32", "signals": "*i64", "control": "*i32", "team": "*i32"}
_DATA = ("x", "gathered", "slots", "weight", "bias", "out")
_ODD = ("epoch", "index", "world", "each")             # not multiples of 16
GEMM = dict(HAS_BIAS=True, EVEN_K=True, PRECISION="ieee", BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP_M=8)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An NVSHMEM installation of stand-ins."""
    fake_nvshmem.write(tmp_path)
    monkeypatch.setenv("NVSHMEM_HOME", str(tmp_path))
    nvshmem_library.library.cache_clear()
    yield
    nvshmem_library.library.cache_clear()


def compiled(kernel, target: str, extern_libs: dict | None = None, gemm_options: dict | None = None, **constants):
    """`kernel` for bf16 and sizes of usual shapes; `constants`: arguments that are 1, which Triton makes constants of.

    extern_libs: SHMEM's libraries, by default those over NVSHMEM. gemm_options: tiles and options of the GEMM, if others."""
    gemm = kernel is gemm_rs_nodes_kernel
    types = {name: "*bf16" if name in _DATA else _TYPES.get(name, "i32") for name in kernel.arg_names}
    if gemm:
        types["flags"] = "*i64"
    types.update({name: "constexpr" for name in kernel.arg_names if name.isupper() or name in constants})
    given = {**GEMM, "num_warps": 8, "num_stages": 3, **(gemm_options or {})} if gemm else OPTIONS
    tiles = {name: value for name, value in given.items() if name.isupper()}
    return compile_kernel(kernel, types, {**tiles, **constants}, target,
                          divisible=[name for name, ty in types.items() if ty != "constexpr" and name not in _ODD],
                          extern_libs=extern_libs or {LIBRARY: nvshmem_library.library(int(target[3:]))[0]},
                          **{name: value for name, value in given.items() if not name.isupper()})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [gather_kernel, all_gather_kernel, reduce_scatter_kernel], ids=lambda k: k.__name__)
def test_collectives_put_behind_a_barrier_and_move_16_bytes_at_a_time(kernel, target):
    lines = compiled(kernel, target).asm["ptx"].splitlines()
    puts = [i for i, line in enumerate(lines) if "// MARK nvshmemx_putmem_signal_nbi_block" in line]
    waits = [i for i, line in enumerate(lines) if "// MARK nvshmem_signal_wait_until" in line]
    assert len(puts) == len(waits) == 1 and puts[0] < waits[0]
    stored = max(i for i, line in enumerate(lines[:puts[0]]) if "st.global" in line)
    assert any("bar.sync" in line for line in lines[stored:puts[0]])
    assert sum(re.search(r"ld\.relaxed\.sys\.global\.b64", line) is not None for line in lines) == 1
    wide = [line for line in lines if re.search(r"\b(ld|st)\.global.*\.v4\.b32", line)]
    narrow = [line for line in lines if re.search(r"\b(ld|st)\.global\S*\.b16", line)]
    assert wide and not narrow


@pytest.mark.parametrize("target", TARGETS)
def test_the_gemm_stays_pipelined_and_puts_whole_tiles_behind_a_barrier(target):
    kernel = compiled(gemm_rs_nodes_kernel, target)
    lines = instructions(kernel)
    text = "\n".join(lines)
    copies = re.findall(r"cp\.async\.\S+.*?0x([0-9a-f]+)", text)
    assert copies and set(copies) == {"10"} and ("wgmma.mma_async" if target == "sm_90" else "mma.sync") in text
    raw = kernel.asm["ptx"].splitlines()
    put, = (i for i, line in enumerate(raw) if "// MARK nvshmemx_putmem_signal_nbi_block" in line)
    stored = max(i for i, line in enumerate(raw[:put]) if "st.global" in line)
    assert any("bar.sync" in line for line in raw[stored:put]) and ".v4.b32" in raw[stored]
    assert sum("// MARK nvshmem_signal_wait_until" in line for line in raw) == 1


@pytest.mark.parametrize("kernel", [gather_kernel, all_gather_kernel, reduce_scatter_kernel, gemm_rs_nodes_kernel],
                         ids=lambda k: k.__name__)
def test_nodes_of_one_rank_compile(kernel):
    assert "// MARK nvshmemx_putmem_signal_nbi_block" in compiled(kernel, "sm_90", each=1).asm["ptx"]

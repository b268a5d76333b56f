# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernels of dispatch and combine over nodes compiled over a stand-in for NVSHMEM, and what must hold of the code."""
import re

import fake_nvshmem
import pytest
from compile_util import compile_kernel
from test_experts_code import KNOWN, POINTERS, ROWS_OF

from triton_dist.backends.nvidia import nvshmem_library
from triton_dist.language.shmem_abi import LIBRARY
from triton_dist.ops.ep_combine.nodes_kernel import ep_combine_nodes_kernel, ep_combine_take_kernel
from triton_dist.ops.ep_dispatch.nodes_kernel import ep_dispatch_nodes_kernel

TARGETS = ["sm_80", pytest.param("sm_90", marks=pytest.mark.full)]
PUT, WAIT = "// MARK nvshmemx_putmem_signal_nbi_block", "// MARK nvshmem_signal_wait_until"
# kernel: (its options, SHMEM puts and waits in it)
KERNELS = {
    "dispatch": (ep_dispatch_nodes_kernel, {}, 2, 2),
    "dispatch, fp8 on the way": (ep_dispatch_nodes_kernel, dict(QUANT=True, SCALES=56, SCALES_PAD=64, META=72), 3, 3),
    "combine": (ep_combine_nodes_kernel, {}, 2, 1),
    "combine, second launch": (ep_combine_take_kernel, {}, 0, 1),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An NVSHMEM installation of stand-ins."""
    fake_nvshmem.write(tmp_path)
    monkeypatch.setenv("NVSHMEM_HOME", str(tmp_path))
    nvshmem_library.library.cache_clear()
    yield
    nvshmem_library.library.cache_clear()


def compiled(kernel, target, extern_libs=None, **known):
    """A kernel for bf16 rows of 7168 elements, two nodes of eight ranks."""
    known = {**KNOWN, "WORLD": 16, "RANKS": 16, "NODES": 2, "EACH": 8, "PLACES": 8, "ROWS": 2, **known}
    pointers = {**POINTERS, **dict.fromkeys(("rows_out", ), "*bf16"), "boxes_out": "*i32", "signals": "*i64"}
    types = {name: "constexpr" if name.isupper() else pointers.get(name, "*bf16" if name in ROWS_OF else "i32")
             for name in kernel.arg_names}
    if known["QUANT"]:
        types.update(data="*i8", rows_out="*i8")
    aligned = [name for name, ty in types.items() if ty.startswith("*") or name.endswith("half") or name == "row"]
    return compile_kernel(kernel, types, {name: value for name, value in known.items() if name in types}, target,
                          divisible=tuple(aligned), num_warps=8, num_stages=1,
                          extern_libs=extern_libs or {LIBRARY: nvshmem_library.library(int(target[3:]))[0]})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_it_puts_behind_a_barrier_waits_by_shmem_too_and_moves_16_bytes_at_a_time(name, target):
    kernel, known, puts, waits = KERNELS[name]
    lines = compiled(kernel, target, **known).asm["ptx"].splitlines()
    put, waited = ([i for i, line in enumerate(lines) if mark in line] for mark in (PUT, WAIT))
    assert (len(put), len(waited)) == (puts, waits)
    for i in put:
        stored = max(j for j, line in enumerate(lines[:i]) if "st.global" in line)
        assert any("bar.sync" in line for line in lines[stored:i])
    assert sum(re.search(r"ld\.relaxed\.sys\.global\.b64", line) is not None for line in lines) >= waits
    assert any(re.search(r"\b(ld|st)\.global.*\.v4\.b32", line) for line in lines)


@pytest.mark.parametrize("kernel", [ep_dispatch_nodes_kernel, ep_combine_nodes_kernel, ep_combine_take_kernel],
                         ids=lambda kernel: kernel.__name__)
def test_nodes_of_one_rank_compile(kernel):
    compiled(kernel, "sm_90", EACH=1, PLACES=1, WORLD=2, RANKS=2)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The grouped GEMM of the Hopper core compiled for sm_90: its units, its registers, and the room that it takes."""
import re

import pytest
from compile_util import compile_kernel, instructions
from test_core_code import TMA_LOAD, TMA_STORE, assert_assembles_well, descriptor

from triton_dist.cores.hopper.grouped_gemm_ws import grouped_gemm_ws_kernel

# (rows of a tile, stages), gated, columns
WAYS = {"large": (128, 3, False, False), "large, silu_mul": (128, 4, True, False), "few": (64, 4, False, False),
        "few, silu_mul": (64, 5, True, False), "columns": (128, 3, False, True),
        "large, silu_mul, parts of experts": (128, 4, True, False),
        "large, gathered": (128, 3, False, False), "large, silu_mul, gathered": (128, 4, True, False),
        "few, silu_mul, gathered": (64, 5, True, False), "columns, gathered": (128, 3, False, True),
        "large, silu_mul, gathered, odd K": (128, 4, True, False)}
GATHERED = [way for way in WAYS if "gathered" in way]


def compiled(way: str, dtype: str = "bf16"):
    m, stages, gated, columns = WAYS[way]
    n, k = 256, 64
    width = n // 2 if gated else n
    constants = dict(EXPERTS=256, MASKED=False, COUNTED=True, WEIGHTED=True, GATED=gated, COLUMNS=columns, STAGES=stages,
                     BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8, SHORT=m > 64, PARTS=1 + ("parts" in way),
                     GATHER=way in GATHERED, EVEN_K="odd K" not in way)
    types = dict(x_desc=descriptor(dtype, m, k), x_short_desc=descriptor(dtype, 64, k),
                 w_desc=descriptor(dtype, *((k, n) if columns else (width, k))),
                 out_desc=descriptor(dtype, m, width), out=f"*{dtype}", x=f"*{dtype}", sources="*i32",
                 begins="*i32", counts="*i32", tiles="*i32", row_weights="*fp32")
    signature = {name: "constexpr" if name in constants else types.get(name, "i32")
                 for name in grouped_gemm_ws_kernel.arg_names}
    pointers = [name for name, ty in signature.items() if ty.startswith("*")]
    return compile_kernel(grouped_gemm_ws_kernel, signature, constants, "sm_90", num_warps=8,
                          divisible=(*pointers, "n", *["k"] * ("odd K" not in way)))


@pytest.mark.parametrize("way", WAYS)
def test_tma_wgmma_and_whole_lines(way):
    text = "\n".join(instructions(compiled(way)))
    assert re.search(TMA_LOAD, text) and re.search(TMA_STORE, text)
    gated, tall = "silu_mul" in way, WAYS[way][0] == 128
    for width in ([256] if tall else []) + [64 if gated else 128]:              # of tall tiles, and of short ones
        assert f"wgmma.mma_async.sync.aligned.m64n{width}k16" in text
    assert re.search(r"setmaxnreg\.inc\S*\s+240", text) and re.search(r"setmaxnreg\.dec\S*\s+24", text)
    if way in GATHERED:
        assert re.search(r"setmaxnreg\.dec\S*\s+216", text) and re.search(r"setmaxnreg\.inc\S*\s+72", text)
    assert "st.global.v4.b32" in text, "rows of a ragged tile are stored in less than 16 bytes a thread"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["bf16", pytest.param("fp16", marks=pytest.mark.full)])
def test_the_assembler_keeps_wgmma_asynchronous_and_spills_nothing(way, dtype, tmp_path):
    built = compiled(way, dtype)
    assert built.metadata.num_warps == 12 and built.metadata.shared <= 227 * 1024
    assert_assembles_well(built, tmp_path)


@pytest.mark.parametrize("way", GATHERED)
def test_rows_are_gathered_by_whole_copies_that_arrive_by_themselves(way):
    """16 bytes a thread, zeros beyond K, no group that is waited for; wgmma reads them behind a proxy fence."""
    lines = instructions(compiled(way))
    copies = [line for line in lines if re.search(r"cp\.async\.c[ag]\.shared", line)]
    short = 64 * 64 // 8 // 64                                                  # 16 bytes for each of 64 threads
    assert len(copies) == (short if "few" in way else 3 * short)                # of a short tile, and of a tall one
    for line in copies:
        assert re.search(r"cp\.async\.cg.* 0x10, %r\d+" if "odd K" in way else r"cp\.async\.cg.* 0x10, 0x10", line), line
    text = "\n".join(lines)
    arrivals = text.count("cp.async.mbarrier.arrive.noinc")
    assert arrivals == (1 if "few" in way else 2) and "cp.async.wait" not in text and "cp.async.commit_group" not in text
    for product in (i for i, line in enumerate(lines) if line.startswith("wgmma.fence")):
        behind = [j for j in range(max(0, product - 40), product) if "fence.proxy.async.shared" in lines[j]]
        assert behind, "wgmma reads what threads have written without a proxy fence"

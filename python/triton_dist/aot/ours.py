# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Our kernels as they are compiled ahead of time: what ag_gemm, gemm_rs and all_reduce launch where their operands are aligned.

A variant has the hints that a launch at run time would have, so that both give the same binary. scripts/aot_kernels.txt lists
the kernels of this file.
"""

from itertools import product

import triton.experimental.gluon.language as gl

from triton_dist.aot.spaces import aot_compile_spaces
from triton_dist.cores.hopper import ag_gemm_ws, gemm_rs_ws
from triton_dist.cores.hopper.cores import BOX_BYTES, BOX_ROWS
from triton_dist.ops.ag_gemm import by_sms, by_sms_kernels
from triton_dist.ops.ag_gemm import kernels as ag_gemm_kernels
from triton_dist.ops.all_reduce import kernels as all_reduce_kernels
from triton_dist.ops.exchange import kernels as exchange_kernels
from triton_dist.ops.gemm_rs import kernels as gemm_rs_kernels

DTYPES = {"bf16": gl.bfloat16, "fp16": gl.float16}
HOPPER = ("cuda:90",)
WORLDS = (2, 4, 8)


def _layout(dtype: str, *block: int):
    return gl.NVMMASharedLayout.get_default_for(list(block), DTYPES[dtype])


def _box(dtype: str, *block: int) -> str:
    return f"tensordesc<{dtype}[{','.join(map(str, block))}]>"


def _tilings(stages: dict) -> list[dict]:
    """128 x 256 x 64, or half as wide, in groups of rows that measuring may choose."""
    return [
        dict(STAGES=stages[n], BLOCK_M=128, BLOCK_N=n, BLOCK_K=64, GROUP_M=group, num_warps=8)
        for n, group in product(stages, (8, 4, 16))
    ]


def _gathers(dtype: str, more: dict) -> list[dict]:
    return [
        dict(tiling, HAS_BIAS=bias, COLUMNS=False, NARROW=True, GATED=False,
             STAGING=_layout(dtype, tiling["BLOCK_M"], tiling["BLOCK_N"]), **more)
        for tiling, bias in product(_tilings({256: 3, 128: 5}), (False, True))
    ]


def _gather_boxes(dtype: str, info: dict) -> list[str]:
    m, n, k = info["BLOCK_M"], info["BLOCK_N"], info["BLOCK_K"]
    return [
        _box(dtype, m, k),
        _box(dtype, m, k),
        _box(dtype, n, k),
        _box(dtype, n // 2, k),
        _box(dtype, 1, m, n),
        _box(dtype, 1, m, n // 2),
        f"*{dtype}:16",
        "*i32:16",
    ]


_TILING = ["%HAS_BIAS", "%COLUMNS", "%NARROW", "%GATED", "%STAGES", "%BLOCK_M", "%BLOCK_N", "%BLOCK_K", "%GROUP_M", "%STAGING"]

ag_gemm = aot_compile_spaces(
    {
        f"ag_gemm_ws_{dtype}": {
            "signature": lambda info, dtype=dtype: ", ".join([*_gather_boxes(dtype, info), *["i32"] * 9, *_TILING]),
            "triton_algo_infos": _gathers(dtype, {}),
            "targets": HOPPER,
        }
        for dtype in DTYPES
    },
    name="ag_gemm_ws",
)(ag_gemm_ws.ag_gemm_ws_kernel)

ag_gemm_by_sms = aot_compile_spaces(
    {
        f"ag_gemm_by_sms_ws_{dtype}": {
            "signature": lambda info, dtype=dtype: ", ".join(
                [*_gather_boxes(dtype, info), "*i32:16", *["i32"] * 10, "%MOST", *_TILING]
            ),
            "triton_algo_infos": _gathers(dtype, {"MOST": by_sms.MOST}),
            "targets": HOPPER,
        }
        for dtype in DTYPES
    },
    name="ag_gemm_by_sms_ws",
)(ag_gemm_ws.ag_gemm_by_sms_ws_kernel)

ag_gemm_push = aot_compile_spaces(
    {
        f"ag_gemm_push_{dtype}": {
            "signature": f"*{dtype}:16, *{dtype}:16, *i32:16, *i32:16, *i32:16, i32:16, i32:16, i32:16, i32:16, i32:1|, i32, "
            "%BLOCK, %MOST",
            "triton_algo_infos": [dict(BLOCK=block, MOST=by_sms.MOST, num_warps=16) for block in (4096, 8192, 16384)],
            "targets": ("cuda",),
        }
        for dtype in DTYPES
    },
    name="ag_gemm_push",
)(by_sms_kernels.push_kernel)


def _ring_infos(dtype: str, hop: str) -> list[dict]:
    stages = {128: 3} if hop == "fp32" else {256: 3, 128: 5}
    return [
        dict(tiling, HAS_BIAS=bias, COLUMNS=False, launch_cooperative_grid=True)
        for tiling, bias in product(_tilings(stages), (False, True))
    ]


def _ring_signature(dtype: str, hop: str, info: dict) -> str:
    m, n, k = info["BLOCK_M"], info["BLOCK_N"], info["BLOCK_K"]
    box = min(m, BOX_ROWS), min(n, BOX_BYTES // (4 if hop == "fp32" else 2))
    boxes = [_box(dtype, m, k), _box(dtype, n, k), _box(dtype, m, n), *[_box(hop, m, n)] * 2, *[_box(hop, *box)] * 2]
    return ", ".join(
        [
            *boxes,
            f"*{dtype}:16",
            *["*i32:16"] * 3,
            *["i32"] * 7,
            "%HAS_BIAS",
            "%COLUMNS",
            "%STAGES",
            "%BLOCK_M",
            "%BLOCK_N",
            "%BLOCK_K",
            "%GROUP_M",
        ]
    )


gemm_rs = aot_compile_spaces(
    {
        f"gemm_rs_ws_{dtype}" + (f"_hops_{hop}" if hop != dtype else ""): {
            "signature": lambda info, dtype=dtype, hop=hop: _ring_signature(dtype, hop, info),
            "triton_algo_infos": _ring_infos(dtype, hop),
            "targets": HOPPER,
        }
        for dtype in DTYPES
        for hop in (dtype, "fp32")
    },
    name="gemm_rs_ws",
)(gemm_rs_ws.gemm_rs_ws_kernel)

# -- portable kernels: rows of whole 16 elements --------------------------------------------------------------------------
_PORTABLE = "%EVEN_K, %PRECISION, %BLOCK_M, %BLOCK_N, %BLOCK_K, %GROUP_M"


def _portable(**more) -> list[dict]:
    """As the backends' gemm_config has it for many rows."""
    common = dict(EVEN_K=True, PRECISION="ieee", BLOCK_M=128, BLOCK_K=64, GROUP_M=8, num_warps=8, **more)
    cuda, hip = (
        dict(common, BLOCK_N=256, num_stages=3, targets=["cuda"]),
        dict(common, BLOCK_N=128, num_stages=2, targets=["hip"]),
    )
    return [dict(info, HAS_BIAS=bias) for info in (cuda, hip) for bias in (False, True)]


ag_gemm_portable = aot_compile_spaces(
    {
        f"ag_gemm_{dtype}": {
            "signature": ", ".join(
                [*[f"*{dtype}:16"] * 5, "*i32:16", *["i32"] * 3, *["i32:16"] * 5, "i32", "i32", "%HAS_BIAS", "%GATED", _PORTABLE]
            ),
            "triton_algo_infos": _portable(GATED=False),
        }
        for dtype in DTYPES
    },
    name="ag_gemm",
)(ag_gemm_kernels.ag_gemm_kernel)

gemm_rs_portable = aot_compile_spaces(
    {
        f"gemm_rs_{dtype}": {
            "signature": ", ".join([*[f"*{dtype}:16"] * 5, *["*i32:16"] * 3, *["i32:16"] * 7, "%HAS_BIAS", _PORTABLE]),
            "triton_algo_infos": _portable(launch_cooperative_grid=True),
        }
        for dtype in DTYPES
    },
    name="gemm_rs",
)(gemm_rs_kernels.gemm_rs_kernel)


# -- all_reduce of whole vectors of 16 bytes --------------------------------------------------------------------------------
def _vectors(world: int, target: str) -> list[tuple]:
    """(threads, vectors of a thread, warps) that exchange.sizes.grid_of_vectors gives."""
    lanes = 32 if target == "cuda" else 64
    most, most_each = (1024, 4) if world == 2 else (512, 4 if world <= 4 else 1)
    threads = [t for t in (4 * lanes, 8 * lanes, 16 * lanes, 32 * lanes) if t <= most]
    found = [(t, 1) for t in threads] + [(threads[-1], each) for each in (2, 4) if each <= most_each]
    return [(t, each, t // lanes) for t, each in found]


def _reductions(scatter: dict) -> list[dict]:
    return [
        dict(
            scatter,
            OP="sum",
            WORLD=world,
            THREADS=threads,
            EACH=each,
            WHOLE=True,
            num_warps=warps,
            num_stages=1,
            targets=[target],
        )
        for target in ("cuda", "hip")
        for world in WORLDS
        for threads, each, warps in _vectors(world, target)
    ]


_ARGUMENTS = "*{0}:16, *{0}:16, *i32:16, i32:16, *i32:16, *i32:16, i32, i32, i32"
all_reduce_one_hop = aot_compile_spaces(
    {
        f"all_reduce_one_hop_{dtype}": {
            "signature": _ARGUMENTS.format(dtype) + ", %SCATTER, %OP, %WORLD, %THREADS, %EACH, %WHOLE",
            "triton_algo_infos": _reductions({"SCATTER": False}),
        }
        for dtype in DTYPES
    },
    name="all_reduce_one_hop",
)(exchange_kernels.one_hop_self_flagged)

all_reduce_two_hops = aot_compile_spaces(
    {
        f"all_reduce_two_hops_{dtype}": {
            "signature": _ARGUMENTS.format(dtype) + ", %OP, %WORLD, %THREADS, %EACH, %WHOLE",
            "triton_algo_infos": _reductions({}),
        }
        for dtype in DTYPES
    },
    name="all_reduce_two_hops",
)(all_reduce_kernels.two_hops_self_flagged)


def _pushes(more: dict, worlds: tuple) -> list[dict]:
    found = []
    for world in worlds:
        for nbytes, warps in ((8 << 10, 8), (16 << 10, 16)) if world == 2 else ((4 << 10, 8), (8 << 10, 8)):
            found.append(dict(more, OP="sum", WORLD=world, RANKS=world, BLOCK=nbytes // 2, num_warps=warps, num_stages=1))
    return found


_PUSHED = "*{0}:16, *{0}:16, *{0}:16, i32:16, *i32:16, i32:16, *i32:16, *i32:16, i32:16, i32, i32"
all_reduce_push = aot_compile_spaces(
    {
        f"all_reduce_push_{dtype}": {
            "signature": _PUSHED.format(dtype) + ", %WORLD, %RANKS, %BLOCK, %OP",
            "triton_algo_infos": _pushes({}, WORLDS),
            "targets": ("cuda",),
        }
        for dtype in DTYPES
    },
    name="all_reduce_push",
)(all_reduce_kernels.push_kernel)

all_reduce_push_one_hop = aot_compile_spaces(
    {
        f"all_reduce_push_one_hop_{dtype}": {
            "signature": _PUSHED.format(dtype) + ", %SCATTER, %OP, %WORLD, %RANKS, %BLOCK",
            "triton_algo_infos": _pushes({"SCATTER": False}, (2,)),
            "targets": ("cuda",),
        }
        for dtype in DTYPES
    },
    name="all_reduce_push_one_hop",
)(exchange_kernels.one_hop_push)

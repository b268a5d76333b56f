# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""One variant for each vendor of the kernels of ours that are not compiled ahead of time (ours.py has those), to look at.

What depends on the call, such as the number of ranks, is a constexpr that `triton-dist dump KERNEL WORLD=8` may set.
"""

from typing import Any

from triton_dist.aot.spaces import aot_compile_spaces
from triton_dist.ops.ag_gemm.by_sms_kernels import ag_gemm_by_sms_kernel
from triton_dist.ops.all_reduce.kernels import two_shot_kernel
from triton_dist.ops.all_reduce_rmsnorm.kernels import one_hop_rmsnorm, two_hops_rmsnorm
from triton_dist.ops.all_to_all_vdev.kernels import all_to_all_vdev_kernel
from triton_dist.ops.all_to_all_vdev_2d.kernels import all_to_all_vdev_2d_kernel
from triton_dist.ops.dispatch_grouped_gemm.kernels import exchange_rows_kernel, own_rows_kernel
from triton_dist.ops.ep_combine.kernels import ep_combine_kernel
from triton_dist.ops.ep_dispatch.by_expert_kernel import rows_by_expert_kernel
from triton_dist.ops.ep_dispatch.kernels import ep_dispatch_kernel
from triton_dist.ops.ep_dispatch.place_kernels import expand_kernel, place_kernel
from triton_dist.ops.exchange.kernels import one_hop_packets, one_hop_push
from triton_dist.ops.gemm_ar.kernels import gemm_ar_kernel
from triton_dist.ops.gemm_ar_rmsnorm.kernels import gemm_ar_rmsnorm_kernel
from triton_dist.ops.gemm_rs.scatter_kernel import gemm_rs_scatter_kernel
from triton_dist.ops.grouped_gemm.kernels import grouped_gemm_kernel
from triton_dist.ops.norm_rows.kernels import norm_rows_kernel
from triton_dist.ops.rmsnorm_gemm.kernels import few_rows_kernel

_DATA = ("x", "y", "gathered", "weight", "norm_weight", "bias", "residual", "shift", "out", "residual_out", "data", "total")
_POINTERS = {"in_splits": "*i64", "out_splits_offsets": "*i64", "packets": "*i64", "quantised": "*i8",
             **dict.fromkeys(("flags", "control", "team", "ids", "ids_out", "told", "hist", "meta", "positions", "sources",
                              "experts_told", "begins", "counts", "parts"), "*i32"),
             **dict.fromkeys(("weights", "weights_out", "scale", "scales", "scales_out", "row_weights"), "*fp32")}
_ODD = ("world", "index", "call", "pieces", "piece_tiles", "words", "blocks", "rounds", "capacity", "pushers", "most", "limit",
        "experts", "room", "align", "m", "chunks", "near", "head", "steps", "row_step", "group_step", "per_row")       # no hint
_LANES = {"cuda": 32, "hip": 64}


def _sample(kernel: Any, name: str, slots: str = "*bf16", **constants: Any) -> Any:
    """`kernel` with bf16 operands and sizes that are multiples of 16."""
    types = []
    for parameter in kernel.arg_names:
        if parameter.isupper():
            types.append(f"%{parameter}")
        elif parameter in _DATA:
            types.append("*bf16:16")
        elif parameter == "slots" or parameter in _POINTERS:
            types.append(f"{_POINTERS.get(parameter, slots)}:16")
        else:
            types.append("i32" if parameter in _ODD else "i32:16")
    infos = []
    for vendor, lanes in _LANES.items():
        info = dict(constants, targets=[vendor])
        if "THREADS" in kernel.arg_names:
            info["THREADS"] = lanes * info["num_warps"]
        infos.append(info)
    own = type(kernel)(kernel.fn)  # beside what is declared of the original
    return aot_compile_spaces({f"{name}_bf16": {"signature": ", ".join(types), "triton_algo_infos": infos}}, name=name)(own)


_GEMM = dict(HAS_BIAS=False, EVEN_K=True, PRECISION="ieee", BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP_M=8, num_warps=8,
             num_stages=2)
_EXCHANGE = dict(OP="sum", WORLD=2, RANKS=2, num_warps=8, num_stages=1)
_NORM = dict(EPS=1e-6, WEIGHT_BIAS=0.0, CENTER=False, HAS_BIAS=False, HAS_RESIDUAL=True, HAS_SHIFT=False, HAS_OUT=True, QUANT="",
             WORLD=2, EACH=1, WHOLE=True, num_warps=8, num_stages=1)
_QUANTISED = dict(_NORM, HAS_OUT=False, QUANT="row")

ag_gemm_by_sms_portable = _sample(ag_gemm_by_sms_kernel, "ag_gemm_by_sms", MOST=32, GATED=False, **_GEMM)
gemm_rs_scatter = _sample(gemm_rs_scatter_kernel, "gemm_rs_scatter", **_GEMM)
_FEW_ROWS = dict(slots="*i64", WORLD=2, RANKS=2, SPLIT=1, HAS_BIAS=False, WHOLE=True, BOXES=False, EVEN_K=True, PRECISION="ieee",
                 BLOCK_M=16, BLOCK_N=64, BLOCK_K=64, num_warps=4, num_stages=2)
gemm_ar = _sample(gemm_ar_kernel, "gemm_ar", TWO_SHOT=False, HAS_RESIDUAL=False, **_FEW_ROWS)
gemm_ar_rmsnorm = _sample(gemm_ar_rmsnorm_kernel, "gemm_ar_rmsnorm", EPS=1e-6, WEIGHT_BIAS=0.0, EACH=1, SHARED=True,
                          HAS_RESIDUAL=True, **_FEW_ROWS)
all_gather = _sample(one_hop_push, "all_gather", SCATTER=False, BLOCK=4096, **dict(_EXCHANGE, OP=None))
reduce_scatter = _sample(one_hop_push, "reduce_scatter", SCATTER=True, BLOCK=4096, **_EXCHANGE)
all_gather_packets = _sample(one_hop_packets, "all_gather_packets", slots="*i64", SCATTER=False, WHOLE=True,
                             **dict(_EXCHANGE, OP=None))
reduce_scatter_packets = _sample(one_hop_packets, "reduce_scatter_packets", slots="*i64", SCATTER=True, WHOLE=True, **_EXCHANGE)
all_reduce_packets = _sample(two_shot_kernel, "all_reduce_packets", slots="*i64", WHOLE=True, **_EXCHANGE)
all_reduce_rmsnorm = _sample(one_hop_rmsnorm, "all_reduce_rmsnorm", slots="*i32", ONE_ROW=True, **_NORM)
all_reduce_rmsnorm_two_hops = _sample(two_hops_rmsnorm, "all_reduce_rmsnorm_two_hops", slots="*i32", **_NORM)
all_reduce_layernorm = _sample(one_hop_rmsnorm, "all_reduce_layernorm", slots="*i32", ONE_ROW=True,
                               **dict(_NORM, CENTER=True, HAS_SHIFT=True))
all_reduce_rmsnorm_quant = _sample(one_hop_rmsnorm, "all_reduce_rmsnorm_quant", slots="*i32", ONE_ROW=True, **_QUANTISED)
all_reduce_rmsnorm_quant_two_hops = _sample(two_hops_rmsnorm, "all_reduce_rmsnorm_quant_two_hops", slots="*i32", **_QUANTISED)
all_to_all_vdev = _sample(all_to_all_vdev_kernel, "all_to_all_vdev", slots="*i64", WORLD=2, RANKS=2, BLOCK=4096, num_warps=8,
                          num_stages=1)
_CHUNKS = dict(EXPERTS=32, E_PAD=32, WORLD=2, RANKS=2, ROWS=2, COLS=4096, num_warps=8, num_stages=1)
all_to_all_vdev_2d = _sample(all_to_all_vdev_2d_kernel, "all_to_all_vdev_2d", BY_RANK=True, **_CHUNKS)
all_to_all_vdev_2d_offset = _sample(all_to_all_vdev_2d_kernel, "all_to_all_vdev_2d_offset", BY_RANK=False, **_CHUNKS)
# H = 7168, 8 choices of 64 experts, 32 of them on each of 2 ranks
_EXPERTS = dict(K=8, CHOICES=8, SCALES=0, SCALES_PAD=1, META=16, E_LOC=32, E_PAD=32, WORLD=2, RANKS=2, PITCH=256, ROWS=2,
                COLS=4096, num_stages=1)
_HALVES = dict(SEND=True, TAKE=True, TOKENS=32, ROUND=4, PARTS=2, num_warps=4)
ep_dispatch = _sample(ep_dispatch_kernel, "ep_dispatch", WEIGHTS=True, QUANT=False, INDEX=False, FIRST=1, WIDE=32, **_HALVES,
                      **_EXPERTS)
ep_dispatch_place = _sample(place_kernel, "ep_dispatch_place", MASKED=False, SOURCES=True, LINES=256, num_warps=8, **_EXPERTS)
ep_dispatch_by_expert = _sample(rows_by_expert_kernel, "ep_dispatch_by_expert", QUANT=False, FIRST=1, MASKED=False,
                                TOKENS=32, ROUND=4, PARTS=2, num_warps=4, **dict(_EXPERTS, META=0))
ep_dispatch_expand = _sample(expand_kernel, "ep_dispatch_expand", MASKED=False, PARTS=4, num_warps=4, **_EXPERTS)
ep_combine = _sample(ep_combine_kernel, "ep_combine", PLACED=True, WEIGHTED=True, HAS_BIAS=False, HAS_RESIDUAL=False, SEND=True,
                     TAKE=True, TOKENS=32, K=8, CHOICES=8, E_LOC=32, WORLD=2, RANKS=2, PITCH=128, COLS=1024, ROUND=1, PARTS=4,
                     num_warps=2, maxnreg=128, num_stages=1)
_OF_ROWS = {name: value for name, value in _EXPERTS.items() if name not in ("SCALES", "SCALES_PAD", "META", "E_PAD")}
dispatch_grouped_gemm = _sample(exchange_rows_kernel, "dispatch_grouped_gemm", TOKENS=32, FAR=True, num_warps=8, **_OF_ROWS)
dispatch_grouped_gemm_own_rows = _sample(own_rows_kernel, "dispatch_grouped_gemm_own_rows", TOKENS=32, PER_CHUNK=4, BLOCK_M=128,
                                         E_PAD=32, num_warps=8, **_OF_ROWS)
grouped_gemm = _sample(grouped_gemm_kernel, "grouped_gemm", EXPERTS=32, MASKED=False, COUNTED=True, GATHER=False, WEIGHTED=False,
                       SILU=False, PARTS=1,
                       **{name: value for name, value in _GEMM.items() if name not in ("HAS_BIAS", "GROUP_M")})
rmsnorm_gemm = _sample(few_rows_kernel, "rmsnorm_gemm", HAS_BIAS=False, SILU=True, EVEN_K=True, PRECISION="ieee", AHEAD=2,
                       BLOCK_M=16, BLOCK_N=64, BLOCK_K=64, num_warps=4, num_stages=2)
norm_rows = _sample(norm_rows_kernel, "norm_rows", HAS_TOTAL=True, NORM=True, **{
    name: value for name, value in dict(_NORM, num_warps=4).items() if name != "WORLD"})

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Overlap operators. One op, one folder: op.py says what it is, kernels.py how it runs fused, unfused.py how without."""
from triton_dist.ops.all_reduce.op import all_reduce
from triton_dist.ops.all_gather.op import all_gather
from triton_dist.ops.reduce_scatter.op import reduce_scatter
from triton_dist.ops.all_to_all_single.op import all_to_all_single
from triton_dist.ops.internode.op import all_gather_2d, reduce_scatter_2d
from triton_dist.ops.ag_gemm.op import ag_gemm
from triton_dist.ops.gemm_rs.op import gemm_rs
from triton_dist.ops.ag_gemm.dgrad import gemm_rs_beside_gather as gemm_rs_beside_gather  # for gradients, not for users
from triton_dist.ops.gemm_ar.op import gemm_ar
from triton_dist.ops.all_reduce_rmsnorm.op import all_reduce_rmsnorm
from triton_dist.ops.all_reduce_layernorm.op import all_reduce_layernorm
from triton_dist.ops.gemm_ar_rmsnorm.op import gemm_ar_rmsnorm
from triton_dist.ops.all_reduce_rmsnorm_quant.op import QuantizedNorm, all_reduce_rmsnorm_quant
from triton_dist.ops.all_to_all_vdev.op import all_to_all_vdev
from triton_dist.ops.all_to_all_vdev_2d.op import all_to_all_vdev_2d, all_to_all_vdev_2d_offset
from triton_dist.ops.ep_dispatch.op import ep_dispatch_rows
from triton_dist.ops.ep_combine.op import ep_combine_rows
from triton_dist.ops.ep.calls import EPDispatched, EPHandle, ep_combine, ep_dispatch
from triton_dist.ops.ep.split_calls import EPSent, ep_combine_send, ep_dispatch_send
from triton_dist.ops.grouped_gemm.op import grouped_gemm
from triton_dist.ops.rmsnorm_gemm.op import rmsnorm_gemm
from triton_dist.ops.dispatch_grouped_gemm.op import dispatch_grouped_gemm_rows
from triton_dist.ops.ep.products import dispatch_grouped_gemm, grouped_gemm_combine
from triton_dist.ops.explain import explain
from triton_dist.ops.calls.plans import OnWorkspace, Plan
from triton_dist.ops.op import Agreed, Choice, Op, Shape
from triton_dist.ops import registry
from triton_dist.ops.registry import Gradient, Operator

#: Every op by its name, those of other packages included.
OPS: dict[str, Op] = registry.OPS

__all__ = [
    "Agreed", "Choice", "EPDispatched", "EPHandle", "EPSent", "Gradient", "OPS", "OnWorkspace", "Op", "Operator", "Plan",
    "QuantizedNorm", "Shape", "ag_gemm", "all_gather", "all_gather_2d", "all_reduce", "all_reduce_layernorm",
    "all_reduce_rmsnorm", "all_reduce_rmsnorm_quant", "all_to_all_single", "all_to_all_vdev", "all_to_all_vdev_2d",
    "all_to_all_vdev_2d_offset", "dispatch_grouped_gemm", "dispatch_grouped_gemm_rows", "ep_combine", "ep_combine_rows",
    "ep_combine_send", "ep_dispatch", "ep_dispatch_rows", "ep_dispatch_send", "explain", "gemm_ar", "gemm_ar_rmsnorm", "gemm_rs",
    "grouped_gemm", "grouped_gemm_combine", "reduce_scatter", "reduce_scatter_2d", "rmsnorm_gemm",
]

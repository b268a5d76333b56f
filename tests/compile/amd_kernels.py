# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every kernel of the ops as AMD GPUs run it: name -> a function that compiles it for a target.

Eight ranks, bf16, the tiles and options that the backend picks there.

    PYTHONPATH=python:tests/compile python tests/compile/amd_kernels.py     prints the table of docs/amd.md
"""
import functools

import test_collective_code
import test_gemm_ar_code
import test_op_code
import test_self_flag_code
import test_vdev_code
import triton
from amd_isa import resources
from compile_util import HIP

from triton_dist.ops.exchange.kernels import one_hop_packets, one_hop_push, one_hop_self_flagged
from triton_dist.ops.ag_gemm.by_sms_kernels import ag_gemm_by_sms_kernel, push_kernel as ag_push_kernel
from triton_dist.ops.ag_gemm.kernels import ag_gemm_kernel
from triton_dist.ops.all_reduce.kernels import push_kernel, two_hops_self_flagged, two_shot_kernel
from triton_dist.ops.all_reduce_rmsnorm.kernels import one_hop_rmsnorm, two_hops_rmsnorm
from triton_dist.ops.gemm_rs.kernels import gemm_rs_kernel

_one_hop = functools.partial(test_collective_code.compiled, world=8)
KERNELS = {
    "ag_gemm": functools.partial(test_op_code.compiled, ag_gemm_kernel),
    "ag_gemm by_sms": functools.partial(test_op_code.compiled, ag_gemm_by_sms_kernel),
    "ag_gemm by_sms push": functools.partial(test_op_code.compiled_push, ag_push_kernel),
    "gemm_rs": functools.partial(test_op_code.compiled, gemm_rs_kernel),
    "all_gather push": functools.partial(_one_hop, one_hop_push, op=None),
    "all_gather packets": functools.partial(_one_hop, one_hop_packets, op=None),
    "reduce_scatter push": functools.partial(_one_hop, one_hop_push, scatter=True),
    "reduce_scatter packets": functools.partial(_one_hop, one_hop_packets, scatter=True),
    "all_reduce push": functools.partial(_one_hop, push_kernel),
    "all_reduce one-shot packets": functools.partial(_one_hop, one_hop_packets),
    "all_reduce two-shot packets": functools.partial(_one_hop, two_shot_kernel),
    "all_reduce self-flagged": functools.partial(test_self_flag_code.compiled, one_hop_self_flagged, world=8),
    "all_reduce two-hop self-flagged": functools.partial(test_self_flag_code.compiled, two_hops_self_flagged, world=8),
    "all_reduce_rmsnorm self-flagged": functools.partial(test_self_flag_code.compiled, one_hop_rmsnorm, world=8),
    "all_reduce_rmsnorm two-hop self-flagged": functools.partial(test_self_flag_code.compiled, two_hops_rmsnorm, world=8),
    "gemm_ar packets": functools.partial(test_gemm_ar_code.compiled, world=8),
    "gemm_ar two-shot packets": functools.partial(test_gemm_ar_code.compiled, world=8, split=2, two_shot=True),
    "all_to_all_vdev": functools.partial(test_vdev_code.compiled, world=8),
}


def table() -> str:
    """Markdown: vector, accumulation and scalar registers, LDS bytes and spilled registers of every kernel and target."""
    heads = ("kernel", "target", "VGPR", "AGPR", "SGPR", "LDS bytes", "VGPR spills", "scratch bytes")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, compile_for in KERNELS.items():
        for target in HIP:
            used = resources(compile_for(target))
            cells = [used.get(key, 0) for key in ("vgpr_count", "agpr_count", "sgpr_count", "lds", "vgpr_spill_count",
                                                  "private_segment_fixed_size")]
            rows.append(" | ".join([f"| {name}", target, *map(str, cells)]) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(f"Triton {triton.__version__}\n\n{table()}")

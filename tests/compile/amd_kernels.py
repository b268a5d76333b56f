# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every kernel of the ops and the tutorials as AMD GPUs run it: name -> a function that compiles it for a target.

Eight ranks, bf16, the tiles and options that the backend picks there. Run as a script, with both Tritons, by tools/amd_table.py.
"""
import functools
import importlib.util
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

import fake_rocshmem
import test_collective_code
import test_experts_code
import test_experts_few_code
import test_experts_nodes_code
import test_gemm_ar_code
import test_gemm_ar_rmsnorm_code
import test_internode_code
import test_norm_rows_code
import test_op_code
import test_rmsnorm_gemm_code
import test_self_flag_code
import test_vdev_2d_code
import test_vdev_code
import triton
from amd_isa import resources
from compile_util import HIP, compile_kernel

from triton_dist.backends.amd import rocshmem_library
from triton_dist.ops.ag_gemm.by_sms_kernels import ag_gemm_by_sms_kernel, push_kernel as ag_push_kernel
from triton_dist.ops.ag_gemm.kernels import ag_gemm_kernel
from triton_dist.ops.all_reduce.kernels import push_kernel, two_hops_self_flagged, two_shot_kernel
from triton_dist.ops.all_reduce_rmsnorm.kernels import one_hop_rmsnorm, two_hops_rmsnorm
from triton_dist.ops.ep_dispatch.place_kernels import place_kernel
from triton_dist.ops.exchange.kernels import one_hop_packets, one_hop_push, one_hop_self_flagged
from triton_dist.ops.gemm_rs.kernels import gemm_rs_kernel
from triton_dist.ops.gemm_rs.nodes_kernel import gemm_rs_nodes_kernel
from triton_dist.ops.gemm_rs.scatter_kernel import gemm_rs_scatter_kernel
from triton_dist.ops.internode.kernels import all_gather_kernel, gather_kernel, reduce_scatter_kernel

TUTORIALS = Path(__file__).resolve().parents[2] / "tutorials"


def tutorial(file: str, name: str, types: dict, constants: dict, target: str, **options):
    """A kernel of a tutorial. `types`: of pointers; integers are multiples of 16, but for the number of the call."""
    spec = importlib.util.spec_from_file_location("tutorial_" + file.replace("-", "_"), TUTORIALS / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ):           # a script may set some for itself
        spec.loader.exec_module(module)
    kernel = getattr(module, name)
    signature = {arg: "constexpr" if arg in constants else types.get(arg, "i32") for arg in kernel.arg_names}
    divisible = [arg for arg, ty in signature.items() if ty != "constexpr" and arg not in ("call", "taken")]
    return compile_kernel(kernel, signature, constants, target, divisible=divisible, **options)


def tutorial_over_nodes(name: str, target: str):
    """A kernel of the third tutorial, over a stand-in for rocSHMEM's device bitcode."""
    with tempfile.TemporaryDirectory() as home:
        fake_rocshmem.write(Path(home))
        with mock.patch.dict(os.environ, ROCSHMEM_HOME=home):
            return tutorial("03-inter-node-all-gather", name, dict(gathered="*fp32", flags="*i64"), {}, target,
                            extern_libs=rocshmem_library.libraries(target))


def over_nodes(kernel, target: str):
    """A kernel of the ops over nodes, over a stand-in for rocSHMEM's device bitcode."""
    with tempfile.TemporaryDirectory() as home:
        fake_rocshmem.write(Path(home))
        with mock.patch.dict(os.environ, ROCSHMEM_HOME=home):
            return test_internode_code.compiled(kernel, target, rocshmem_library.libraries(target),
                                                dict(BLOCK_N=128, num_stages=2))


def experts_over_nodes(name: str, target: str):
    """A kernel of dispatch or combine over nodes, over the same stand-in."""
    with tempfile.TemporaryDirectory() as home:
        fake_rocshmem.write(Path(home))
        with mock.patch.dict(os.environ, ROCSHMEM_HOME=home):
            kernel, known, *_ = test_experts_nodes_code.KERNELS[name]
            return test_experts_nodes_code.compiled(kernel, target, rocshmem_library.libraries(target), **known)


_TILE = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64)
_one_hop = functools.partial(test_collective_code.compiled, world=8)
KERNELS = {
    "ag_gemm": functools.partial(test_op_code.compiled, ag_gemm_kernel),
    "ag_gemm, silu_mul": functools.partial(test_op_code.compiled, ag_gemm_kernel, GATED=True),
    "ag_gemm by_sms": functools.partial(test_op_code.compiled, ag_gemm_by_sms_kernel),
    "ag_gemm in graphs, enter": functools.partial(test_op_code.compiled_enter),
    "ag_gemm's gather alone, wait": functools.partial(test_op_code.compiled_arrived),
    "ag_gemm by_sms push": functools.partial(test_op_code.compiled_push, ag_push_kernel),
    "gemm_rs": functools.partial(test_op_code.compiled, gemm_rs_kernel),
    "gemm_rs scatter": functools.partial(test_op_code.compiled, gemm_rs_scatter_kernel),
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
    "all_reduce_rmsnorm_quant rows": functools.partial(test_self_flag_code.compiled, one_hop_rmsnorm, world=8, quant="row",
                                                       keep=False),
    "all_reduce_rmsnorm_quant groups, two-hop": functools.partial(test_self_flag_code.compiled, two_hops_rmsnorm, world=8,
                                                                  quant="group", keep=False),
    "all_reduce_layernorm self-flagged": functools.partial(test_self_flag_code.compiled, one_hop_rmsnorm, world=8, center=True),
    "gemm_ar packets": functools.partial(test_gemm_ar_code.compiled, world=8),
    "gemm_ar two-shot packets": functools.partial(test_gemm_ar_code.compiled, world=8, split=2, two_shot=True),
    "gemm_ar_rmsnorm packets": functools.partial(test_gemm_ar_rmsnorm_code.compiled, world=8, split=2),
    "rmsnorm_gemm product": functools.partial(test_rmsnorm_gemm_code.compiled, columns=128, depth=64),
    "norm of rows": functools.partial(test_norm_rows_code.compiled),
    "all_to_all_vdev": functools.partial(test_vdev_code.compiled, world=8),
    "all_to_all_vdev_2d": functools.partial(test_vdev_2d_code.compiled, world=8),
    "all_to_all_vdev_2d_offset": functools.partial(test_vdev_2d_code.compiled, world=8, by_rank=False),
    **{f"ep_{name}": functools.partial(test_experts_code.compiled, kernel, **known)
       for name, (kernel, known) in test_experts_code.KERNELS.items()},
    **{f"ep_{name}": functools.partial(test_experts_few_code.compiled, kernel, **known)
       for name, (kernel, known) in test_experts_few_code.KERNELS.items()},
    "ep_place": functools.partial(test_experts_code.compiled, place_kernel, ROWS=4),
    **{f"grouped {name}": functools.partial(test_experts_code.compiled_gemm, kernel, **known)
       for name, (kernel, known) in test_experts_code.GEMMS.items()},
    "ag_gemm over nodes, gather": functools.partial(over_nodes, gather_kernel),
    "gemm_rs over nodes": functools.partial(over_nodes, gemm_rs_nodes_kernel),
    "all_gather over nodes": functools.partial(over_nodes, all_gather_kernel),
    "reduce_scatter over nodes": functools.partial(over_nodes, reduce_scatter_kernel),
    **{f"ep over nodes, {name}": functools.partial(experts_over_nodes, name) for name in test_experts_nodes_code.KERNELS},
    "tutorial 0": functools.partial(tutorial, "00-ring-broadcast", "ring_broadcast",
                                    dict(x="*fp32", inbox="*fp32", flag="*i32", out="*fp32"), dict(BLOCK=256)),
    "tutorial 1": functools.partial(tutorial, "01-queue", "queue",
                                    dict(source="*fp32", out="*fp32", slots="*fp32", full="*i32", free="*i32"),
                                    dict(SLOTS=4, BLOCK=1024, WORKERS=4)),
    "tutorial 1, drained": functools.partial(tutorial, "01-queue", "drained", dict(free="*i32"), dict(SLOTS=4)),
    "tutorial 2, await_all": functools.partial(tutorial, "02-intra-node-all-gather", "await_all", dict(flags="*i32"), {}),
    "tutorial 2, push": functools.partial(tutorial, "02-intra-node-all-gather", "push",
                                          dict(x="*fp32", gathered="*fp32", flags="*i32"), dict(BLOCK=1024, PARTS=4)),
    "tutorial 3, flat": functools.partial(tutorial_over_nodes, "flat"),
    "tutorial 3, two_levels": functools.partial(tutorial_over_nodes, "two_levels"),
    "tutorial 4": functools.partial(tutorial, "04-low-latency-all-to-all", "dispatch",
                                    dict(tokens="*bf16", begins="*i32", recv="*bf16", counts="*i32", signals="*i32"),
                                    dict(MAX_ROWS=128, HIDDEN=7168, BLOCK=8192)),
    "tutorial 5, pull": functools.partial(tutorial, "05-reduce-scatter", "pull",
                                          dict(rows="*fp32", out="*fp32", ready="*i32", done="*i32"), dict(BLOCK=1024)),
    "tutorial 5, ring": functools.partial(tutorial, "05-reduce-scatter", "ring",
                                          dict(rows="*fp32", out="*fp32", inbox="*fp32", arrived="*i32"),
                                          dict(BLOCK=1024, PARTS=4)),
    "tutorial 6": functools.partial(tutorial, "06-ag-gemm", "ag_gemm",
                                    dict(x="*bf16", gathered="*bf16", weight="*bf16", out="*bf16", counters="*i32"), _TILE),
    "tutorial 7": functools.partial(tutorial, "07-gemm-rs", "gemm_rs",
                                    dict(x="*bf16", weight="*bf16", out="*bf16", inbox="*fp32", flags="*i32"), _TILE),
    "tutorial 9": functools.partial(tutorial, "09-first-race", "hand_on",
                                    dict(x="*fp32", inbox="*fp32", full="*i32", free="*i32", out="*fp32"),
                                    dict(FIX=True, BLOCK=64)),
    "tutorial 11": functools.partial(tutorial, "11-hang", "ring", dict(inbox="*i32", flag="*i32", out="*i32"), dict(FIX=True)),
    "tutorial 12": functools.partial(tutorial, "12-packets", "all_reduce", dict(x="*fp32", packets="*i64", out="*fp32"),
                                     dict(BLOCK=256)),
}


def table() -> dict:
    """{kernel: {target: [vector, scalar registers, LDS bytes, spilled vector registers, scratch bytes]}}"""
    found: dict = {}
    for name, compile_for in KERNELS.items():
        for target in HIP:
            used = resources(compile_for(target))
            found.setdefault(name, {})[target] = [used.get(key, 0) for key in (
                "vgpr_count", "sgpr_count", "lds", "vgpr_spill_count", "private_segment_fixed_size")]
    return found


if __name__ == "__main__":
    print(json.dumps({"triton": triton.__version__, "kernels": table()}))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Our kernels with a few of their variants each: what the tests of the host side call."""

from triton_dist.aot import aot_compile_spaces, ours, spaces_of
from triton_dist.aot.spaces import name_of


def few(kernel, **wanted):
    """Another kernel of the same source, with the bf16 variants that have these values."""
    made = type(kernel)(kernel.fn)
    spaces = {}
    for space in spaces_of(kernel):
        infos = [
            info
            for info in space.infos
            if all(info.get(name) == value for name, value in wanted.items()) and "hip" not in info.get("targets", ())
        ]
        if infos and space.name.endswith("_bf16"):
            spaces[space.name] = {"signature": space.signature, "triton_algo_infos": infos, "targets": ["cuda:90"]}
    return aot_compile_spaces(spaces, name=name_of(kernel))(made)


ag_gemm = few(ours.ag_gemm, HAS_BIAS=True, BLOCK_N=256, GROUP_M=8)
ag_gemm_by_sms = few(ours.ag_gemm_by_sms, HAS_BIAS=True, BLOCK_N=256, GROUP_M=8)
ag_gemm_push = few(ours.ag_gemm_push)
gemm_rs = few(ours.gemm_rs, HAS_BIAS=False, BLOCK_N=128, GROUP_M=8)
one_hop = few(ours.all_reduce_one_hop, WORLD=2, THREADS=128, EACH=1)
two_hops = few(ours.all_reduce_two_hops, WORLD=2, THREADS=128, EACH=1)
push_one_hop = few(ours.all_reduce_push_one_hop, WORLD=2, num_warps=8)
NAMES = ("ag_gemm", "ag_gemm_by_sms", "ag_gemm_push", "gemm_rs", "one_hop", "two_hops", "push_one_hop")

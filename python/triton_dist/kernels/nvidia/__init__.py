# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin."""
from triton_dist.dropin.all_to_all import all_to_all_post_process, create_all_to_all_context, fast_all_to_all  # noqa: F401
from triton_dist.dropin.op_names import (  # noqa: F401
    AllGatherMethod, ag_gemm, cp_engine_producer_all_gather_intra_node, create_ag_gemm_context, create_fast_allgather_context,
    create_gemm_ar_context, create_gemm_rs_context, create_ll_gemm_ar_context, fast_allgather, gemm_allreduce_op,
    gemm_non_persistent, gemm_persistent, gemm_rs, get_auto_all_gather_method, low_latency_gemm_allreduce_op)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin.op_names."""
from triton_dist.dropin.op_names import (  # noqa: F401
    ag_gemm as ag_gemm_intra_node, create_ag_gemm_context as create_ag_gemm_intra_node_context,
    create_gemm_rs_context as create_gemm_rs_intra_node_context, gemm_rs as gemm_rs_intra_node)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin.op_names."""
from triton_dist.dropin.op_names import create_gemm_rs_context, gemm_rs  # noqa: F401

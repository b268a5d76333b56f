# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist bench` of what has peers instead of a limit: collectives by size, with the columns of nccl-tests, and gemm_ar."""

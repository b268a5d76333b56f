# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""GEMM-AllReduce: partial products summed over ranks, every rank having the sum."""

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""GEMM-ReduceScatter: partial products summed over ranks, each rank keeping its rows."""

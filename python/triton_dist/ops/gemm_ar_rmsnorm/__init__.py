# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""GEMM-AllReduce, then bias, residual and RMSNorm: a row-parallel linear of a decoder and what follows it."""

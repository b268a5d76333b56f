# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""nn.Modules over the ops."""
from triton_dist.layers.linear import AGGemm, GemmAR, GemmRS
from triton_dist.layers.norm import AllReduceRMSNorm

__all__ = ["AGGemm", "AllReduceRMSNorm", "GemmAR", "GemmRS"]

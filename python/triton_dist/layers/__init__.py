# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""nn.Modules over the ops."""
from triton_dist.layers.linear import AGGemm, GemmAR, GemmRS

__all__ = ["AGGemm", "GemmAR", "GemmRS"]

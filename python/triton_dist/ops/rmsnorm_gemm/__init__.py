# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A residual's addition, RMSNorm, a linear layer and silu-and-multiply: what a decoder does between two all-reduces."""

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All-reduce fused with bias, residual and LayerNorm."""

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All-reduce fused with bias, residual, RMSNorm and the quantised input of the next linear."""

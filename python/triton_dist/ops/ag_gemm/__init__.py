# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""AllGather-GEMM: every rank multiplies the gathered activations with its shard of the weight."""

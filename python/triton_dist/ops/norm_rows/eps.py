# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is added to the mean of the squares."""
import torch


def eps_of(eps: float | None, dtype: torch.dtype) -> float:
    """eps as torch.nn.RMSNorm takes it: None is that of the dtype in which rows of `dtype` are normed, fp32 for fp16 and bf16."""
    return float(torch.finfo(torch.promote_types(dtype, torch.float32)).eps if eps is None else eps)

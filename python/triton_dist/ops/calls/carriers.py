# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tensors of any dtype as integers of the same bytes, for what only moves them."""
import torch

from triton_dist.ops.calls import checks

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def carrier_of(dtype: torch.dtype) -> tuple[torch.dtype, int]:
    """(dtype, how many of it make an element) of what a kernel that only moves elements of `dtype` loads and stores."""
    if dtype in checks.DTYPES:
        return dtype, 1                         # as they are: a call then makes no view
    size = min(dtype.itemsize, max(_INTEGERS))
    return _INTEGERS[size], dtype.itemsize // size


def flat(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`t` without gaps; where its elements are of another dtype, its bytes as a row of `dtype`."""
    t = t.contiguous()
    return t if t.dtype == dtype else t.view(-1).view(dtype)


def rows_of_bytes(t: torch.Tensor) -> torch.Tensor:
    """`t` [rows, ...] without gaps; where libraries may not take its dtype, its bytes, as many rows of them."""
    t = t.contiguous()
    if t.dtype in checks.DTYPES:
        return t
    return t.view(t.shape[0], t[:1].numel() if t.shape[0] else 0).unsqueeze(-1).view(torch.uint8)

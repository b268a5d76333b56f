# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tensor descriptors of matrices, from which kernels load whole boxes."""
import torch
from triton.tools.tensor_descriptor import TensorDescriptor


def boxes(t: torch.Tensor, *block: int) -> TensorDescriptor:
    """The descriptor of `t` by which a kernel loads boxes of this many elements."""
    return TensorDescriptor.from_tensor(t, list(block))


def can_read(*tensors: torch.Tensor) -> bool:
    """Whether each has an element, a base at 16 bytes, and rows that are whole 16 bytes apart and do not overlap."""
    return all(t.numel() > 0 and t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 and
               t.stride(0) >= t.shape[1] for t in tensors)

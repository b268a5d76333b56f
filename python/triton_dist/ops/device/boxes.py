# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tensor descriptors of matrices, from which kernels load whole boxes."""
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_dist.runtime.device import fits_descriptor


def boxes(t: torch.Tensor, *block: int) -> TensorDescriptor:
    """The descriptor of `t` by which a kernel loads boxes of this many elements."""
    return TensorDescriptor.from_tensor(t, list(block))


def can_read(*tensors: torch.Tensor) -> bool:
    """Whether kernels can load boxes of each of these matrices, whose rows are contiguous."""
    return all(map(fits_descriptor, tensors))

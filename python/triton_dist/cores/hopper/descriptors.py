# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Descriptors of tensors for TMA."""
import functools
from typing import Any

import torch
import triton.experimental.gluon.language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_dist.runtime.device import fits_descriptor

_TYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32}


@functools.cache
def layout(dtype: torch.dtype, *block: int) -> Any:
    """Layout in shared memory of blocks of this shape."""
    return gl.NVMMASharedLayout.get_default_for(list(block), _TYPES[dtype])


@functools.cache
def _example(dtype: torch.dtype, *block: int) -> dict:
    """Fields of a descriptor of one block. What Triton asks of a block and its layout is checked here, once."""
    return vars(TensorDescriptor.from_tensor(torch.empty(block, dtype=dtype, device="cpu"), list(block), layout(dtype, *block)))


def descriptor(t: torch.Tensor, *block: int, shape: tuple = (), strides: tuple = ()) -> TensorDescriptor:
    """Describes `t`, which TMA can read (see below), as it is read or written in blocks of this shape.

    shape, strides: what it is described as, where that is not as it is.
    """
    made = object.__new__(TensorDescriptor)                 # it is not checked again
    vars(made).update(_example(t.dtype, *block), base=t, shape=shape or t.shape, strides=strides or t.stride())
    return made


def tma_can_read(t: torch.Tensor) -> bool:
    """Whether rows are contiguous, and a descriptor can be made of `t`."""
    return t.stride(1) == 1 and fits_descriptor(t)

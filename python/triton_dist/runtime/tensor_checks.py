# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a tensor must be before a kernel takes it."""
import torch

from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument


def check_tensors_gpu_ready(*tensors: torch.Tensor, **named: torch.Tensor) -> None:
    """Raises unless each tensor can be handed to a kernel here: contiguous, on this rank's device, and of one device.

    In the emulator the device is the CPU.

    Args:
        tensors: what is to be checked, told by number in errors.
        named: what is to be checked, told by name.

    Raises InvalidArgument that names the tensor and what would fix it.

    Example:
        check_tensors_gpu_ready(x=x, weight=weight)
    """
    device = backend().device()
    for name, tensor in [*((f"tensor {i}", tensor) for i, tensor in enumerate(tensors)), *named.items()]:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(f"{name}: expected a tensor, found {type(tensor).__name__}")
        if tensor.device != device:
            raise InvalidArgument(f"{name}: expected a tensor on {device}, found one on {tensor.device}; "
                                  f"move it by .to('{device}')")
        if not tensor.is_contiguous():
            raise InvalidArgument(f"{name}: expected a contiguous tensor, found strides {tuple(tensor.stride())} for shape "
                                  f"{tuple(tensor.shape)}; pass .contiguous(), or its strides to the kernel")

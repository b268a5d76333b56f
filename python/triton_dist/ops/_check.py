# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Argument checks that all ops share. They run before an op touches its epoch, so a refused call harms nobody."""
import torch

from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def matrix(name: str, t: torch.Tensor, like: torch.Tensor | None = None) -> None:
    """A 2-D fp16, bf16 or fp32 tensor on this rank's device, of the dtype of `like`."""
    if not isinstance(t, torch.Tensor):
        raise InvalidArgument(f"{name}: expected a torch.Tensor, found {type(t).__name__}")
    if t.ndim != 2:
        raise InvalidArgument(f"{name}: expected 2 dimensions, found shape {list(t.shape)}")
    if t.dtype not in DTYPES:
        raise InvalidArgument(f"{name}: expected float16, bfloat16 or float32, found {t.dtype}")
    if t.is_neg():
        raise InvalidArgument(f"{name}: its memory holds the negated values (torch's neg bit); pass {name}.resolve_neg()")
    _placed(name, t)
    if like is not None and t.dtype != like.dtype:
        raise InvalidArgument(f"{name}: expected {like.dtype} like the other operand, found {t.dtype}")


def vector(name: str, t: torch.Tensor | None, size: int, like: torch.Tensor) -> None:
    """None, or a contiguous 1-D tensor [size] of the dtype of `like`."""
    if t is None:
        return
    if not isinstance(t, torch.Tensor) or list(t.shape) != [size]:
        raise InvalidArgument(f"{name}: expected shape [{size}], found {list(getattr(t, 'shape', [])) or type(t).__name__}")
    if t.dtype != like.dtype:
        raise InvalidArgument(f"{name}: expected {like.dtype} like the operands, found {t.dtype}")
    if not t.is_contiguous():
        raise InvalidArgument(f"{name}: expected a contiguous tensor, found strides {list(t.stride())}")
    _placed(name, t)


def output(name: str, t: torch.Tensor | None, shape: tuple, like: torch.Tensor) -> None:
    """None, or a contiguous tensor of `shape` to write to."""
    if t is None:
        return
    matrix(name, t, like)
    if tuple(t.shape) != tuple(shape):
        raise InvalidArgument(f"{name}: expected shape {list(shape)}, found {list(t.shape)}")
    if not t.is_contiguous():
        raise InvalidArgument(f"{name}: expected a contiguous tensor, found strides {list(t.stride())}")


def no_overlap(name: str, out: torch.Tensor, **inputs: torch.Tensor | None) -> None:
    """`out` shares no memory with an input."""
    first, last = _span(out)
    for other, t in inputs.items():
        if t is not None and t.numel() and first < last:
            start, end = _span(t)
            if start < last and first < end:
                raise InvalidArgument(f"{name}: must not overlap {other} in memory; pass a tensor of its own")


def no_grad(**tensors: torch.Tensor | None) -> None:
    """Refuses tensors that autograd would have to follow."""
    if torch.is_grad_enabled():
        for name, t in tensors.items():
            if isinstance(t, torch.Tensor) and t.requires_grad:
                raise InvalidArgument(f"{name}: requires grad, and this op has no backward pass yet; call it under "
                                      "torch.no_grad() or pass a detached tensor")


def rows_contiguous(t: torch.Tensor) -> torch.Tensor:
    """`t`, or a copy of it, whose last dimension has stride 1."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 and t.is_contiguous() else t.contiguous()


def _placed(name: str, t: torch.Tensor) -> None:
    expected = backend().device()
    if t.device.type != expected.type or (expected.index is not None and t.device.index != expected.index):
        raise InvalidArgument(f"{name}: expected a tensor on {expected} (triton_dist.device()), found {t.device}")


def _span(t: torch.Tensor) -> tuple[int, int]:
    start = t.data_ptr()
    if t.is_contiguous():
        return start, start + t.numel() * t.element_size()
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride()))
    return start, start + (last + 1) * t.element_size()

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Argument checks that all ops share. They run before an op touches its epoch, so a refused call harms nobody."""
import torch

from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_PLAIN = torch.Tensor.__torch_dispatch__
_MAX_SIZE = 2**31            # sizes travel to kernels as int32


def matrix(name: str, t: torch.Tensor, like: torch.Tensor | None = None) -> None:
    """A 2-D fp16, bf16 or fp32 tensor on this rank's device, of the dtype of `like`."""
    tensor(name, t, like, ndim=2)


def tensor(name: str, t: torch.Tensor, like: torch.Tensor | None = None, ndim: int | None = None,
           any_dtype: bool = False) -> None:
    """A tensor of `ndim` dimensions on this rank's device, of the dtype of `like`: fp16, bf16 or fp32, or any dtype."""
    if not isinstance(t, torch.Tensor):
        raise InvalidArgument(f"{name}: expected a torch.Tensor, found {type(t).__name__}; make one on triton_dist.device()")
    if type(t) is not torch.Tensor or t.layout is not torch.strided or t.is_neg() or t.is_conj() or t.is_quantized:
        _strided(name, t)
    if ndim is not None and t.ndim != ndim:
        raise InvalidArgument(f"{name}: expected {ndim} dimensions, found shape {list(t.shape)}")
    if t.dtype not in DTYPES and not any_dtype:
        raise InvalidArgument(f"{name}: expected float16, bfloat16 or float32, found {t.dtype}; convert it with .to()")
    if max(t.shape, default=1) >= _MAX_SIZE:
        raise InvalidArgument(f"{name}: expected sizes below 2^31, found shape {list(t.shape)}; split the call")
    if t.device != backend().device() or t.data_ptr() % t.element_size():
        _placed(name, t)
    if like is not None and t.dtype != like.dtype:
        raise InvalidArgument(f"{name}: expected {like.dtype} like the other operand, found {t.dtype}; convert it with .to()")


def size(name: str, value: int) -> None:
    """A whole number of rows or columns."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(f"{name}: expected a whole number, found {value!r}")
    if not 0 <= value < _MAX_SIZE:
        raise InvalidArgument(f"{name}: expected a size of at least 0 and below 2^31, found {value}")


def rows(name: str, total: int) -> None:
    """The rows of all ranks together still count as int32."""
    if total >= _MAX_SIZE:
        raise InvalidArgument(f"{name}: expected fewer than 2^31 rows over all ranks, found {total}; split the call")


def vector(name: str, t: torch.Tensor | None, size: int, like: torch.Tensor, optional: bool = True) -> None:
    """A contiguous 1-D tensor [size] of the dtype of `like`, or None where it is optional."""
    if optional and t is None:
        return
    if not isinstance(t, torch.Tensor) or list(t.shape) != [size]:
        found = f"shape {list(t.shape)}" if isinstance(t, torch.Tensor) else type(t).__name__
        raise InvalidArgument(f"{name}: expected {'None or ' * optional}a tensor of shape [{size}], found {found}; it has an "
                              "element for each column of the output")
    _strided(name, t)
    if t.dtype != like.dtype:
        raise InvalidArgument(f"{name}: expected {like.dtype} like the operands, found {t.dtype}; convert it with .to()")
    if not t.is_contiguous():
        raise InvalidArgument(f"{name}: expected a contiguous tensor, found strides {list(t.stride())}; pass "
                              f"{name}.contiguous()")
    _placed(name, t)


def counts(name: str, t: torch.Tensor, shape: tuple, like: torch.Tensor | None = None) -> None:
    """A contiguous int32 or int64 tensor of `shape` on this rank's device, of the dtype of `like`."""
    if not isinstance(t, torch.Tensor):
        raise InvalidArgument(f"{name}: expected a torch.Tensor of shape {list(shape)}, found {type(t).__name__}; make one on "
                              "triton_dist.device()")
    _strided(name, t)
    wanted = (torch.int32, torch.int64) if like is None else (like.dtype,)
    if tuple(t.shape) != shape or t.dtype not in wanted:
        raise InvalidArgument(f"{name}: expected {' or '.join(map(str, wanted))} of shape {list(shape)}, found {t.dtype} of "
                              f"shape {list(t.shape)}")
    if not t.is_contiguous():
        raise InvalidArgument(f"{name}: expected a contiguous tensor, found strides {list(t.stride())}; pass one that is")
    _placed(name, t)


def output(name: str, t: torch.Tensor | None, shape: tuple, like: torch.Tensor, any_dtype: bool = False) -> None:
    """None, or a contiguous tensor of `shape` to write to."""
    if t is None:
        return
    tensor(name, t, like, len(shape), any_dtype)
    if tuple(t.shape) != tuple(shape):
        raise InvalidArgument(f"{name}: expected shape {list(shape)}, found {list(t.shape)}; pass None to have it allocated")
    if not t.is_contiguous():
        raise InvalidArgument(f"{name}: expected a contiguous tensor, found strides {list(t.stride())}; pass one that is")
    if t.is_inference() and not torch.is_inference_mode_enabled():
        raise InvalidArgument(f"{name}: is an inference tensor, and torch writes to those in inference mode only; pass "
                              f"{name}.clone()")
    if t.requires_grad and torch.is_grad_enabled():
        raise InvalidArgument(f"{name}: requires grad, and is written to out of autograd's sight; pass {name}.detach()")


def overlapping(out: torch.Tensor | None, *inputs: torch.Tensor | None) -> int | None:
    """Index of the first input that shares memory with `out`; None where there is none. For tensors that have memory."""
    if out is None or not out.numel():
        return None
    first, last = span(out)
    for index, t in enumerate(inputs):
        if t is not None:
            start, end = span(t)
            if start < last and first < end and t.numel():
                return index
    return None


def same_memory(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two tensors are one in memory. False for what has none."""
    return (a is not None and b is not None and has_memory(a) and has_memory(b) and a.data_ptr() == b.data_ptr()
            and a.shape == b.shape and a.stride() == b.stride())


def no_overlap(name: str, out: torch.Tensor | None, /, **inputs: torch.Tensor | None) -> None:
    """`out` shares no memory with an input."""
    index = overlapping(out, *inputs.values())
    if index is not None:
        raise InvalidArgument(f"{name}: must not overlap {list(inputs)[index]} in memory; pass a tensor of its own")


def no_grad(**tensors: torch.Tensor | None) -> None:
    """Refuses tensors that autograd would have to follow, in a call that writes to tensors that it was given."""
    if torch.is_grad_enabled():
        for name, t in tensors.items():
            if isinstance(t, torch.Tensor) and t.requires_grad:
                raise InvalidArgument(f"{name}: requires grad, and a call that is given a tensor to write to has no gradient; "
                                      "leave out `out`, call it under torch.no_grad(), or pass a detached tensor")


def rows_contiguous(t: torch.Tensor) -> torch.Tensor:
    """`t`, or a copy of it, whose last dimension has stride 1, and whose rows are not one and the same in memory."""
    return t if t.is_contiguous() or t.stride(-1) == 1 and t.stride(0) else t.contiguous()


def has_memory(t: torch.Tensor) -> bool:
    """Whether `t` is what kernels read: strides over memory of its own, not a wrapper (DTensor, FakeTensor, nested, sparse)."""
    return t.layout is torch.strided and (type(t) is torch.Tensor or type(t).__torch_dispatch__ is _PLAIN)


def _strided(name: str, t: torch.Tensor) -> None:
    if not has_memory(t):
        what = type(t).__name__ if t.layout is torch.strided else str(t.layout)
        raise InvalidArgument(f"{name}: expected a dense tensor with memory of its own, found {what}; pass the tensor that "
                              "holds this rank's part (a DTensor's to_local(), a sparse tensor's to_dense())")
    if t.is_neg():
        raise InvalidArgument(f"{name}: its memory holds the negated values (torch's neg bit); pass {name}.resolve_neg()")
    if t.is_conj():
        raise InvalidArgument(f"{name}: its memory holds the conjugates (torch's conj bit); pass {name}.resolve_conj()")
    if t.is_quantized:
        raise InvalidArgument(f"{name}: expected plain elements, found {t.dtype}; convert it with .dequantize(), or pass its "
                              "int_repr()")


def _placed(name: str, t: torch.Tensor) -> None:
    expected = backend().device()
    if t.device.type != expected.type or (expected.index is not None and t.device.index != expected.index):
        raise InvalidArgument(f"{name}: expected a tensor on {expected} (triton_dist.device()), found {t.device}; "
                              "move it with .to()")
    if t.data_ptr() % t.element_size():
        raise InvalidArgument(f"{name}: expected an address that is a multiple of {t.element_size()}, found {t.data_ptr():#x}; "
                              f"pass {name}.clone()")


def span(t: torch.Tensor) -> tuple[int, int]:
    """Addresses of its first byte and behind its last one."""
    start = t.data_ptr()
    if t.is_contiguous():
        return start, start + t.numel() * t.element_size()
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride()))
    return start, start + (last + 1) * t.element_size()

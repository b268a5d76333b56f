# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of shape manipulation: indexing, broadcasting, reshape, permute, join, split, gather."""
from typing import Any

import torch

from triton_dist.backends.emulator.engine.registry import Tup, invalid, twin
from triton_dist.backends.emulator.twins.core import block_shape, unify
from triton_dist.backends.emulator.values.casts import cast, cast_tensor
from triton_dist.backends.emulator.values.elementwise import unsigned_view
from triton_dist.backends.emulator.values.promotion import I1, I32, I64, info
from triton_dist.backends.emulator.values.scalars import Scalar, constant
from triton_dist.backends.emulator.values.tensors import Tensor, as_tensor, broadcast_shape, filled, item, scalar_type


_ALL = slice(None)


def flat(args: tuple) -> tuple:
    """f(x, (1, 2)) and f(x, 1, 2) are the same."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else tuple(args)


def wrap_axis(axis: int, rank: int) -> int:
    if isinstance(axis, (Scalar, Tensor)) or not -rank <= axis < rank:
        raise invalid(f"axis {axis!r} of a tensor of rank {rank}")
    return axis % rank


@twin("core.expand_dims")
def expand_dims(input: Any, axis: Any) -> Tensor:
    x = input
    axes = axis if isinstance(axis, (tuple, list)) else (axis, )
    if not isinstance(x, Tensor):
        return filled(x if isinstance(x, Scalar) else constant(x), (1, ) * len(axes))
    rank = len(x.shape) + len(axes)
    for k in sorted(wrap_axis(a, rank) for a in axes):
        shape = Tup((*x.shape[:k], 1, *x.shape[k:]))
        if x.line is not None:
            x = Tensor(None, x.ty, shape, (x.line[0], (*x.line[1][:k], 0, *x.line[1][k:])))
        elif x.box is not None:
            x = Tensor(None, x.ty, shape, box=(*x.box[:k], (0, 1), *x.box[k:]))
        else:
            x = Tensor(x.d.unsqueeze(k), x.ty, shape)
    return x


@twin("index")
def index(x: Any, key: Any) -> Any:
    """x[:, None] and the like: new axes and whole axes only."""
    key = tuple(key) if isinstance(key, tuple) else (key, )
    for k, part in enumerate(key):
        if part is None:
            x = expand_dims(x, k)
        elif type(part) is not slice or part != _ALL or not isinstance(x, Tensor):
            raise invalid(f"subscript {part!r} of a tensor: only `:` and None")
    if isinstance(x, Tensor) and len(key) > len(x.shape):
        raise invalid(f"{len(key)} subscripts of a tensor of rank {len(x.shape)}")
    return x


@twin("core.broadcast_to")
def broadcast_to(input: Any, *shape: Any) -> Tensor:
    x = input
    shape = block_shape(flat(shape))
    if not isinstance(x, Tensor):
        return as_tensor(x, shape)
    if len(shape) != len(x.shape):
        if len(x.shape) > len(shape):
            raise invalid(f"broadcast of {tuple(x.shape)} to {tuple(shape)}: ranks differ")
        return broadcast_to(expand_dims(x, list(range(len(shape) - len(x.shape)))), shape)
    if broadcast_shape(x.shape, shape) != shape:
        raise invalid(f"broadcast of {tuple(x.shape)} to {tuple(shape)}")
    if x.line is not None:
        return Tensor(None, x.ty, shape, (x.line[0], tuple(0 if m == 1 else s for s, m in zip(x.line[1], x.shape))))
    return Tensor(x.d.expand(shape), x.ty, shape)


@twin("core.broadcast")
def broadcast(input: Any, other: Any) -> tuple:
    shape = broadcast_shape(input.shape, other.shape)
    return Tup((as_tensor(input, shape), as_tensor(other, shape))) if shape else Tup((input, other))


@twin("core.reshape", "core.view")
def reshape(input: Any, *shape: Any, can_reorder: bool = False) -> Any:
    x = input
    shape = block_shape(flat(shape))
    if not isinstance(x, Tensor):
        return filled(x if isinstance(x, Scalar) else constant(x), shape) if shape else x
    numel = 1
    for n in shape:
        numel *= n
    if numel != x.numel:
        raise invalid(f"reshape of {tuple(x.shape)} to {tuple(shape)}: the number of elements differs")
    return Tensor(x.d.reshape(shape), x.ty, shape) if shape else item(x)


@twin("core.item", "core.unsplat")
def to_scalar(input: Any) -> Any:
    if isinstance(input, Tensor) and input.numel != 1:
        raise invalid(f"item of a tensor of shape {tuple(input.shape)}")
    return item(input) if isinstance(input, Tensor) else input


@twin("core.permute")
def permute(input: Tensor, *dims: Any) -> Tensor:
    x = input
    dims = tuple(int(k) for k in flat(dims))
    if sorted(dims) != list(range(len(x.shape))):
        raise invalid(f"permute{dims} of a tensor of rank {len(x.shape)}")
    shape = Tup(x.shape[k] for k in dims)
    if x.line is not None:
        return Tensor(None, x.ty, shape, (x.line[0], tuple(x.line[1][k] for k in dims)))
    return Tensor(x.d.permute(dims), x.ty, shape)


@twin("core.trans")
def trans(input: Tensor, *dims: Any) -> Tensor:
    rank = len(input.shape)
    if rank < 2 and not dims:
        raise invalid(f"trans of a tensor of rank {rank}")
    return permute(input, *(flat(dims) if dims else (*range(rank - 2), rank - 1, rank - 2)))


@twin("core.cat")
def cat(input: Tensor, other: Tensor, can_reorder: bool = False, dim: int = 0) -> Tensor:
    return Tensor(torch.cat((input.d, cast_tensor(other, input.ty).d), dim), input.ty)


@twin("core.join")
def join(a: Any, b: Any) -> Tensor:
    ty, shape = scalar_type(a), unify(a, b)[1]
    b = cast(b, ty)
    if not shape:
        return Tensor(torch.stack((filled(a, (1, )).d, filled(b, (1, )).d), 1).reshape(2), ty)
    return Tensor(torch.stack((as_tensor(a, shape).d, as_tensor(b, shape).d), -1), ty)


@twin("core.split")
def split(a: Tensor) -> Tup:
    if a.shape[-1] != 2:
        raise invalid(f"split of shape {tuple(a.shape)}: the last dimension must be 2")
    parts = [Tensor(a.d[..., k], a.ty) for k in (0, 1)]
    return Tup(item(p) if not p.shape else p for p in parts)


@twin("core.gather")
def gather(src: Tensor, index: Tensor, axis: int) -> Tensor:
    k, at = wrap_axis(axis, len(src.shape)), cast_tensor(index, I64).d
    if bool(((at < 0) | (at >= src.shape[k])).any()):
        raise invalid(f"gather: an index is outside 0 ... {src.shape[k] - 1}")
    return Tensor(torch.gather(src.d, k, at), src.ty)


@twin("core.histogram")
def histogram(input: Tensor, num_bins: int, mask: Any = None) -> Tensor:
    known = info(input.ty)
    values = input.d.reshape(-1)
    if mask is not None:
        values = values[as_tensor(cast(mask, I1), input.shape).d.reshape(-1)]
    if known.kind == "int" and not known.signed:
        values = torch.from_numpy(unsigned_view(values, known.bits).astype("i8"))
    kept = values[(values >= 0) & (values < num_bins)].to(torch.int64)
    return Tensor(torch.bincount(kept, minlength=int(num_bins)).to(torch.int32), I32)

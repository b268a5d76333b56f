# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of tl.reduce and tl.associative_scan; tl.sum, tl.max, tl.sort, ... are rebuilt from Triton's source.

A combine function is called on halves of the tensor, so a reduction is a tree of log2(n) element-wise steps with a
rounding at each, as on the GPU. Well-known combine functions take one torch call where that gives the same result.
"""
from typing import Any, Callable, Optional

import torch

from triton_dist.backends.emulator.engine.registry import Tup, invalid, twin
from triton_dist.backends.emulator.rebuild import rebuild
from triton_dist.backends.emulator.rebuild.statements import value
from triton_dist.backends.emulator.twins.shape import wrap_axis
from triton_dist.backends.emulator.values.casts import cast
from triton_dist.backends.emulator.values.promotion import I32, info
from triton_dist.backends.emulator.values.scalars import Scalar, scalar
from triton_dist.backends.emulator.values.tensors import Tensor, as_tensor, broadcast_shape, carried, item


def _combiner(fn: Any) -> tuple:
    """(name if it is one of Triton's own, callable on values)."""
    if rebuild.is_jit(fn):
        fn = rebuild.convert(fn)
    return fn.__qualname__ if fn.__globals__.get("__name__") == "triton.language.standard" else "", fn


def _fast(name: str, x: Tensor, axis: int) -> Optional[torch.Tensor]:
    known, d = info(x.ty), x.d
    if name == "_sum_combine" and (known.kind == "int" or known.bits >= 32):
        return d.sum(axis, dtype=d.dtype)
    if name in ("_elementwise_max", "_elementwise_min") and (known.signed or known.kind == "float" and known.size > 1):
        r = d.amax(axis) if name.endswith("max") else d.amin(axis)
        return None if known.kind == "float" and bool(r.isnan().any()) else r
    return None


def _slice(x: torch.Tensor, axis: int, part: slice) -> torch.Tensor:
    return x[(slice(None), ) * axis + (part, )]


def _call(fn: Callable, xs: list, ys: list) -> list:
    out = fn(*xs, *ys)
    out = list(out) if isinstance(out, tuple) else [out]
    if len(out) != len(xs):
        raise invalid(f"a combine function of {len(xs)} values returned {len(out)}")
    return [as_tensor(cast(r, x.ty), x.shape) for r, x in zip(out, xs)]


@twin("core.reduce")
def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: bool = False) -> Any:
    if isinstance(input, (Tensor, Scalar)):
        return reduce((input, ), axis, combine_fn, keep_dims)[0]
    values = list(input)
    if not all(isinstance(v, Tensor) for v in values):
        raise invalid("reduction of a scalar")
    rank = len(values[0].shape)
    if axis is None:
        values, k = [Tensor(v.d.reshape(-1), v.ty) for v in values], 0
    else:
        k = wrap_axis(axis, rank)
    name, fn = _combiner(combine_fn)
    done = _fast(name, values[0], k) if len(values) == 1 else None
    if done is not None:
        parts = [Tensor(done, values[0].ty)]
    else:
        parts = values
        while (n := parts[0].shape[k]) > 1:
            halves = [[Tensor(_slice(p.d, k, slice(a, b)), p.ty) for p in parts] for a, b in ((0, n // 2), (n // 2, n))]
            parts = _call(fn, *halves)
        parts = [Tensor(p.d.squeeze(k), p.ty) for p in parts]
    if keep_dims:
        parts = [Tensor(p.d.reshape((1, ) * rank) if axis is None else p.d.unsqueeze(k), p.ty) for p in parts]
    return Tup(p if p.shape else item(p) for p in parts)


@twin("core.reduce_with_indices", "core._reduce_with_indices")
def reduce_with_indices(input: Tensor, axis: Any, combine_fn: Any, keep_dims: bool = False) -> Tup:
    if axis is None:
        input, axis = Tensor(input.d.reshape(-1), input.ty), 0
    k = wrap_axis(axis, len(input.shape))
    n = input.shape[k]
    places = torch.arange(n, dtype=torch.int32).view([n if j == k else 1 for j in range(len(input.shape))])
    return reduce((input, Tensor(places.expand(input.shape), I32)), k, combine_fn, keep_dims)


@twin("core.associative_scan")
def associative_scan(input: Any, axis: Any, combine_fn: Any, reverse: bool = False) -> Any:
    if isinstance(input, Tensor):
        return associative_scan((input, ), axis, combine_fn, reverse)[0]
    values = list(input)
    k = wrap_axis(axis, len(values[0].shape))
    name, fn = _combiner(combine_fn)
    known = info(values[0].ty)
    if reverse:
        values = [Tensor(v.d.flip(k), v.ty) for v in values]
    if len(values) == 1 and name in ("_sum_combine", "_prod_combine") and (known.kind == "int" or known.bits >= 32):
        scan = torch.cumsum if name == "_sum_combine" else torch.cumprod
        values = [Tensor(scan(values[0].d, k, dtype=values[0].d.dtype), values[0].ty)]
    else:
        n, step = values[0].shape[k], 1
        while step < n:                      # each element takes in what ends `step` before it
            late = [Tensor(_slice(v.d, k, slice(step, n)), v.ty) for v in values]
            early = [Tensor(_slice(v.d, k, slice(0, n - step)), v.ty) for v in values]
            joined = _call(fn, early, late)
            values = [Tensor(torch.cat((_slice(v.d, k, slice(0, step)), j.d), k), v.ty) for v, j in zip(values, joined)]
            step *= 2
    if reverse:
        values = [Tensor(v.d.flip(k), v.ty) for v in values]
    return Tup(values)


@twin("core.map_elementwise")
def map_elementwise(scalar_fn: Any, *args: Any, pack: int = 1) -> Any:
    fn = rebuild.convert(scalar_fn) if rebuild.is_jit(scalar_fn) else scalar_fn
    shape = Tup()
    for x in args:
        shape = broadcast_shape(shape, x.shape)
    columns = [as_tensor(x, shape) for x in args]
    values = [[scalar(v, c.ty) for v in c.d.reshape(-1).tolist()] for c in columns]      # of each call: `pack` of each argument
    rows = [[v for column in values for v in column[i:i + pack]] for i in range(0, columns[0].numel, pack)]
    out = [[value(v) for v in (r if isinstance(r, tuple) else (r, ))] for r in (fn(*row) for row in rows)]
    if len(out[0]) % pack:
        raise invalid(f"map_elementwise with pack={pack} of a function that returns {len(out[0])} values")
    made = [Tensor(torch.tensor([carried(v.v, info(r[j].ty)) for r in out for v in r[j:j + pack]], dtype=info(out[0][j].ty).torch)
                   .reshape(shape), out[0][j].ty) for j in range(0, len(out[0]), pack)]
    return made[0] if len(made) == 1 else Tup(made)

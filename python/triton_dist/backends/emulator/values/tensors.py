# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tensor values: a torch tensor with a Triton element type, or a formula for one.

Index arithmetic is kept as a formula as long as it is one: `line` = (base, steps) means base + sum of steps[k] *
index[k]; `box` = ((lo, hi), ...) is a mask that is true inside a box. Loads and stores then know their addresses and
bounds without touching an element, which is what makes a 64 x 64 tile cost microseconds. Anything else is made into
elements first.
"""
import functools
import math
from typing import Any, Callable, Optional

import torch
from triton.language import core

from triton_dist.backends.emulator.engine import registry
from triton_dist.backends.emulator.engine.registry import Tup, invalid
from triton_dist.backends.emulator.values import elementwise
from triton_dist.backends.emulator.values.promotion import I1, I64, INFO, NEWER, Info, constant_type, info, torch_dtype
from triton_dist.backends.emulator.values.scalars import (COMPARE, NAMES, IntScalar, Pointer, Scalar, constant,
                                                          convert, operation_type, placed, scalar, signed_offset)

_ALL = slice(None)


class Tensor:
    """A block of values, rank >= 1. `ty`: canonical element type. Values never change after they are made."""
    __slots__ = ("_d", "ty", "shape", "line", "box", "_views")

    def __init__(self, d: Optional[torch.Tensor], ty: Any, shape: Any = None, line: Any = None, box: Any = None):
        self._d, self.ty, self.line, self.box = d, ty, line, box
        self.shape = Tup(d.shape) if shape is None else shape
        self._views: Any = None              # subscript -> view, for x[:, None] in loops

    @property
    def d(self) -> torch.Tensor:
        """The elements."""
        if self._d is None:
            self._d = _line_elements(self) if self.line is not None else _box_elements(self)
        return self._d

    dtype = property(lambda self: self.ty)
    numel = property(lambda self: math.prod(self.shape))
    type = property(lambda self: core.block_type(self.ty, list(self.shape)))
    T = property(lambda self: registry.TWINS["core.permute"](self, (1, 0)))

    def to(self, dtype: Any, fp_downcast_rounding: Any = None, bitcast: bool = False) -> Any:
        return registry.TWINS["core.cast"](self, dtype, fp_downcast_rounding, bitcast)

    def __bool__(self) -> bool:
        if self.numel != 1:
            raise invalid(f"a tensor of shape {tuple(self.shape)} used as a condition")
        return bool(self.d)

    def __index__(self) -> int:
        raise invalid(f"a tensor of shape {tuple(self.shape)} used as an integer")

    def __neg__(self) -> "Tensor":
        if NEWER and info(self.ty).kind == "float" and info(self.ty).size > 1:
            return Tensor(-self.d, self.ty, self.shape)
        return binary("sub", scalar(0, self.ty), self)

    def __pos__(self) -> "Tensor":
        return self

    def __invert__(self) -> "Tensor":
        if not info(self.ty).integer:
            raise invalid(f"~ of a tensor of {self.ty}")
        return Tensor(~self.d, self.ty, self.shape)

    def __getattr__(self, name: str) -> Callable:
        return registry.TWINS["member"](self, name)

    def __getitem__(self, index: Any) -> Any:
        parts, key = index if type(index) is tuple else (index, ), ""
        for part in parts:
            if part is not None and part != _ALL:
                return registry.TWINS["index"](self, parts)
            key += ":" if part is None else "."
        views = self._views
        if views is None:
            views = self._views = {}
        found = views.get(key)
        if found is None:
            found = views[key] = registry.TWINS["index"](self, parts)
        return found

    def __repr__(self) -> str:
        return f"tensor<{'x'.join(map(str, self.shape))}x{self.ty}>"


# -- formulas ----------------------------------------------------------------------------------------------------------
_SMALL = 1 << 12         # elements of formulas that are remembered


@functools.lru_cache(256)
def _steps(n: int, step: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(n, dtype=dtype) * step


def _differences(shape: tuple, steps: tuple, dtype: torch.dtype) -> torch.Tensor:
    """The elements of a formula less its base; dimensions without a step have size 1."""
    out, rank = None, len(shape)
    for k, (n, step) in enumerate(zip(shape, steps)):
        if step:
            part = _steps(n, step, dtype).view([n if j == k else 1 for j in range(rank)])
            out = part if out is None else out + part
    return torch.zeros([1] * rank, dtype=dtype) if out is None else out


_small_differences = functools.lru_cache(1024)(_differences)


def _line_elements(x: Tensor) -> torch.Tensor:
    base, steps = x.line
    kind, shape = INFO[id(x.ty)].torch, x.shape
    lo, hi = extent(x)
    narrow = torch.int32 if kind is torch.int32 and lo >= -0x80000000 and hi <= 0x7FFFFFFF else torch.int64
    base -= 1 << 64 if base >> 63 and base > 0 else 0
    out = (_small_differences if x.numel <= _SMALL else _differences)(shape, steps, narrow) + base
    return (out if narrow is kind else out.to(kind)).expand(shape)


def _box_elements(x: Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape, dtype=torch.bool)
    out[tuple(slice(lo, max(lo, hi)) for lo, hi in x.box)] = True
    return out


def extent(x: Tensor) -> tuple:
    """Smallest and largest value of a formula."""
    lo = hi = x.line[0]
    for n, step in zip(x.shape, x.line[1]):
        if step > 0:
            hi += step * (n - 1)
        else:
            lo += step * (n - 1)
    return lo, hi


def line(base: int, steps: tuple, ty: Any, shape: Tup) -> Optional[Tensor]:
    """A formula tensor; None where its values do not fit the type, and so would wrap."""
    x = Tensor(None, ty, shape, (base, steps))
    lo, hi = extent(x)
    known = INFO[id(ty)]
    return x if known.lo <= lo and hi <= known.hi or known.pointer else None


def broadcast_shape(a: Tup, b: Tup) -> Tup:
    """Triton's implicit broadcasting: missing leading axes, and axes of one."""
    return a if a is b else _broadcast_shape(a, b)


@functools.lru_cache(4096)
def _broadcast_shape(a: Tup, b: Tup) -> Tup:
    if len(a) != len(b):
        a, b = Tup((1, ) * (len(b) - len(a)) + tuple(a)), Tup((1, ) * (len(a) - len(b)) + tuple(b))
    for k, (m, n) in enumerate(zip(a, b)):
        if m != n and m != 1 and n != 1:
            raise invalid(f"shapes {tuple(a)} and {tuple(b)} cannot be broadcast: axis {k} is {m} and {n}")
    return Tup(max(m, n) for m, n in zip(a, b))


def _pad(steps: tuple, shape: Tup) -> tuple:
    return steps if len(steps) == len(shape) else (0, ) * (len(shape) - len(steps)) + steps


def _sum(p: tuple, q: tuple, sign: int = 1) -> tuple:
    return (p[0] + sign * q[0], p[1] + sign * q[1]) if len(p) == 2 else tuple([x + sign * y for x, y in zip(p, q)])


def _line_binary(name: str, a: Any, b: Any, ty: Any) -> Optional[Tensor]:
    """add, sub, mul of formulas and integers; None where the result is no formula of the type."""
    if name == "mul":
        if isinstance(a, int):
            a, b = b, a
        return line(a.line[0] * b, tuple(s * b for s in a.line[1]), ty, a.shape) if isinstance(b, int) else None
    sign = 1 if name == "add" else -1
    if isinstance(b, int):
        return line(a.line[0] + sign * b, a.line[1], ty, a.shape)
    if isinstance(a, int):
        return line(a + sign * b.line[0], tuple(sign * s for s in b.line[1]), ty, b.shape)
    shape = broadcast_shape(a.shape, b.shape)
    steps = _sum(_pad(a.line[1], shape), _pad(b.line[1], shape), sign)
    return line(a.line[0] + sign * b.line[0], steps, ty, shape)


_MIRROR = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _line_compare(name: str, a: Any, b: Any) -> Optional[Tensor]:
    """A comparison of formulas, where it is a box mask."""
    if isinstance(a, int):
        a, b, name = b, a, _MIRROR[name]
    if isinstance(b, int):
        shape, box = a.shape, _box_of(name, b - a.line[0], a.line[1], a.shape)
    else:
        shape = broadcast_shape(a.shape, b.shape)
        steps = _sum(_pad(a.line[1], shape), _pad(b.line[1], shape), -1)
        box = _box_of(name, b.line[0] - a.line[0], steps, shape)
    return None if box is None else Tensor(None, I1, shape, box=box)


@functools.lru_cache(4096)
def _box_of(name: str, gap: int, steps: tuple, shape: Tup) -> Optional[tuple]:
    """Where sum of steps[k] * index[k] compares so with `gap`, if it moves along one axis at most, upwards."""
    moving = [k for k, (n, s) in enumerate(zip(shape, steps)) if s and n > 1]
    if not moving:
        return tuple((0, n if COMPARE[name](0, gap) else 0) for n in shape)
    k, step = moving[0], steps[moving[0]]
    if len(moving) > 1 or step < 0:
        return None
    n, below, upto = shape[k], -(-gap // step), gap // step + 1        # how many elements are < gap, are <= gap
    lo, hi = {"lt": (0, below), "le": (0, upto), "ge": (below, n), "gt": (upto, n)}[name]
    return tuple((min(max(lo, 0), n), min(max(hi, 0), n)) if j == k else (0, m) for j, m in enumerate(shape))


def _box_and(a: Tensor, b: Tensor) -> Tensor:
    shape = broadcast_shape(a.shape, b.shape)
    p, q = expand_box(a.box, a.shape, shape), expand_box(b.box, b.shape, shape)
    return Tensor(None, I1, shape, box=_intersection(p, q))


@functools.lru_cache(4096)
def _intersection(a: tuple, b: tuple) -> tuple:
    return tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b))


@functools.lru_cache(4096)
def expand_box(box: tuple, old: Tup, shape: Tup) -> tuple:
    """The box of a mask of shape `old` after broadcasting to `shape`."""
    missing = len(shape) - len(old)
    box, old = ((0, 1), ) * missing + box, (1, ) * missing + tuple(old)
    return tuple(pair if n == m else ((0, n) if pair[1] > pair[0] else (0, 0)) for pair, m, n in zip(box, old, shape))


# -- operators ---------------------------------------------------------------------------------------------------------
def operand(x: Any, ty: Any) -> Any:
    """x for a torch operation in `ty`: a torch tensor, or a Python number in the signed range of the carrier."""
    if type(x) is Tensor:
        return x.d if x.ty is ty else registry.TWINS["cast_tensor"](x, ty).d
    return carried(convert(x, ty, not isinstance(x, Scalar)), INFO[id(ty)])


def carried(v: Any, known: Info) -> Any:
    """A number of an unsigned type in the range of its signed carrier."""
    return v - known.mask - 1 if known.integer and not known.signed and known.bits > 1 and v >> known.bits - 1 else v


def _integer_value(x: Any) -> Any:
    """x if it is a formula or an integer, else None."""
    if type(x) is Tensor:
        return x if x.line is not None else None
    return int(x) if type(x) is int else x.v if type(x) is IntScalar else None


def scalar_type(x: Any) -> Any:
    """The element type of any operand."""
    return x.ty if isinstance(x, (Tensor, Scalar)) else constant_type(x)


def is_const(x: Any) -> bool:
    """True for a constexpr number."""
    return not isinstance(x, (Tensor, Scalar))


class _Plan:
    """What two types make of an operation: the type `ty` in which it is computed, and that of the result."""
    __slots__ = ("pointer", "ty", "known", "result", "formula", "boxes", "direct")

    def __init__(self, name: str, a: Any, a_const: bool, b: Any, b_const: bool):
        self.pointer = info(a).pointer or info(b).pointer
        if not self.pointer:
            self.ty = operation_type(name, a, a_const, b, b_const)
            self.known, self.result = info(self.ty), I1 if name in COMPARE else self.ty
            self.formula, self.boxes = self.known.kind == "int" and name in _FORMULAS, self.known.kind == "bool" and name == "and"
            self.direct = elementwise.plain(name, self.known)


_plans: dict = {}        # (operation, id of a type, whether it is of a Python number, the same of the other) -> _Plan


def binary(name: str, a: Any, b: Any) -> Tensor:
    """`a op b`, where one at least is a Tensor."""
    if name in COMPARE:
        a, b = placed(a), placed(b)
    a_const = type(a) is not Tensor and not isinstance(a, Scalar)
    b_const = type(b) is not Tensor and not isinstance(b, Scalar)
    a_ty, b_ty = constant_type(a) if a_const else a.ty, constant_type(b) if b_const else b.ty
    key = name, id(a_ty), a_const, id(b_ty), b_const
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _Plan(name, a_ty, a_const, b_ty, b_const)
    if plan.pointer:
        return _offset(name, a, b, a_ty, b_ty)
    if plan.formula:
        x, y = _integer_value(a), _integer_value(b)
        if x is not None and y is not None:
            found = _formula(name, x, y, plan.ty)
            if found is not None:
                return found
    elif plan.boxes and type(a) is type(b) and a.box is not None and b.box is not None:
        return _box_and(a, b)
    if type(a) is Tensor and type(b) is Tensor and a.shape != b.shape:
        shape = broadcast_shape(a.shape, b.shape)
    else:
        shape = a.shape if type(a) is Tensor else b.shape
    x, y = operand(a, plan.ty), operand(b, plan.ty)
    d = plan.direct(x, y) if plan.direct else elementwise.apply(name, x, y, plan.known, b_ty if a_const else a_ty)
    return Tensor(d, plan.result, shape)


_FORMULAS = {"add", "sub", "mul", "lt", "le", "gt", "ge", "mod"}


def _formula(name: str, x: Any, y: Any, ty: Any) -> Optional[Tensor]:
    known = INFO[id(ty)]
    for v in (x, y):
        if type(v) is int:
            if not known.lo <= v <= known.hi:
                return None
        elif v.ty is not ty:
            lo, hi = extent(v)
            if lo < known.lo or hi > known.hi:
                return None
    if name == "mod":                # an index that is in range already
        if not isinstance(y, int) or isinstance(x, int):
            return None
        lo, hi = extent(x)
        return line(*x.line, ty, x.shape) if 0 <= lo and hi < y else None
    return _line_compare(name, x, y) if name in COMPARE else _line_binary(name, x, y, ty)


def _offset(name: str, a: Any, b: Any, a_ty: Any, b_ty: Any) -> Tensor:
    """Pointer plus or minus offsets: sign-extended (or zero-extended, where unsigned), scaled in 64 bits."""
    if INFO[id(b_ty)].pointer and name == "add":
        a, b, a_ty, b_ty = b, a, b_ty, a_ty
    if name not in ("add", "sub") or not INFO[id(b_ty)].integer:
        raise invalid(f"{a_ty} {name} {b_ty}: a pointer takes + and - with an integer")
    step = INFO[id(a_ty)].stride
    if name == "sub":                        # negated in its own type first, so an unsigned offset wraps
        b = -b
    y = signed_offset(b) if type(b) is IntScalar else _integer_value(b)
    if isinstance(y, int) and isinstance(a, Tensor) and a.line is not None:
        return Tensor(None, a_ty, a.shape, (a.line[0] + step * y, a.line[1]))
    if isinstance(y, Tensor):
        base, steps = step * y.line[0], tuple([step * s for s in y.line[1]])
        if isinstance(a, Pointer):
            return Tensor(None, a_ty, y.shape, (a.v + base, steps))
        if a.line is not None:
            shape = broadcast_shape(a.shape, y.shape)
            return Tensor(None, a_ty, shape, (a.line[0] + base, _sum(_pad(a.line[1], shape), _pad(steps, shape))))
    if isinstance(b, Tensor):
        offset = registry.TWINS["cast_tensor"](b, I64).d * step
    else:
        offset = int(y) * step
    return Tensor((a.d if isinstance(a, Tensor) else a.v) + offset, a_ty)


def _methods(name: str) -> tuple:
    def forward(a: Tensor, b: Any) -> Any:
        return binary(name, a, b) if type(b) is Tensor or isinstance(b, _OPERANDS) else NotImplemented

    def backward(a: Tensor, b: Any) -> Any:
        return binary(name, b, a) if type(b) is Tensor or isinstance(b, _OPERANDS) else NotImplemented

    return forward, backward


_OPERANDS = (Scalar, int, float)
for _name in NAMES:
    _forward, _backward = _methods(_name)
    setattr(Tensor, f"__{_name}__", _forward)
    if _name not in COMPARE:
        setattr(Tensor, f"__r{_name}__", _backward)
Tensor.__hash__ = None


def filled(x: Any, shape: Any) -> Tensor:
    """A tensor of one value: x a Scalar."""
    shape, known = Tup(shape), info(x.ty)
    if known.pointer or known.kind == "int" and known.lo <= x.v <= known.hi:
        return Tensor(None, x.ty, shape, (x.v, (0, ) * len(shape)))
    d = torch.full((1, ) * len(shape), carried(x.v, known), dtype=torch_dtype(x.ty))
    return Tensor(d.expand(shape), x.ty, shape)


def item(x: Tensor) -> Scalar:
    """The one element of a tensor as a scalar."""
    v, known = x.d.reshape(()).item(), info(x.ty)
    return Pointer(v, x.ty) if known.pointer else scalar(v, x.ty)


def as_tensor(x: Any, shape: Any) -> Tensor:
    """Any value broadcast to a shape."""
    if not isinstance(x, Tensor):
        return filled(x if isinstance(x, Scalar) else constant(x), shape)
    shape = Tup(shape)
    return x if x.shape == shape else registry.TWINS["core.broadcast_to"](x, shape)

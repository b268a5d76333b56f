# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Runtime scalars: typed integers and floats with the arithmetic of compiled code, and pointers.

A constexpr is a plain Python value. A runtime integer wraps, divides toward zero and compares in the promoted type; a
runtime float is a Python float rounded to its type after every operation; a pointer is a 64-bit address, and an offset
counts elements.
"""
import math
import operator
from typing import Any, Callable

from triton_dist.backends.emulator.engine import registry
from triton_dist.backends.emulator.engine.registry import Tup, fault, invalid
from triton_dist.backends.emulator.values.promotion import (F32, I1, I32, INFO, NEWER, check_constant, constant_type, info,
                                                            promote, rounded, truncated, wrap)

_NO_SHAPE = Tup()


class Scalar:
    """Base of the runtime scalars. `v`: the Python number; `ty`: the canonical Triton dtype."""
    __slots__ = ("v", "ty")
    shape = _NO_SHAPE
    numel = 1

    def __init__(self, v: Any, ty: Any):
        self.v, self.ty = v, ty

    dtype = property(lambda self: self.ty)
    type = property(lambda self: self.ty)

    def __bool__(self) -> bool:
        return self.v != 0

    def __repr__(self) -> str:
        return f"{self.v}:{self.ty}"

    def __pos__(self) -> "Scalar":
        return self

    def to(self, dtype: Any, fp_downcast_rounding: Any = None, bitcast: bool = False) -> Any:
        return registry.TWINS["core.cast"](self, dtype, fp_downcast_rounding, bitcast)

    def __getattr__(self, name: str) -> Callable:
        return registry.TWINS["member"](self, name)

    def __getitem__(self, index: Any) -> Any:
        return registry.TWINS["index"](self, index)


class IntScalar(Scalar):
    """A typed integer; int1 holds 0 or 1."""
    __slots__ = ()

    def __index__(self) -> int:
        return self.v

    __int__ = __index__

    def __neg__(self) -> "IntScalar":
        return IntScalar(wrap(-self.v, info(self.ty)), self.ty)

    def __invert__(self) -> "IntScalar":
        return IntScalar(wrap(~self.v, info(self.ty)), self.ty)


class FloatScalar(Scalar):
    """A typed float."""
    __slots__ = ()

    def __neg__(self) -> "FloatScalar":
        refuse_float8("-", self.ty)
        return FloatScalar(-self.v if NEWER else 0.0 - self.v, self.ty)

    def __invert__(self) -> None:
        raise invalid(f"~ of a {self.ty}")


class Pointer(Scalar):
    """A scalar pointer: an address and a pointer type."""
    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        if type(other) is int:
            return Pointer(self.v + other * info(self.ty).stride, self.ty)
        if type(other) is IntScalar:
            return Pointer(self.v + signed_offset(other) * info(self.ty).stride, self.ty)
        if isinstance(other, (Scalar, float, bool)):
            raise invalid(f"{self.ty} + {getattr(other, 'ty', type(other).__name__)}: an offset must be an integer")
        return NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, (int, IntScalar)) else NotImplemented

    def _refuse(self, other: Any) -> None:
        raise invalid(f"an operator that {self.ty} does not have: cast the pointer with .to(tl.int64)")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __mul__ = __and__ = __or__ = __floordiv__ = __mod__ = _refuse
    __hash__ = None

    def __repr__(self) -> str:
        return f"{self.v:#x}:{self.ty}"


def signed_offset(x: IntScalar) -> int:
    """A pointer offset as addptr takes it: narrow unsigned ones are zero-extended, 64-bit ones are signed."""
    return x.v - (1 << 64) if x.v >> 63 and x.v > 0 else x.v


def scalar(v: Any, ty: Any) -> Scalar:
    """A runtime scalar of a canonical type, from a number that may not fit: integers wrap, floats round."""
    known = info(ty)
    if known.pointer:
        return Pointer(v, ty)
    return IntScalar(wrap(int(v), known), ty) if known.integer else FloatScalar(rounded(float(v), ty), ty)


def constant(v: Any) -> Scalar:
    """What a Python number becomes at run time."""
    return scalar(v, constant_type(v))


# -- operators ---------------------------------------------------------------------------------------------------------
def _divide(x: int, y: int) -> int:
    if not y:
        raise fault("integer division by zero")
    return truncated(x, y)


def _float_divide(x: float, y: float) -> float:
    if y:
        return x / y
    return math.nan if not x or x != x else math.copysign(math.inf, x) * math.copysign(1.0, y)


def _float_mod(x: float, y: float) -> float:
    try:
        return math.fmod(x, y)
    except ValueError:
        return math.nan


COMPARE = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge
}
INTEGER: dict = {
    **COMPARE, "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "floordiv": _divide, "mod": lambda x, y: x - _divide(x, y) * y,
    "lshift": lambda x, y: x << y if 0 <= y < 64 else 0, "rshift": lambda x, y: x >> y if 0 <= y < 64 else x >> 64,
}
FLOAT: dict = {**COMPARE, "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": _float_divide,
               "mod": _float_mod}
BITWISE = {"and", "or", "xor", "lshift", "rshift"}
DIVISION = {"floordiv", "mod", "truediv"}
_TOP = 1 << 31
NAMES = [*INTEGER, "truediv"]
_operations: dict = {}    # (operation, id of a type, whether it is of a Python number, the same of the other) -> type


def convert(x: Any, ty: Any, const: bool) -> Any:
    """The number in x (a Scalar or a Python number) as an operand of the type `ty`."""
    known = INFO[id(ty)]
    if const:
        if known.integer and type(x) is int and known.lo <= x <= known.hi:
            return x
        check_constant(x, ty)
        return int(x) if known.integer else rounded(float(x), ty)
    if x.ty is ty:
        return x.v
    return wrap(x.v, known) if known.integer else rounded(float(x.v), ty)


def placed(x: Any) -> Any:
    """An operand where Triton before 3.9 makes a number a value of its own type first: in comparisons, minimum, clamp, fma."""
    return x if NEWER or isinstance(x, Scalar) or x.__class__ not in (int, float, bool) else constant(x)


def refuse_float8(name: str, ty: Any) -> None:
    """GPUs convert fp8 and multiply matrices of it; no other operation on it compiles."""
    if info(ty).kind == "float" and info(ty).size == 1:
        raise invalid(f"{name} of {ty}: GPUs do not compute in fp8; cast it with .to(tl.float32) first")


def operation_type(name: str, a: Any, a_const: bool, b: Any, b_const: bool) -> Any:
    """The type in which two operands of types a and b are combined."""
    key = name, id(a), a_const, id(b), b_const
    found = _operations.get(key)
    if found is None:
        ty = promote(a, a_const, b, b_const, name in DIVISION)
        refuse_float8(name, ty)
        if (name in BITWISE or name == "floordiv") and not info(ty).integer:
            raise invalid(f"{a} {name} {b}: both must be integers")
        found = _operations[key] = F32 if name == "truediv" and info(ty).integer else ty
    return found


def combine(name: str, a: Any, b: Any) -> Scalar:
    """`a op b`, where one at least is an IntScalar or a FloatScalar and the other may be a Python number."""
    if name in COMPARE:
        a, b = placed(a), placed(b)
    a_const, b_const = not isinstance(a, Scalar), not isinstance(b, Scalar)
    a_ty, b_ty = constant_type(a) if a_const else a.ty, constant_type(b) if b_const else b.ty
    if info(a_ty).pointer or info(b_ty).pointer:
        raise invalid(f"{a_ty} {name} {b_ty}: not an operation on pointers")
    ty = operation_type(name, a_ty, a_const, b_ty, b_const)
    if name == "rshift" and not a_const:      # arithmetic or logical: as the left operand's own sign says
        x = a.v
    else:
        x = convert(a, ty, a_const)
    y = convert(b, ty, b_const)
    if info(ty).integer:
        r = INTEGER[name](x, y)
        return IntScalar(int(r), I1) if name in COMPARE else IntScalar(wrap(r, info(ty)), ty)
    r = FLOAT[name](x, y)
    return IntScalar(int(r), I1) if name in COMPARE else FloatScalar(rounded(r, ty), ty)


def _methods(name: str) -> tuple:
    fn, compares = INTEGER.get(name), name in COMPARE

    def forward(a: Any, b: Any) -> Any:
        kind = type(b)
        if fn is not None and a.ty is I32 and (kind is IntScalar and b.ty is I32 or kind is int and -_TOP <= b < _TOP):
            r = fn(a.v, b if kind is int else b.v)
            if compares:
                return IntScalar(1 if r else 0, I1)
            return IntScalar(r if -_TOP <= r < _TOP else wrap(r, info(I32)), I32)
        if kind in _NUMBERS:
            return combine(name, a, b)
        return NotImplemented

    def backward(a: Any, b: Any) -> Any:
        return combine(name, b, a) if type(b) in _NUMBERS else NotImplemented

    return forward, backward


_NUMBERS = {int, float, bool, IntScalar, FloatScalar}
for _name in NAMES:
    _forward, _backward = _methods(_name)
    for _class in (IntScalar, FloatScalar):
        setattr(_class, f"__{_name}__", _forward)
        if _name not in COMPARE:
            setattr(_class, f"__r{_name}__", _backward)
IntScalar.__hash__ = FloatScalar.__hash__ = None

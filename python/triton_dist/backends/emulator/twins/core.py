# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of tl's core: program ids, creation, selection, dot, hints, and what the emulator refuses."""
import functools
import inspect
import operator
import time
from typing import Any

import torch
from triton.language import core

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import TWINS, Tup, fault, invalid, twin, unsupported
from triton_dist.backends.emulator.rebuild import primitives, threads
from triton_dist.backends.emulator.values.casts import cast, cast_tensor
from triton_dist.backends.emulator.values.elementwise import apply
from triton_dist.backends.emulator.values.promotion import F32, F64, I1, I32, NEWER, canonical, info, promote
from triton_dist.backends.emulator.values.scalars import (FloatScalar, IntScalar, Pointer, Scalar, constant, convert, placed,
                                                          refuse_float8)
from triton_dist.backends.emulator.values.tensors import (Tensor, as_tensor, broadcast_shape, filled, is_const, item,
                                                          operand, scalar_type)

MAX_NUMEL = 1 << 20


def block_shape(shape: Any) -> Tup:
    """A shape as Triton allows it: powers of two."""
    return _block_shape(tuple([int(n) for n in (shape if isinstance(shape, (tuple, list, core.tuple)) else (shape, ))]))


@functools.lru_cache(4096)
def _block_shape(sizes: tuple) -> Tup:
    shape, numel = Tup(sizes), 1
    for n in shape:
        if n < 1 or n & n - 1:
            raise invalid(f"shape {tuple(shape)}: every dimension must be a power of two")
        numel *= n
    if numel > MAX_NUMEL:
        raise invalid(f"shape {tuple(shape)} has {numel} elements: Triton allows {MAX_NUMEL}")
    return shape


# -- programs ----------------------------------------------------------------------------------------------------------
def _axis(axis: Any) -> int:
    if axis not in (0, 1, 2) or isinstance(axis, Scalar):
        raise invalid(f"axis {axis!r}: expected 0, 1 or 2")
    return axis


@twin("core.program_id")
def program_id(axis: int) -> IntScalar:
    return IntScalar(scheduler.active().current.cta.pid[_axis(axis)], I32)


@twin("core.num_programs")
def num_programs(axis: int) -> IntScalar:
    return IntScalar(scheduler.active().current.cta.grid[_axis(axis)], I32)


# -- creation ----------------------------------------------------------------------------------------------------------
@twin("core.arange")
def arange(start: int, end: int) -> Tensor:
    if not isinstance(start, int) or not isinstance(end, int):
        raise invalid(f"arange({start!r}, {end!r}): both bounds must be known at compile time")
    n = end - start
    if n < 1 or n & n - 1:
        raise invalid(f"arange({start}, {end}): the length must be a power of two")
    return Tensor(None, I32, block_shape((n, )), (start, (1, )))


@twin("core.full")
def full(shape: Any, value: Any, dtype: Any) -> Any:
    shape = block_shape(shape)
    if isinstance(value, Tensor):
        value = item(value)
    value = cast(value if isinstance(value, Scalar) else constant(value), canonical(dtype))
    return filled(value, shape) if shape else value


# -- selection ---------------------------------------------------------------------------------------------------------
def unify(a: Any, b: Any) -> tuple:
    """The common (type, shape) of two operands; scalars have shape ()."""
    a_ty, b_ty = scalar_type(a), scalar_type(b)
    if a_ty is b_ty and not is_const(a) and not is_const(b):
        ty = a_ty
    elif info(a_ty).pointer or info(b_ty).pointer:
        raise invalid(f"operands of {a_ty} and {b_ty}: types differ")
    else:
        ty = promote(a_ty, is_const(a), b_ty, is_const(b))
    shape = broadcast_shape(a.shape if isinstance(a, Tensor) else Tup(), b.shape if isinstance(b, Tensor) else Tup())
    return ty, shape


@twin("core.where")
def where(condition: Any, x: Any, y: Any) -> Any:
    ty, shape = unify(x, y)
    if type(condition) is not Tensor or condition.ty is not I1:
        condition = cast(condition if isinstance(condition, (Scalar, Tensor)) else constant(condition), I1)
    if not isinstance(condition, Tensor):
        pick = x if condition else y
        if not shape:
            return cast(pick if isinstance(pick, Scalar) else constant(pick), ty)
        pick = pick if isinstance(pick, (Tensor, Scalar)) else constant(pick)
        return as_tensor(cast(pick, ty), shape)
    shape = broadcast_shape(condition.shape, shape)
    known = info(ty)
    a, b = ((v.v if isinstance(v, Pointer) else operand(v, ty)) for v in (x, y))
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor) or known.kind == "bool":
        a, b = (v if isinstance(v, torch.Tensor) else torch.full((), v, dtype=known.torch) for v in (a, b))
    d = torch.where(condition.d, a, b)
    return Tensor(d if d.dtype is known.torch else d.to(known.torch), ty, shape)


@twin("core._promote_bfloat16_to_float32")
def promote_bfloat16(t: Any) -> Any:
    return cast(t, F32) if t.ty.name == "bf16" else t


def _extreme(name: str) -> None:
    less = name == "minimum"
    plain, nan_free = ("lt", torch.fmin) if less else ("gt", torch.fmax)
    all_nan = torch.minimum if less else torch.maximum

    def pick(x: Any, y: Any, propagate_nan: Any = None) -> Any:
        if not NEWER:
            x, y = promote_bfloat16(placed(x)), promote_bfloat16(placed(y))
        ty, shape = unify(x, y)
        refuse_float8(name, ty)
        known = info(ty)
        strict = getattr(propagate_nan, "name", "NONE") == "ALL"
        if not shape:
            a, b = (convert(v, ty, is_const(v)) for v in (x, y))
            if known.integer:
                return IntScalar(min(a, b) if less else max(a, b), ty)
            fn = all_nan if strict else nan_free
            a, b = (torch.tensor(v, dtype=torch.float64) for v in (a, b))
            return FloatScalar(fn(a, b).item(), ty)
        a, b = (v if isinstance(v, torch.Tensor) else torch.full((), v, dtype=known.torch)
                for v in (operand(x, ty), operand(y, ty)))
        if known.integer:
            return Tensor(torch.where(apply(plain, a, b, known, ty), a, b), ty, shape)
        return Tensor((all_nan if strict else nan_free)(a, b), ty, shape)
    twin(f"core.{name}")(pick)


_extreme("minimum")
_extreme("maximum")


@twin("core.clamp")
def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = None) -> Any:
    low, high = TWINS["core.maximum"], TWINS["core.minimum"]
    found = high(low(x, min, propagate_nan), max, propagate_nan)
    if info(found.ty).kind != "float" and not NEWER:
        raise invalid(f"clamp of {found.ty}: only floats")
    return found


def _arithmetic(name: str, fn: Any) -> None:
    def op(x: Any, y: Any, sanitize_overflow: bool = True) -> Any:
        return fn(constant(x) if is_const(x) and is_const(y) else x, y)
    twin(f"core.{name}")(op)


for _name in ("add", "sub", "mul"):
    _arithmetic(_name, getattr(operator, _name))


# -- dot ---------------------------------------------------------------------------------------------------------------
_DOT_OUT = inspect.signature(core.dot).parameters["out_dtype"].default      # 3.9: None, the accumulator's type


@twin("core.dot")
def dot(input: Tensor, other: Tensor, acc: Any = None, input_precision: Any = None, allow_tf32: Any = None,
        max_num_imprecise_acc: Any = None, out_dtype: Any = _DOT_OUT) -> Tensor:
    a, b = input, other
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or len(a.shape) != len(b.shape) or len(a.shape) < 2:
        raise invalid(f"dot of {a!r} and {b!r}: both must be 2-d, or both 3-d")
    left, right = info(a.ty), info(b.ty)
    if a.ty is not b.ty and not (left.size == 1 == right.size and not left.integer and not right.integer):
        raise invalid(f"dot of {a.ty} and {b.ty}: both must have the same type")
    if left.integer and a.ty.name not in ("int8", "uint8"):
        raise invalid(f"dot of {a.ty}: of the integers only int8")
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise invalid(f"dot of shapes {tuple(a.shape)} and {tuple(b.shape)}")
    out = canonical(out_dtype or (F32 if acc is None else acc.ty))
    ty = I32 if left.integer else F64 if a.ty is F64 else F32 if a.ty.name in ("fp32", "bf16") else out
    shape = Tup((*a.shape[:-1], b.shape[-1]))
    if acc is not None and (not isinstance(acc, Tensor) or acc.shape != shape or acc.ty is not ty):
        raise invalid(f"dot with an accumulator {acc!r}: expected {tuple(shape)} of {ty}")
    wide = torch.float64 if left.integer or a.ty is F64 else torch.float32
    x, y = a.d.to(wide), b.d.to(wide)
    if left.integer:                         # sums of int8 products are exact in float64
        r = (x @ y).to(torch.int64)
        return Tensor((r if acc is None else r + acc.d).to(torch.int32), ty, shape)
    if acc is None:
        r = x @ y
    elif len(shape) == 2 and acc.d.dtype is wide:
        r = torch.addmm(acc.d, x, y)
    else:
        r = acc.d.to(wide) + x @ y
    return Tensor(r, ty, shape) if r.dtype is info(ty).torch else cast_tensor(Tensor(r, F32, shape), ty)


# -- hints and barriers ------------------------------------------------------------------------------------------------
def _same(input: Any, values: Any = None) -> Any:
    return input if isinstance(input, (Tensor, Scalar)) or not isinstance(input, (int, float)) else constant(input)


for _name in ("max_contiguous", "max_constancy"):
    twin(f"core.{_name}")(_same)


@twin("core.multiple_of")
def multiple_of(input: Any, values: Any) -> Any:
    """Checks what the compiler will rely on, where it is cheap: scalars and formulas."""
    values = values if isinstance(values, (tuple, list)) else (values, )
    n = int(values[0])
    if isinstance(input, (IntScalar, Pointer)) and input.v % n:
        raise invalid(f"multiple_of({input!r}, {n}): the value is not a multiple")
    return _same(input)


@twin("core.assume")
def assume(cond: Any) -> None:
    if isinstance(cond, (Scalar, bool)) and not cond:
        raise invalid("tl.assume of a condition that does not hold")


@twin("core.debug_barrier", "core.barrier")
def debug_barrier(*_: Any, **__: Any) -> None:
    scheduler.active().point()
    threads.barrier()


@twin("core.inline_asm_elementwise")
def inline_asm_elementwise(asm: Any, *_: Any, **__: Any) -> None:
    raise unsupported(
        f"inline assembly cannot be emulated: {str(asm).strip()[:60]!r}; make it a triton_dist primitive, "
        "which has a CPU twin")


@twin("core.extern_elementwise")
def extern_elementwise(lib_name: Any, lib_path: Any, args: Any, arg_type_symbol_dict: Any,
                       is_pure: bool = False) -> Any:
    symbol = next(iter(arg_type_symbol_dict.values()))[0]
    return primitives.call(symbol, list(args))


@twin("core.expect_zero")
def expect_zero(x: Any, mask: Any) -> Any:
    bad = (x != 0) & mask
    if bool(bad.d.any() if isinstance(bad, Tensor) else bad):
        raise fault("expect_zero: a value under the mask is not zero")
    return x


# -- special registers -------------------------------------------------------------------------------------------------
@twin("utils.globaltimer")
def globaltimer() -> IntScalar:
    return IntScalar(time.perf_counter_ns(), core.int64)


@twin("utils.num_warps")
def num_warps() -> int:
    return scheduler.active().current.cta.num_warps


@twin("utils.num_threads")
def num_threads() -> int:
    return 32 * scheduler.active().current.cta.num_warps


@twin("utils.smid")
def smid() -> IntScalar:
    x, y, z = scheduler.active().current.cta.pid
    grid = scheduler.active().current.cta.grid
    return IntScalar((x + grid[0] * (y + grid[1] * z)) % scheduler.active().num_sms, I32)

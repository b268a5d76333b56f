# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What rebuilt functions call in place of Python's own semantics: assignment, conditions, loops, builtins.

The code generator of Triton makes a typed runtime value of everything that a plain assignment or a return names,
evaluates both sides of a runtime `and`, and unrolls constexpr loops. These helpers do the same on the values of the
emulator.
"""
import builtins
from typing import Any, Callable, Iterator

from triton_dist.compat.compiler import CodeGenerator
from triton.language import core

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import TWINS, Tup, fault, invalid, site, twin
from triton_dist.backends.emulator.memory.descriptors import Box, Descriptor
from triton_dist.backends.emulator.memory.gluon_smem import View
from triton_dist.backends.emulator.values.lanes import Lanes
from triton_dist.backends.emulator.values.promotion import I1, I32, info, promote, wrap
from triton_dist.backends.emulator.values.scalars import IntScalar, Pointer, Scalar, constant, scalar
from triton_dist.backends.emulator.values.tensors import Tensor

RUNTIME = (Scalar, Tensor, Box, View, Lanes)


@twin("core.to_tensor")
def value(x: Any) -> Any:
    """A plain assignment: Python numbers become typed runtime scalars."""
    kind = type(x)
    if kind is IntScalar or kind is Tensor:
        return x
    if kind is int:
        return IntScalar(x, I32) if -0x80000000 <= x <= 0x7FFFFFFF else constant(x)
    if kind is bool or kind is float:
        return constant(x)
    if kind is Tup:
        return Tup(value(y) for y in x)
    if isinstance(x, tuple):
        return type(x)(*map(value, x)) if hasattr(x, "_fields") else Tup(value(y) for y in x)
    return x


_KEEPS_CONSTEXPR = hasattr(CodeGenerator, "decide_return_type")       # Triton 3.9: a helper may return a constexpr


def result(x: Any, *tests: Any) -> Any:
    """What `return x` gives; `tests`: conditions of the `if`s that have a return in them."""
    return x if _KEEPS_CONSTEXPR and not any(isinstance(t, RUNTIME) for t in tests) else value(x)


def constexpr(x: Any, name: str = "") -> Any:
    """A constexpr parameter or annotation: a runtime value is an error."""
    kind = type(x)
    if kind is int or kind is bool or x is None:         # nearly all are
        return x
    if kind is core.constexpr:
        return x.value
    if isinstance(x, RUNTIME):
        what = f"constexpr parameter {name!r}" if name else "tl.constexpr"
        raise invalid(f"runtime value {x!r} given to {what}: it must be known at compile time")
    return x


def plain(x: Any) -> Any:
    """`x.value`: a constexpr is its own value."""
    return getattr(x, "value", x)


def falsy(x: Any) -> bool:
    """True where `x and ...` ends with x: a constexpr that is false."""
    return not isinstance(x, RUNTIME) and not x


def truthy(x: Any) -> bool:
    """True where `x or ...` ends with x: a constexpr that is true."""
    return not isinstance(x, RUNTIME) and bool(x)


def logical(name: str, x: Any, y: Any) -> Any:
    """The rest of `x and y`, `x or y`, once x did not decide it."""
    if not isinstance(x, RUNTIME):
        return y
    if not isinstance(y, RUNTIME):
        return y if bool(y) == (name == "or") else x
    for operand in (x, y):
        if operand.ty is not I1:
            raise invalid(f"`{name}` of a {operand.ty}: compare it first, both sides must be int1")
    return x & y if name == "and" else x | y


def both(x: Any, y: Any) -> Any:
    return logical("and", x, y)


def either(x: Any, y: Any) -> Any:
    return logical("or", x, y)


for _name in ("and", "or"):
    twin(f"core.tensor.logical_{_name}")(lambda x, other, name=_name: logical(name, x, value(other)))


def negation(x: Any) -> Any:
    """`not x`."""
    if not isinstance(x, RUNTIME):
        return not x
    if x.ty is not I1:
        raise invalid(f"`not` of a {x.ty}: compare it first")
    return ~x


def choice(condition: Any, x: Any) -> Any:
    """A branch of `x if condition else y`: a runtime condition makes a runtime value."""
    return value(x) if isinstance(condition, RUNTIME) else x


def loop(*bounds: Any, **hints: Any) -> Iterator:
    """range and tl.range: a typed induction variable. The hints (num_stages, ...) do not change values."""
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if len(bounds) == 1 and "arg2" in hints:
        start, stop = bounds[0], hints["arg2"]
    typed = [value(constexpr_or(x)) for x in (start, stop, hints.get("step") or step)]
    if not all(type(x) is IntScalar for x in typed):
        raise invalid(f"loop bounds {typed}: they must be integers")
    ty = typed[0].ty
    for x in typed[1:]:
        if x.ty is not ty:
            ty = promote(ty, False, x.ty, False)
    known = info(ty)
    if typed[2].v == 0:
        raise invalid("a loop step of 0")
    if typed[2].v < 0 and isinstance(step, Scalar):
        raise invalid("a negative loop step must be a constexpr")
    observer, actor = scheduler.active().observer, scheduler.active().current
    observer.loop(actor, True)
    try:
        for i in builtins.range(*(wrap(x.v, known) if x.v >= 0 or not known.signed else x.v for x in typed)):
            yield IntScalar(i, ty)
    finally:
        observer.loop(actor, False)


def constexpr_or(x: Any) -> Any:
    return x.value if isinstance(x, core.constexpr) else x


def static_loop(*bounds: Any, **_: Any) -> Any:
    """tl.static_range: constexpr induction variable."""
    return builtins.range(*(int(constexpr(x, "bound of static_range")) for x in bounds))


def condition(test: Any, disable_licm: bool = False) -> Any:
    """tl.condition, the hint around a while test."""
    return test


def tuple_of(items: Any = (), _: Any = None) -> Tup:
    return Tup(items)


def check(cond: Any, msg: Any = "", mask: Any = None) -> None:
    """`assert` and tl.device_assert."""
    if mask is not None:
        cond = cond | ~value(mask)
    if isinstance(cond, Lanes):
        cond = cond.block
    if isinstance(cond, Tensor):
        cond = bool(cond.d.all())
    if not cond:
        raise fault(f"device assertion failed: {msg}")


twin("core.device_assert")(check)


def forbidden(name: str) -> None:
    """A global that compiled kernels cannot read."""
    raise invalid(
        f"global variable {name!r} is not a constexpr: make it tl.constexpr({name}), or pass it as an argument")


# -- Python builtins that kernels may call -----------------------------------------------------------------------------
_KINDS = {
    core.tensor: (Scalar, Tensor, Lanes), core.base_value: RUNTIME, core.tuple: tuple, core.tensor_descriptor: Descriptor,
    core.tensor_descriptor_base: Descriptor, tuple_of: tuple, builtins.list: tuple
}


def is_instance(x: Any, kinds: Any) -> bool:
    for kind in kinds if isinstance(kinds, tuple) else (kinds, ):
        if kind is constexpr or kind is core.constexpr:
            found = not isinstance(x, RUNTIME)
        else:
            found = isinstance(x, _KINDS.get(kind, kind))
        if found:
            return True
    return False


def static(fn: Any) -> Any:
    def call(*args: Any) -> Any:
        return fn(*(constexpr(x, fn.__name__) if not isinstance(x, tuple) else x for x in args))
    return call


def extreme(name: str) -> Any:
    pick = getattr(builtins, name)

    def call(*args: Any, propagate_nan: Any = None) -> Any:
        if not any(isinstance(x, RUNTIME) for x in args):
            return pick(*args)
        found = args[0]
        for x in args[1:]:
            found = TWINS[f"core.{name}imum"](found, x, propagate_nan)
        return found
    return call


@twin("core.static_print")
def static_print(*values: Any, sep: str = " ", end: str = "\n", **_: Any) -> None:
    print(*values, sep=sep, end=end)


@twin("core.device_print")
def device_print(prefix: Any, *args: Any, hex: bool = False) -> None:
    cta = scheduler.active().current.cta
    print(f"pid {cta.pid if cta else ()} {prefix}", *[shown(value(x), hex) for x in args], flush=True)


def shown(x: Any, hex: bool = False) -> str:
    """The numbers in a value; unsigned ones as they are."""
    if isinstance(x, Lanes):
        x = x.block
    if isinstance(x, Tensor):
        return nested(x.d.tolist(), lambda v: shown(scalar(v, x.ty), hex))
    if isinstance(x, (IntScalar, Pointer)):
        return f"{x.v & info(x.ty).mask:#x}" if hex or isinstance(x, Pointer) else str(x.v)
    return str(getattr(x, "v", x))


def nested(x: Any, words: Callable) -> str:
    return f"[{', '.join(nested(y, words) for y in x)}]" if isinstance(x, list) else words(x)


@twin("core.static_assert")
def static_assert(test: Any, message: str = "") -> None:
    if not isinstance(test, bool):
        raise invalid(f"static_assert of {test!r}: it must be known at compile time")
    if not test:
        from triton_dist.compat.compiler import CompileTimeAssertionFailure
        raise CompileTimeAssertionFailure(site(), None, str(message))


BUILTINS = {
    "range": loop, "len": len, "list": tuple_of, "float": static(float), "int": static(int), "isinstance": is_instance,
    "getattr": getattr, "hasattr": hasattr, "print": device_print, "min": extreme("min"), "max": extreme("max")
}
twin("core.builtin_min")(BUILTINS["min"])
twin("core.builtin_max")(BUILTINS["max"])

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""From a launch to something the scheduler can run: arguments become kernel values, the kernel a Python function."""
import functools
import inspect
import operator
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from triton.language import core

from triton_dist.backends.emulator import twins  # noqa: F401  (importing the package registers all twins)
from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import Tup
from triton_dist.backends.emulator.memory import descriptors, memory
from triton_dist.backends.emulator.rebuild import rebuild
from triton_dist.backends.emulator.twins import gluon_partition
from triton_dist.backends.emulator.values.casts import cast
from triton_dist.backends.emulator.values.promotion import (F32, I1, I32, I64, U64, canonical, from_torch, info, pointer_to,
                                                            rounded)
from triton_dist.backends.emulator.values.scalars import FloatScalar, IntScalar, Pointer, constant
from triton_dist.language._call import LIBRARY
from triton_dist.language.kernels_of_threads import of_threads
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.jit import BackendLaunch

_OPTIONS = {
    "num_warps", "num_stages", "num_ctas", "extern_libs", "launch_cooperative_grid", "maxnreg", "debug", "stream",
    "warmup", "device", "device_type"
}


@dataclass
class Launch:
    """A bound kernel. `body()` runs one program; its id comes from the current actor's cta."""
    name: str
    grid: tuple
    num_warps: int
    body: Callable
    num_ctas: int = 1
    cooperative: bool = False
    keep: list = field(default_factory=list)      # the tensors it uses stay alive with it
    overlaps: bool = False                        # it may start before the kernel ahead has ended


@functools.cache
def compile_options() -> frozenset:
    """Keyword arguments of a launch that are no kernel parameters but options of a compiler."""
    names = set(_OPTIONS)
    for vendor, kind in (("nvidia", "CUDAOptions"), ("amd", "HIPOptions")):
        try:
            module = __import__(f"triton.backends.{vendor}.compiler", fromlist=[kind])
            names |= set(getattr(module, kind).__dataclass_fields__)
        except (ImportError, AttributeError):
            continue
    return frozenset(names)


@dataclass(frozen=True)
class _Parameter:
    name: str
    constexpr: bool
    typed: str               # the type an annotation fixes, or ''
    specialized: bool


_known: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()      # Python function -> its parameters


def _parameters(kernel: Any) -> tuple:
    if kernel.fn not in _known:
        _known[kernel.fn] = _read_parameters(kernel)
    return _known[kernel.fn]


def _read_parameters(kernel: Any) -> tuple:
    known = {p.name: p for p in getattr(kernel, "params", ())}
    found = []
    for name, parameter in inspect.signature(kernel.fn).parameters.items():
        p = known.get(name)
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        found.append(_Parameter(name, p.is_constexpr if p else "constexpr" in text,
                                getattr(p, "annotation_type", "") or "", not getattr(p, "do_not_specialize", False)))
    return tuple(found)


_NAMED = {"i1": core.int1, "u1": core.int1, "i8": core.int8, "i16": core.int16, "i32": core.int32, "i64": core.int64,
          "u8": core.uint8, "u16": core.uint16, "u32": core.uint32, "u64": core.uint64, "fp16": core.float16,
          "bf16": core.bfloat16, "fp32": core.float32, "fp64": core.float64}


def _integer(x: int, name: str) -> IntScalar:
    for ty in (I32, I64, U64):
        if info(ty).lo <= x <= info(ty).hi:
            return IntScalar(x, ty)
    raise InvalidArgument(f"argument {name!r} = {x} fits no 64-bit integer")


def argument(x: Any, p: _Parameter, keep: list) -> Any:
    """A launch argument as the kernel sees it: a tensor is a pointer; an int that is 1 is a constexpr."""
    if x is None or p.constexpr:
        return rebuild.convert(x) if isinstance(x, core.constexpr) or rebuild.is_jit(x) else x
    if isinstance(x, (bool, int, float)) and p.typed in _NAMED:
        return cast(constant(x), canonical(_NAMED[p.typed]))
    if isinstance(x, bool):
        return IntScalar(int(x), I1)
    if isinstance(x, int):
        return 1 if x == 1 and p.specialized else _integer(x, p.name)
    if isinstance(x, float):
        return FloatScalar(rounded(x, F32), F32)
    if isinstance(x, torch.Tensor):
        _use(x, p.name, keep)
        return Pointer(x.data_ptr(), pointer_to(from_torch(x.dtype)))
    if hasattr(x, "block_shape") and hasattr(x, "base"):
        _use(x.base, p.name, keep)
        return descriptors.from_host(x)
    if hasattr(x, "data_ptr") and hasattr(x, "base"):        # triton.reinterpret
        _use(x.base, p.name, keep)
        return Pointer(x.data_ptr(), pointer_to(x.dtype))
    if isinstance(x, tuple):
        parts = [argument(y, p, keep) for y in x]
        return type(x)(*parts) if hasattr(x, "_fields") else Tup(parts)
    if isinstance(x, (core.constexpr, core.dtype, str)) or rebuild.is_jit(x):
        return rebuild.convert(x)
    raise InvalidArgument(f"argument {p.name!r}: a kernel cannot take a {type(x).__name__}")


def _use(tensor: torch.Tensor, name: str, keep: list) -> None:
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"argument {name!r} is on {tensor.device}: the emulator takes CPU tensors; make it on "
                              "triton_dist.device()")
    if tensor.layout is not torch.strided:
        raise InvalidArgument(f"argument {name!r} is {tensor.layout}: a kernel takes dense tensors; pass its values")
    keep.append(tensor)
    memory.active().register(tensor, name, scheduler.active().current.rank)


def _grid(grid: Any, meta: dict) -> tuple:
    if callable(grid):
        grid = grid(meta)
    sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid, )
    if not 1 <= len(sizes) <= 3:
        raise InvalidArgument(f"grid {grid}: expected one to three dimensions")
    try:
        sizes = tuple(map(operator.index, sizes)) + (1, ) * (3 - len(sizes))
    except TypeError:
        raise InvalidArgument(f"grid {grid}: expected whole numbers") from None
    if min(sizes) < 0:
        raise InvalidArgument(f"grid {grid}: expected sizes of at least 0")
    return sizes


def _linked(kernel: Any, options: dict) -> bool:
    """Whether the device runtime is linked: a @triton_dist.jit kernel, or one launched with its library."""
    return LIBRARY in dict(options.get("extern_libs") or ()) or isinstance(kernel, BackendLaunch)


def bind(kernel: Any, grid: Any, args: tuple, kwargs: dict) -> Launch:
    """A launch of any triton jit function: JITFunction, a subclass, or InterpretedFunction.

    grid: one to three ints, or a callable of all arguments by name. kwargs: kernel arguments and compile options.
    """
    if not rebuild.is_jit(kernel):
        raise InvalidArgument(
            f"cannot launch a {type(kernel).__name__}: expected a function decorated with @triton_dist.jit")
    parameters = _parameters(kernel)
    names = {p.name for p in parameters}
    options = {k: v for k, v in kwargs.items() if k not in names}
    unknown = sorted(options.keys() - compile_options())
    if unknown:
        raise InvalidArgument(
            f"{kernel.__name__} has no parameter {', '.join(map(repr, unknown))}, and it is no compile option; "
            f"parameters: {', '.join(p.name for p in parameters)}")
    try:
        bound = inspect.signature(kernel.fn).bind(*args, **{k: v for k, v in kwargs.items() if k in names})
    except TypeError as error:
        raise InvalidArgument(f"{kernel.__name__}: {error}") from None
    bound.apply_defaults()
    keep: list = []
    values = [argument(bound.arguments[p.name], p, keep) for p in parameters]
    fn, linked, apart = rebuild.build(kernel), _linked(kernel, options), of_threads(kernel)

    def body() -> None:
        actor = scheduler.active().current
        actor.tdist, actor.of_threads = linked, apart
        fn(*values)
        gluon_partition.leave()

    return Launch(kernel.__name__, _grid(grid, dict(bound.arguments)), int(options.get("num_warps") or 4), body,
                  int(options.get("num_ctas") or 1), bool(options.get("launch_cooperative_grid")), keep,
                  bool(options.get("launch_pdl")))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""From a row of the ABI table to something a kernel can call.

`primitive` turns a *select* function into a Triton builtin. Select sees constexprs as Python values and runtime values
with a `.dtype`, checks them, and returns the ABI symbol and the arguments of the call. Compiled, the builtin casts each
argument to the row's type and emits an external call that the backend's device runtime resolves. Emulated, the engine
finds the same select function under `__tdist_select__` and calls the Python twin of the symbol.

`helper` is `triton.jit` for the functions built on primitives, minus one thing: under TRITON_INTERPRET they stay
JITFunctions, because the emulator rebuilds them itself.
"""
import functools

from triton.language import core

from triton_dist.compat.triton import JITFunction, unwrap_constexpr
from triton_dist.language import abi
from triton_dist.language._linked import defined, libraries, statement
from triton_dist.language.abi import ROWS

LIBRARY = "tdist"     # key under extern_libs; some compilers link a library only if its key is part of the symbol's name
STAND_IN = abi.__file__      # what a backend that compiles nothing names as a library: it has twins of all rows
SELECT = "__tdist_select__"


def require_runtime(name: str, semantic) -> None:
    """Raises unless the device runtime is linked into the kernel that is being traced."""
    if LIBRARY not in libraries(semantic):
        raise RuntimeError(f"{name} needs the device runtime, which plain triton.jit does not "
                           "link. Decorate the kernel with @triton_dist.jit instead of @triton.jit")


def provides(semantic, symbol: str) -> bool:
    """Whether the device runtime that is linked into the kernel being traced defines the optional row `symbol`."""
    path = libraries(semantic).get(LIBRARY)
    return path is not None and symbol in defined(path)


def assembly(semantic, symbol: str) -> tuple | None:
    """(text, constraints) of the inline assembly that the linked device runtime has for `symbol`; None where it has none."""
    path = libraries(semantic).get(LIBRARY)
    return None if path is None else statement(path).assembly.get(symbol)


def cast_arguments(row, args, semantic) -> list:
    """Arguments of a call as Triton tensors of the row's types."""
    return [semantic.cast(semantic.to_tensor(arg), core.dtype(ty)) for arg, ty in zip(args, row.args, strict=True)]


def _integers(name: str, args: tuple) -> None:
    for arg in args:
        ty = getattr(arg, "dtype", None)
        if isinstance(arg, float) or (ty is not None and ty.is_floating()):
            raise TypeError(f"{name} takes integers and pointers, found {arg if ty is None else ty}; "
                            "convert it with .to(tl.int32) if its fraction may be dropped")


def _as_it_is(symbol: str, semantic) -> str:
    return symbol


def primitive(choose, require=require_runtime, where="triton_dist.language", variant=_as_it_is):
    """Builtin made from `choose(*args) -> (symbol, call_args)`; see the module's docstring.

    `require(name, semantic)` raises where the kernel that is being traced cannot call it; `variant(symbol, semantic)` is the
    symbol of the body that it calls."""
    name = f"{where}.{choose.__name__.lstrip('_')}"

    @functools.wraps(choose)
    def select(*args, **kwargs):
        symbol, call_args = choose(*args, **kwargs)
        _integers(name, call_args)
        return symbol, call_args

    @functools.wraps(choose)
    def builtin(*args, _semantic=None, **kwargs):
        if _semantic is None:
            raise RuntimeError(f"{name} can only be called inside a kernel")
        require(name, _semantic)
        args = [unwrap_constexpr(arg) for arg in args]
        kwargs = {key: unwrap_constexpr(arg) for key, arg in kwargs.items()}
        symbol, call_args = select(*args, **kwargs)
        row = ROWS[symbol]
        signature = tuple(core.dtype(ty) for ty in row.args)
        return core.extern_elementwise("", "", cast_arguments(row, call_args, _semantic),
                                       {signature: (variant(symbol, _semantic), core.dtype(row.result))}, is_pure=row.pure,
                                       _semantic=_semantic)

    for attribute in ("__wrapped__", "__signature__"):     # they would hide `_semantic` from Triton's code generator
        builtin.__dict__.pop(attribute, None)
    setattr(builtin, core.TRITON_BUILTIN, True)
    setattr(builtin, SELECT, select)
    return builtin


def helper(fn) -> JITFunction:
    """Device function callable from any kernel, compiled or emulated."""
    return JITFunction(fn)

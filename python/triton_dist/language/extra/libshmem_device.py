# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The SHMEM device API: puts, gets, signals, barriers and collectives over the symmetric heap, from inside kernels.

    from triton_dist.language.extra import libshmem_device

Names, arguments and constants are the published ones. A call is one operation of the whole program, in uniform control
flow, scalars only: every call but a query or a wait begins and ends with a CTA barrier, so what the program has stored may be
sent and what a blocking call has brought may be loaded. `_warp` (or `_wave`) and `_block` (or `_wg`) say how many threads
do the work: one, the first warp, or all. Not in Gluon kernels, nor in loops that Triton warp-specialises.

Addresses are local ones into this rank's symmetric heap (`create_symm_tensor`); `pe` says on which rank. Sizes are in
bytes where the parameter is `bytes` and in mem collectives, otherwise in elements.

All functions run in the emulator. On GPUs they need a heap of the vendor's SHMEM library (TRITON_DIST_HEAP); docs/shmem.md
has the table. What a backend lacks is refused when the kernel is compiled.
"""
import functools
import inspect

from triton_dist.language._call import LIBRARY as RUNTIME, helper, primitive, require_runtime
from triton_dist.language._linked import libraries, statement
from triton_dist.language._shmem_check import arguments
from triton_dist.language.abi import ROWS
from triton_dist.language.extra import shmem_constants
from triton_dist.language.extra.shmem_constants import *  # noqa: F403 - the published constants
from triton_dist.language.shmem_abi import FUNCTIONS, LIBRARY, PARAMETERS, Function


def _require(function: Function, name: str, semantic) -> None:
    if type(semantic).__name__ == "GluonSemantic":
        raise TypeError(f"{name} in a Gluon kernel: SHMEM calls take all threads of the program, which Gluon's "
                        "partitions are not; use notify_warp and symm_at there")
    require_runtime(name, semantic)
    linked = libraries(semantic)
    stated = statement(linked.get(LIBRARY) or linked[RUNTIME])      # the device runtime says what it takes to have the library
    why = stated.why_not(function.symbol)
    if why is not None:
        raise NotImplementedError(f"{name} cannot be compiled by the {stated.backend} backend: {why}")


_DONE_BY = {"thread": " Done by one thread.", "warp": " Done by the first warp.", "block": " Done by all threads together."}


def docstring(function: Function) -> str:
    """What help() shows: the function's sentence, who does the work, its arguments and its result."""
    row, text = ROWS[function.symbol], function.doc
    text += _DONE_BY.get(row.caller, "")
    if function.params:
        text += "\n\nArgs:\n" + "\n".join(f"    {name}: {PARAMETERS[name][2]}." for name in function.params)
    if row.c_result:
        text += f"\n\nReturns:\n    {_RESULTS[row.c_result]}."
    return text


_RESULTS = {"int32": "int32", "int64": "int64", "pointer": "a pointer of the type of the one given"}


def _builtin(function: Function):
    """The Triton builtin of a function."""
    count = len(function.params) - len(function.defaults)
    signature = inspect.Signature([
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                          default=function.defaults[i - count] if i >= count else inspect.Parameter.empty)
        for i, name in enumerate(function.params)])

    def choose(*args, **kwargs):
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"libshmem_device.{function.name}{signature}: {error}") from None
        bound.apply_defaults()
        return function.symbol, arguments(function, bound.arguments)

    choose.__name__ = choose.__qualname__ = function.name
    choose.__module__, choose.__signature__ = __name__, signature
    choose.__doc__ = docstring(function)
    return primitive(choose, functools.partial(_require, function), "libshmem_device")


__all__ = list(shmem_constants.__all__) + list(FUNCTIONS)
globals().update((name, _builtin(function)) for name, function in FUNCTIONS.items())
_remote_ptr, _remote_mc_ptr = remote_ptr, remote_mc_ptr     # noqa: F405 - made by the line above


@helper
def remote_ptr(local_ptr, pe):
    return _remote_ptr(local_ptr, pe).to(local_ptr.dtype)


@helper
def remote_mc_ptr(team, ptr):
    return _remote_mc_ptr(team, ptr).to(ptr.dtype)


remote_ptr.fn.__doc__, remote_mc_ptr.fn.__doc__ = _remote_ptr.__doc__, _remote_mc_ptr.__doc__

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

from triton_dist.language import threads_abi
from triton_dist.language._call import LIBRARY as RUNTIME, helper, primitive, require_runtime
from triton_dist.language._linked import libraries, statement
from triton_dist.language._shmem_check import arguments
from triton_dist.language.abi import ROWS
from triton_dist.language.extra import shmem_constants
from triton_dist.language.extra.shmem_constants import *  # noqa: F403 - the published constants
from triton_dist.language.kernels_of_threads import MARK
from triton_dist.language.shmem_abi import EACH, EACH_MAY, FUNCTIONS, LIBRARY, PARAMETERS, Function
from triton_dist.language.threads import syncthreads, tid


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


_DONE_BY = {"thread": " Done by one thread.", "warp": " Done by the first warp.", "block": " Done by all threads together.",
            "each": " Done by each thread that calls it."}


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
        return arguments(function, bound.arguments)

    choose.__name__ = choose.__qualname__ = function.name
    choose.__module__, choose.__signature__ = __name__, signature
    choose.__doc__ = docstring(function)
    made = primitive(choose, functools.partial(_require, function), "libshmem_device", _variant)
    if ROWS[function.symbol].caller == "each":
        setattr(made, MARK, True)
    return made


def _variant(symbol: str, semantic) -> str:
    """In kernels of threads what one thread or warp does is done by each that calls."""
    each = ROWS[symbol].caller in EACH_MAY and threads_abi.LIBRARY in libraries(semantic)
    return symbol + EACH if each else symbol


__all__ = list(shmem_constants.__all__) + list(FUNCTIONS)
globals().update((name, _builtin(function)) for name, function in FUNCTIONS.items())
_remote_ptr, _remote_mc_ptr, _g = remote_ptr, remote_mc_ptr, g     # noqa: F405 - made by the line above


@helper
def remote_ptr(local_ptr, pe):
    return _remote_ptr(local_ptr, pe).to(local_ptr.dtype)


@helper
def remote_mc_ptr(team, ptr):
    return _remote_mc_ptr(team, ptr).to(ptr.dtype)


@helper
def g(source, pe):
    return _g(source, pe).to(source.dtype.element_ty, bitcast=True)


@helper
def set_lock(lock):
    """Takes a lock: returns once no other PE holds it. By the program; its first thread spins.

    Args:
        lock: pointer to an int64 in the symmetric heap that was 0 before its first use. PE 0 keeps it for all.
    """
    syncthreads()
    if tid(0) == 0:
        while atomic_compare_swap(lock, 0, my_pe() + 1, 0) != 0:     # noqa: F405
            pass
    syncthreads()


@helper
def clear_lock(lock):
    """Gives a lock back, after all that this program has sent."""
    syncthreads()
    if tid(0) == 0:
        quiet()                                                      # noqa: F405
        atomic_set(lock, 0, 0)                                       # noqa: F405
        quiet()                                                      # noqa: F405
    syncthreads()


remote_ptr.fn.__doc__, remote_mc_ptr.fn.__doc__, g.fn.__doc__ = (made.__doc__ for made in (_remote_ptr, _remote_mc_ptr, _g))

# The published names of one type: those of the pointer's width are the same function.
for _ty in ("int", "uint", "long", "ulong", "longlong", "ulonglong", "int32", "uint32", "int64", "uint64", "size", "ptrdiff"):
    globals().update({f"{_ty}_{_name}": globals()[_name] for _name in (
        "p", "g", "wait_until", "test", "iput", "iget", *(name for name in FUNCTIONS if name.startswith("atomic_")))
        if f"{_ty}_{_name}" not in FUNCTIONS})
for _ty in ("float", "double", "half", "bfloat16", "int32", "int64", "int", "long"):
    globals().update({f"{_ty}_{_name}": globals()[_name] for _name in FUNCTIONS if "_reduce" in _name})
__all__ += ["clear_lock", "set_lock"]

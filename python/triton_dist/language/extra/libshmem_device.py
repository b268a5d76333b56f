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

All functions run in the emulator. On NVIDIA GPUs they need TRITON_DIST_HEAP=nvshmem, on AMD GPUs TRITON_DIST_HEAP=rocshmem;
docs/shmem.md has the table. What a backend lacks is refused when the kernel is compiled.
"""
import functools
import inspect
import sys

from triton_dist.language._call import STAND_IN, helper, libraries, primitive, require_runtime
from triton_dist.language._shmem_check import arguments
from triton_dist.language.abi import ROWS
from triton_dist.language.shmem_abi import FUNCTIONS, LACKING, LIBRARY, PARAMETERS, Function

# -- constants ---------------------------------------------------------------------------------------------------------
NVSHMEM_CMP_EQ, NVSHMEM_CMP_NE, NVSHMEM_CMP_GT, NVSHMEM_CMP_LE, NVSHMEM_CMP_LT, NVSHMEM_CMP_GE = range(6)
NVSHMEM_CMP_SENTINEL = sys.maxsize
NVSHMEMI_AMO_ACK, NVSHMEMI_AMO_INC, NVSHMEMI_AMO_SET, NVSHMEMI_AMO_ADD = 1, 2, 3, 4
NVSHMEMI_AMO_AND, NVSHMEMI_AMO_OR, NVSHMEMI_AMO_XOR, NVSHMEMI_AMO_SIGNAL = 5, 6, 7, 8
NVSHMEM_SIGNAL_SET = NVSHMEMI_AMO_SIGNAL_SET = 9
NVSHMEM_SIGNAL_ADD = NVSHMEMI_AMO_SIGNAL_ADD = 10
NVSHMEMI_AMO_END_OF_NONFETCH, NVSHMEMI_AMO_FETCH, NVSHMEMI_AMO_FETCH_INC, NVSHMEMI_AMO_FETCH_ADD = 11, 12, 13, 14
NVSHMEMI_AMO_FETCH_AND, NVSHMEMI_AMO_FETCH_OR, NVSHMEMI_AMO_FETCH_XOR = 15, 16, 17
NVSHMEMI_AMO_SWAP, NVSHMEMI_AMO_COMPARE_SWAP = 18, 19
NVSHMEMI_AMO_OP_SENTINEL = sys.maxsize
NVSHMEM_TEAM_INVALID = -1
NVSHMEM_TEAM_WORLD = NVSHMEM_TEAM_WORLD_INDEX = 0
NVSHMEM_TEAM_SHARED = NVSHMEM_TEAM_SHARED_INDEX = 1
NVSHMEMX_TEAM_NODE = NVSHMEM_TEAM_NODE_INDEX = 2
NVSHMEMX_TEAM_SAME_MYPE_NODE = NVSHMEM_TEAM_SAME_MYPE_NODE_INDEX = 3
NVSHMEMI_TEAM_SAME_GPU = NVSHMEM_TEAM_SAME_GPU_INDEX = 4
NVSHMEMI_TEAM_GPU_LEADERS = NVSHMEM_TEAM_GPU_LEADERS_INDEX = 5
NVSHMEM_TEAMS_MIN = 6
NVSHMEM_TEAM_INDEX_MAX = sys.maxsize
# rocSHMEM's and MoRI's words. As signal operation every library's numbers mean set and add; comparisons are NVSHMEM's.
ROCSHMEM_CMP_EQ, ROCSHMEM_CMP_NE, ROCSHMEM_CMP_GT, ROCSHMEM_CMP_GE, ROCSHMEM_CMP_LT, ROCSHMEM_CMP_LE = range(6)
ROCSHMEM_SIGNAL_SET, ROCSHMEM_SIGNAL_ADD = 0, 1
MORI_CMP_EQ, MORI_CMP_NE, MORI_CMP_GT, MORI_CMP_LE, MORI_CMP_LT, MORI_CMP_GE = range(6)
MORI_CMP_SENTINEL = sys.maxsize
MORI_AMO_ACK, MORI_AMO_INC, MORI_AMO_SET, MORI_AMO_ADD, MORI_AMO_AND, MORI_AMO_OR, MORI_AMO_XOR = range(1, 8)
MORI_AMO_SIGNAL = 8
MORI_SIGNAL_SET = MORI_AMO_SIGNAL_SET = 9
MORI_SIGNAL_ADD = MORI_AMO_SIGNAL_ADD = 10
MORI_AMO_END_OF_NONFETCH, MORI_AMO_FETCH, MORI_AMO_FETCH_INC, MORI_AMO_FETCH_ADD, MORI_AMO_FETCH_AND = range(13, 18)
MORI_AMO_FETCH_OR, MORI_AMO_FETCH_XOR, MORI_AMO_SWAP, MORI_AMO_COMPARE_SWAP = range(18, 22)
MORI_AMO_OP_SENTINEL = sys.maxsize

_ROCSHMEM_LACKS = "rocSHMEM's device bitcode has no such function of the same arguments"
_NO_ROCSHMEM = "it takes rocSHMEM, which this process does not use: set TRITON_DIST_HEAP=rocshmem"
_NVSHMEM_LACKS = "NVSHMEM's device library has no such function"
_TOO_OLD = "this NVSHMEM's code of it needs multicast instructions, which the GPU has not (sm_90 is the first that has)"


# -- functions ---------------------------------------------------------------------------------------------------------
def lacks(function: Function, backend: str, library: str | None) -> str | None:
    """Why `backend` ("nvidia", "amd" or "emulator") cannot compile a call of `function`; None where it can.

    `library`: path of the SHMEM library that the process links, "" for one that has all rows, None for none."""
    row = ROWS[function.symbol]
    if backend == "emulator":
        return None
    if backend == "amd":
        if not row.rocshmem:
            return _ROCSHMEM_LACKS
        return _NO_ROCSHMEM if library is None else None
    if not row.nvshmem:
        return _NVSHMEM_LACKS
    if library is None:
        return "it takes NVSHMEM, which this process does not use: set TRITON_DIST_HEAP=nvshmem"
    return _TOO_OLD if function.symbol in _lacking(library) else None


@functools.lru_cache
def _lacking(library: str) -> tuple:
    """The symbols that a library says it has not."""
    if not library:
        return ()
    with open(library) as file:
        line = file.readline()
    return tuple(line.split()[2:]) if line.startswith(LACKING) else ()


def _require(function: Function, name: str, semantic) -> None:
    if type(semantic).__name__ == "GluonSemantic":
        raise TypeError(f"{name} in a Gluon kernel: SHMEM calls take all threads of the program, which Gluon's "
                        "partitions are not; use notify_warp and symm_at there")
    require_runtime(name, semantic)
    linked = libraries(semantic)
    vendor = "amd" if getattr(semantic.builder.options, "backend_name", "") == "hip" else "nvidia"
    backend = "emulator" if linked.get(LIBRARY) == STAND_IN else vendor
    why = lacks(function, backend, linked.get(LIBRARY))
    if why is not None:
        raise NotImplementedError(f"{name} cannot be compiled by the {backend} backend: {why}")


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


__all__ = [name for name in list(globals()) if name.startswith(("NVSHMEM", "ROCSHMEM", "MORI"))] + list(FUNCTIONS)
globals().update((name, _builtin(function)) for name, function in FUNCTIONS.items())
_remote_ptr, _remote_mc_ptr = remote_ptr, remote_mc_ptr     # noqa: F821 - made by the line above


@helper
def remote_ptr(local_ptr, pe):
    return _remote_ptr(local_ptr, pe).to(local_ptr.dtype)


@helper
def remote_mc_ptr(team, ptr):
    return _remote_mc_ptr(team, ptr).to(ptr.dtype)


remote_ptr.fn.__doc__, remote_mc_ptr.fn.__doc__ = _remote_ptr.__doc__, _remote_mc_ptr.__doc__

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Stand-ins for packages that published scripts import: cuda-python, nvshmem4py, and modules of the published Triton.

The last are made on every machine, the first two for emulated ranks. They hold the names that scripts use, no more.
"""
import enum
import importlib.util
import sys
import types
from typing import Any

import torch

import triton_dist
from triton_dist.dropin import host, stream_calls
from triton_dist.language.extra import language_extra, libshmem_device
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state


def module(name: str, **names: Any) -> types.ModuleType:
    """A module of these names in sys.modules, as an attribute of its parent."""
    made = types.ModuleType(name, f"triton_dist's stand-in for {name}.")
    made.__dict__.update(names)
    made.__path__ = []                                       # type: ignore[attr-defined]  # it may have submodules
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, made)
    return made


# -- the published Triton ----------------------------------------------------------------------------------------------
def of_triton() -> None:
    """triton.language.extra.cuda.language_extra and the like, beside what stock Triton has."""
    import triton.language.extra.cuda as cuda
    import triton.language.extra.hip as hip
    extra = {name: getattr(language_extra, name) for name in language_extra.__all__}
    shmem = {name: value for name, value in vars(libshmem_device).items() if not name.startswith("__")}
    for parent in (cuda, hip):
        module(f"{parent.__name__}.language_extra", **extra)
        for name in ("libnvshmem_device", "librocshmem_device", "libmori_shmem_device"):
            module(f"{parent.__name__}.{name}", **shmem)
    module("triton.language.extra.language_extra", **extra)
    module("triton.language.extra.libshmem_device", **shmem)


# -- cuda-python -------------------------------------------------------------------------------------------------------
class _Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    cudaSuccess = 0


class _Flags(enum.IntEnum):
    CU_STREAM_WRITE_VALUE_DEFAULT = 0
    CU_STREAM_WAIT_VALUE_GEQ = 0
    CU_STREAM_WAIT_VALUE_EQ = 1


class _Kind(enum.IntEnum):
    cudaMemcpyHostToHost = 0
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3
    cudaMemcpyDefault = 4


def _stream(number: Any) -> Any:
    from triton_dist.dropin.cuda_device import stream_of
    return stream_of(number)


def _write(bits: int) -> Any:
    def write(stream: Any, address: int, value: int, flags: Any = 0) -> tuple:
        stream_calls.write_value(_stream(stream), int(address), int(value), bits)
        return (_Result.CUDA_SUCCESS,)
    return write


def _wait(bits: int) -> Any:
    def wait(stream: Any, address: int, value: int, flags: Any = 0) -> tuple:
        stream_calls.wait_value(_stream(stream), int(address), int(value), bits, at_least=int(flags) == 0)
        return (_Result.CUDA_SUCCESS,)
    return wait


def _memcpy(dst: int, src: int, nbytes: int, kind: Any = None, stream: Any = 0) -> tuple:
    stream_calls.memcpy(int(dst), int(src), int(nbytes), _stream(stream))
    return (_Result.cudaSuccess,)


def _succeed(*_: Any, **__: Any) -> tuple:
    return (_Result.cudaSuccess,)


def of_cuda_python() -> None:
    """cuda.cuda, cuda.cudart, cuda.bindings.driver and cuda.bindings.runtime."""
    driver = {"CUresult": _Result, "CUstreamWriteValue_flags": _Flags, "CUstreamWaitValue_flags": _Flags,
              "cuGetErrorName": lambda error: (_Result.CUDA_SUCCESS, str(error)), "cuInit": _succeed}
    for bits in (32, 64):
        driver[f"cuStreamWriteValue{bits}"], driver[f"cuStreamWaitValue{bits}"] = _write(bits), _wait(bits)
    runtime = {"cudaError_t": _Result, "cudaMemcpyKind": _Kind, "cudaMemcpyAsync": _memcpy, "cudaFree": _succeed,
               "cudaGetErrorString": lambda error: (_Result.cudaSuccess, str(error)),
               "cudaDeviceSynchronize": lambda: (torch.cuda.synchronize(), _succeed())[1],
               "cudaSetDevice": _succeed, "cudaProfilerStart": _succeed, "cudaProfilerStop": _succeed}
    module("cuda")
    module("cuda.cuda", **driver)
    module("cuda.cudart", **runtime)
    module("cuda.bindings")
    module("cuda.bindings.driver", **driver)
    module("cuda.bindings.runtime", **runtime)


def old_names_of_cuda_python() -> None:
    """cuda.cuda, cuda.cudart and cuda.nvrtc, which cuda-python 13 has under cuda.bindings alone."""
    if any(importlib.util.find_spec(name) is None for name in ("cuda", "cuda.bindings")):
        return
    for old, new in (("cuda", "driver"), ("cudart", "runtime"), ("nvrtc", "nvrtc")):
        if importlib.util.find_spec(f"cuda.{old}") is None:
            sys.modules[f"cuda.{old}"] = importlib.import_module(f"cuda.bindings.{new}")
            setattr(importlib.import_module("cuda"), old, sys.modules[f"cuda.{old}"])


# -- nvshmem4py --------------------------------------------------------------------------------------------------------
class Teams(enum.IntEnum):
    """nvshmem.core.Teams."""
    TEAM_WORLD = 0
    TEAM_SHARED = 1
    TEAM_NODE = 2
    TEAM_SAME_MYPE_NODE = 3


def _members(team: Any) -> int:
    world = resolve()
    return world.size if int(team) == Teams.TEAM_WORLD else world.ranks_per_node


def _place(team: Any) -> int:
    world = resolve()
    return world.rank if int(team) == Teams.TEAM_WORLD else world.local_rank


def _barrier(team: Any = Teams.TEAM_WORLD, stream: Any = None) -> None:
    host.nvshmem_barrier_all_on_stream(None if stream is None else _stream(getattr(stream, "pt_stream", stream)))


def _tensor(shape: Any, dtype: torch.dtype = torch.float32, **_: Any) -> torch.Tensor:
    return host.nvshmem_create_tensor(shape, dtype)


def leave() -> None:
    """nvshmem.core.finalize: the world is left when the process group is destroyed, which scripts do next."""


def of_nvshmem() -> None:
    """nvshmem.core and nvshmem.bindings, over our heap."""
    me = {"my_pe": lambda: resolve().rank, "n_pes": lambda: resolve().size, "team_my_pe": _place, "team_n_pes": _members}
    module("nvshmem")
    module("nvshmem.core", Teams=Teams, tensor=_tensor, free_tensor=host.nvshmem_free_tensor_sync, barrier=_barrier,
           get_peer_tensor=lambda tensor, peer: tensor if peer == resolve().rank else triton_dist.peer_tensor(tensor, peer),
           get_unique_id=lambda empty=False: b"", init=lambda *_, **__: triton_dist.initialize_distributed() and None,
           finalize=leave, **me)
    module("nvshmem.bindings")
    module("nvshmem.bindings.nvshmem", barrier_all=_barrier, barrier_all_on_stream=lambda stream: _barrier(0, stream), **me)


def keeping_our_heap() -> None:
    """On GPUs: scripts that call nvshmem.core.finalize leave the heap, which lies in NVSHMEM's memory, to us."""
    try:
        import nvshmem.core as core
    except Exception:                                        # no package, or one that finds no driver
        return
    finalize = core.finalize

    def finalize_for_us(*args: Any, **kwargs: Any) -> None:
        if str(sys._getframe(1).f_globals.get("__name__")).startswith("triton_dist.backends."):
            finalize(*args, **kwargs)
    core.finalize = finalize_for_us


# -- torch.distributed -------------------------------------------------------------------------------------------------
def leaving_with_the_process_group() -> None:
    """Makes destroy_process_group leave our world first, as scripts end by it."""
    import torch.distributed as dist
    destroy = dist.destroy_process_group

    def destroy_process_group(group: Any = None) -> None:
        if group is None and state().world is not None:
            triton_dist.finalize_distributed()
        if dist.is_initialized():
            destroy(group)
    dist.destroy_process_group = destroy_process_group

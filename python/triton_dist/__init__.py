# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""triton_dist: overlap kernels on stock Triton, for NVIDIA, AMD and a CPU emulator.

    import triton_dist
    import triton_dist.language as dl          # device primitives: wait, notify, symm_at, ...
    from triton_dist.ops import ag_gemm, gemm_rs
    from triton_dist.layers import AGGemm, GemmRS

`triton-dist doctor` says what works on this machine.
"""
import importlib as _importlib
from types import ModuleType as _ModuleType

from triton_dist.runtime.versions import check as _check_versions

_check_versions()              # first: under a Triton that is too old the rest would fail with an error that says nothing

from triton_dist.runtime.entry import entry as _entry
from triton_dist.runtime.errors import (CollectiveMismatch, DeviceFault, HangError, InvalidArgument, NotInitialized, NotSymmetric,
                                        OutOfHeap, TritonDistError, UnsupportedFeature, WaitTimeout, WorkspacePoisoned)
from triton_dist.runtime.graphs import prepare_graphs
from triton_dist.runtime.heap import create_symm_tensor, free_symm_tensor, peer_tensor
from triton_dist.runtime.jit import gluon_jit, jit
from triton_dist.runtime.memory_summary import memory_summary
from triton_dist.runtime.shmem_teams import shmem_team
from triton_dist.runtime.streams import current_stream, device, new_stream, synchronize, use_stream
from triton_dist.runtime.tensor_checks import check_tensors_gpu_ready
from triton_dist.runtime.triton_driver import offer as _offer_driver
from triton_dist.runtime.warm_up import warm_up
from triton_dist.runtime.workspace import reset
from triton_dist.runtime.world import finalize_distributed, initialize_distributed

__version__ = "0.1.0"

__all__ = [
    "CollectiveMismatch", "DeviceFault", "HangError", "InvalidArgument", "NotInitialized", "NotSymmetric", "OutOfHeap",
    "TritonDistError", "UnsupportedFeature", "WaitTimeout", "WorkspacePoisoned", "check_tensors_gpu_ready",
    "create_symm_tensor", "current_stream", "device", "finalize_distributed", "free_symm_tensor", "gluon_jit",
    "initialize_distributed", "jit", "memory_summary", "new_stream", "peer_tensor", "prepare_graphs", "reset", "shmem_team",
    "synchronize", "use_stream", "warm_up",
]

for _function in (create_symm_tensor, finalize_distributed, free_symm_tensor, initialize_distributed, memory_summary,
                  peer_tensor, reset, shmem_team, synchronize):
    _entry(_function)

_offer_driver()

_ON_DEMAND = frozenset({"aot", "checker", "doctor", "dropin", "integrations", "kernels", "language", "layers", "nv_utils", "ops",
                        "profiler_utils", "testing", "tools", "trace", "tune", "utils"})


def __getattr__(name: str) -> _ModuleType:
    """Imports a module of the package at its first use, as in `triton_dist.ops.all_reduce`."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _importlib.import_module(f"{__name__}.{name}")

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The NVIDIA backend."""
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable

import torch

from triton_dist.backends.gpu.backend import GpuBackend
from triton_dist.backends.gpu.variants import no_launcher
from triton_dist.backends.nvidia.driver import CudaDriver
from triton_dist.backends.nvidia.launch import BoundLaunch, Parameters
from triton_dist.backends.nvidia.nvshmem import NvshmemModules, reserve
from triton_dist.backends.nvidia.options import options
from triton_dist.language.shmem_abi import LIBRARY as SHMEM_LIBRARY
from triton_dist.runtime.capabilities import GemmConfig, MachineModel
from triton_dist.runtime.device import Arena
from triton_dist.runtime.errors import UnsupportedFeature

# Fitted to benchmarks/results of 2 and 4 x H100 80GB SXM, NVLink without multicast.
H100 = MachineModel(sms=132, gemm_tflops=700.0, core_ratio=0.97, portable_ratio=0.77, link_gbs=370.0, collective_gbs=295.0,
                    collective_us=38.0, launch_us=35.0, fused_us=85.0, signal_us=3.0, fuse_gather_bytes=6_000_000,
                    fuse_scatter_bytes=4_000_000, memory_gbs=3000.0, kernel_us=5.0, hop_us=1.0)
H200 = replace(H100, memory_gbs=4300.0)

_FEW_ROWS_BYTES = 200 << 10         # of shared memory for weights on their way; an SM has 227 KB

_MACHINES = {"NVIDIA H100 80GB HBM3": H100, "NVIDIA H200": H200}
_HOPPER_SXM = set(_MACHINES)        # the same multiprocessors and links


class NvidiaBackend(GpuBackend):
    """NVIDIA GPUs from sm_80 on, symmetric memory through torch or NVSHMEM."""

    name = "nvidia"
    heap_providers = ("p2p", "nvshmem")

    def __init__(self):
        super().__init__(CudaDriver())
        self._cores: dict | None = None
        self._captures_pushes: bool | None = None           # None: it has not been tried
        self._shmem = NvshmemModules()

    def _arena(self, provider: str, nbytes: int, world: Any) -> Arena:
        if provider == "p2p":
            self._extern_libs.pop(SHMEM_LIBRARY, None)
            return super()._arena(provider, nbytes, world)
        arena, self._extern_libs[SHMEM_LIBRARY] = reserve(nbytes, torch.cuda.current_device(), world, self._shmem)
        return arena

    def no_shmem(self) -> str | None:
        return None if SHMEM_LIBRARY in self._extern_libs else "SHMEM calls need TRITON_DIST_HEAP=nvshmem"

    def _binder(self, compiled: Any, positions: tuple) -> Callable:
        try:
            return partial(BoundLaunch, Parameters(self.driver, compiled, positions))
        except UnsupportedFeature:               # Triton's own launcher serves it
            return no_launcher

    def captures_pushes(self) -> bool:
        if self._captures_pushes is None and not self.is_capturing():
            word = torch.zeros(1, dtype=torch.int32, device=self.device())
            self._captures_pushes = self.has_stream_memory_ops() and self.driver.can_capture_flags(
                word.data_ptr(), torch.cuda.Stream().cuda_stream)
        return self._captures_pushes is not False

    def core(self, op: str) -> Any:
        if self._cores is None:
            self._cores = {}
            if self._capability == (9, 0):
                from triton_dist.cores.hopper.cores import cores, hopper_tiles
                self._cores = cores(hopper_tiles, preferred=True)
        return self._cores.get(op)

    def machine_model(self) -> MachineModel | None:
        return _MACHINES.get(self.device_name())            # others of sm_90 have other rates, or have not been measured

    def alike(self, device: str) -> bool:
        return super().alike(device) or {device, self.device_name()} <= _HOPPER_SXM

    def tables(self) -> list[Path]:
        return sorted(Path(__file__).parent.glob("tuned_*.json"))

    def gemm_config(self, dtype: Any, m: int) -> GemmConfig:
        if dtype.itemsize > 2:
            return GemmConfig(64 if m <= 64 else 128, 128, 32, group_m=8, num_warps=4 if m <= 64 else 8, num_stages=3)
        if m <= 64:
            return GemmConfig(64, 128, 64, group_m=8, num_warps=4, num_stages=4)
        # 144 KB of shared memory; sm_86 and sm_89 have 100.
        wide = self._capability not in ((8, 6), (8, 9))
        return GemmConfig(128, 256 if wide else 128, 64, group_m=8, num_warps=8, num_stages=3)

    def _possible(self, kwargs: dict) -> dict:
        return options(super()._possible(kwargs))

    def launches_overlap(self) -> bool:
        return self._capability >= (9, 0)

    def copies_boxes(self) -> bool:
        return self._capability >= (9, 0)

    def few_rows_config(self, dtype: Any, m: int) -> GemmConfig:
        usual = super().few_rows_config(dtype, m)
        if self._capability not in ((9, 0), (10, 0)):
            return usual
        wide = 2 * usual.block_k if usual.block_m < 64 else usual.block_k
        stage = (usual.block_m + usual.block_n) * wide * dtype.itemsize
        return usual._replace(block_k=wide, num_warps=8, num_stages=_FEW_ROWS_BYTES // stage)

    def weights_config(self, dtype: Any, m: int, n: int) -> GemmConfig:
        usual = super().few_rows_config(dtype, min(m, 64))
        if self._capability not in ((9, 0), (10, 0)) or dtype.itemsize != 2:
            return usual
        # Of more tiles than SMs two run on an SM. 64 rows take half of the time of a load of weights, which 128 rows share.
        if usual.block_m == 64 and n >= 96 * self.num_sms():
            return usual._replace(block_n=128, block_k=128, num_warps=8, num_stages=3)
        return usual._replace(block_n=64, block_k=128, num_warps=4, num_stages=6 if n <= 64 * self.num_sms() else 4)

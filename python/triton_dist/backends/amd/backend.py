# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The AMD backend. It shares all but the driver with NVIDIA's; kernels are compile-tested, nothing here has run on an
AMD machine yet."""
import functools
from typing import Any

from triton_dist.backends.amd import machines
from triton_dist.backends.amd.driver import HipDriver
from triton_dist.backends.amd.ipc import IpcArena
from triton_dist.backends.amd.rocshmem import RocshmemArena, join
from triton_dist.backends.gpu.backend import GpuBackend
from triton_dist.backends.gpu.p2p import device_tensor
from triton_dist.runtime.capabilities import GemmConfig, MachineModel
from triton_dist.runtime.device import Arena


class AmdBackend(GpuBackend):
    """AMD GPUs of gfx90a, gfx942 and gfx950, symmetric memory through torch, HIP IPC or rocSHMEM."""

    name = "amd"
    warp_size = 64
    heap_providers = ("p2p", "ipc", "rocshmem")

    def __init__(self):
        super().__init__(HipDriver())

    def _arena(self, provider: str, nbytes: int, world: Any) -> Arena:
        if provider == "p2p":
            return super()._arena(provider, nbytes, world)
        tensor = functools.partial(device_tensor, device=self.device())
        if provider == "ipc":
            return IpcArena(self.driver, nbytes, world, tensor)
        return RocshmemArena(join(world), nbytes, world, tensor)

    def no_shmem(self) -> str | None:
        return "kernels cannot call rocSHMEM yet"

    def gemm_config(self, dtype: Any, m: int) -> GemmConfig:
        return machines.gemm_config(dtype, m)

    def gemm_configs(self, dtype: Any, m: int) -> list[GemmConfig]:
        return machines.gemm_configs(dtype, m)

    def machine_model(self) -> MachineModel | None:
        return machines.MODELS.get(self.device_name())

    def _possible(self, kwargs: dict) -> dict:
        return machines.options(super()._possible(kwargs))

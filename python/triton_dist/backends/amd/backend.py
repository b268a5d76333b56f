# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The AMD backend. It shares all but the driver with NVIDIA's; kernels are compile-tested, nothing here has run on an
AMD machine yet."""
import functools
from typing import Any

import torch

from triton_dist.backends.amd import machines, rocshmem_library
from triton_dist.backends.amd.driver import HipDriver
from triton_dist.backends.amd.ipc import IpcArena
from triton_dist.backends.amd.rocshmem import Rocshmem, RocshmemArena, RocshmemModules, join
from triton_dist.backends.gpu.backend import GpuBackend
from triton_dist.backends.gpu.p2p import device_tensor
from triton_dist.language.shmem_abi import LIBRARY as SHMEM_LIBRARY
from triton_dist.runtime.capabilities import GemmConfig, MachineModel
from triton_dist.runtime.device import Arena
from triton_dist.runtime.errors import UnsupportedFeature


class AmdBackend(GpuBackend):
    """AMD GPUs of gfx90a, gfx942 and gfx950, symmetric memory through torch, HIP IPC or rocSHMEM."""

    name = "amd"
    warp_size = 64
    heap_providers = ("p2p", "ipc", "rocshmem")
    compiles_by_storage = True

    def __init__(self):
        super().__init__(HipDriver())
        self._shmem = RocshmemModules()
        self._no_shmem: str | None = "SHMEM calls need TRITON_DIST_HEAP=rocshmem"

    def _arena(self, provider: str, nbytes: int, world: Any) -> Arena:
        for key in (SHMEM_LIBRARY, rocshmem_library.BITCODE):
            self._extern_libs.pop(key, None)
        if provider == "p2p":
            return super()._arena(provider, nbytes, world)
        tensor = functools.partial(device_tensor, device=self.device())
        if provider == "ipc":
            return IpcArena(self.driver, nbytes, world, tensor)
        library = join(world, nbytes)
        arena = RocshmemArena(library, nbytes, world, tensor, parting=self._shmem.stop)
        self._link_shmem(library)
        return arena

    def _link_shmem(self, library: Rocshmem) -> None:
        """Kernels link rocSHMEM's device bitcode from now on, if it is there. Without it the heap works all the same."""
        architecture = torch.cuda.get_device_properties(self.device()).gcnArchName.split(":")[0]
        try:
            self._extern_libs.update(rocshmem_library.libraries(architecture))
        except UnsupportedFeature as error:
            self._no_shmem = str(error)
            return
        self._no_shmem = None
        self._shmem.start(functools.partial(self._tell, library), lambda module: None)

    def _tell(self, library: Rocshmem, module: int) -> None:
        """Gives a module its context. A stream of its own, since a kernel may be under way on the others."""
        stream = torch.cuda.Stream()
        library.module_init(module, stream.cuda_stream)
        stream.synchronize()

    def no_shmem(self) -> str | None:
        return self._no_shmem

    def gemm_config(self, dtype: Any, m: int) -> GemmConfig:
        return machines.gemm_config(dtype, m)

    def gemm_configs(self, dtype: Any, m: int) -> list[GemmConfig]:
        return machines.gemm_configs(dtype, m)

    def machine_model(self) -> MachineModel | None:
        return machines.MODELS.get(self.device_name())

    def _possible(self, kwargs: dict) -> dict:
        return machines.options(super()._possible(kwargs))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The AMD backend. It shares all but the driver with NVIDIA's; kernels are compile-tested, nothing here has run on an
AMD machine yet."""
from typing import Any

from triton_dist.backends.amd.driver import HipDriver
from triton_dist.backends.gpu.backend import GpuBackend
from triton_dist.runtime.capabilities import GemmConfig


class AmdBackend(GpuBackend):
    """AMD GPUs from gfx942 on, symmetric memory through torch."""

    name = "amd"
    warp_size = 64

    def __init__(self):
        super().__init__(HipDriver())

    def gemm_config(self, dtype: Any, m: int) -> GemmConfig:
        block_k = 32 if dtype.itemsize > 2 else 64       # 64 KB of LDS hold one stage of the large tile
        if m <= 64:
            return GemmConfig(64, 128, block_k, group_m=4, num_warps=4, num_stages=2)
        return GemmConfig(128, 128, block_k, group_m=4, num_warps=8, num_stages=2)

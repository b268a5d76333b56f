# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is known of AMD's GPUs without having one: rates that others have published, and tilings that compile well.

Nothing here was measured by this project. Sources of the rates: the ROCm documentation's table of GPU specifications, AMD's
blogs on maximum achievable FLOPS and on RCCL over XGMI (MI300X), the README of mori and the notes of Primus-Turbo (MI355X). Host
times are those of an H100's host, since there are no others. Links are those to one peer: there is no switch, so one peer gets a
seventh of what a GPU can send, and a ring uses one link at a time.
"""
from dataclasses import replace
from typing import Any

from triton_dist.runtime.capabilities import GemmConfig, MachineModel

MI300X = MachineModel(sms=304, gemm_tflops=708.0, core_ratio=0.85, portable_ratio=0.85, link_gbs=46.0, collective_gbs=310.0,
                      collective_us=15.0, launch_us=35.0, fused_us=85.0, signal_us=3.0, fuse_gather_bytes=6_000_000,
                      fuse_scatter_bytes=6_000_000, memory_gbs=4240.0, kernel_us=8.0, hop_us=2.0, switched=False, published=True)
MI325X = replace(MI300X, gemm_tflops=843.0, memory_gbs=4800.0)
MI355X = replace(MI300X, sms=256, gemm_tflops=1320.0, link_gbs=60.0, collective_gbs=400.0, memory_gbs=6400.0)

MODELS = {"AMD Instinct MI300X": MI300X, "AMD Instinct MI325X": MI325X, "AMD Instinct MI355X": MI355X}

# Of a kernel that multiplies. Tiles of 16 x 16 of the matrix cores: AMD measured them as faster at the power limit than the
# compiler's choice of 32 x 32, and on gfx950 a large tile spills without them.
GEMM_OPTIONS = {"matrix_instr_nonkdim": 16}


def gemm_config(dtype: Any, m: int) -> GemmConfig:
    """A tiling that fits 64 KB of LDS without spills on gfx90a, gfx942 and gfx950; waves have 64 threads."""
    block_k = 32 if dtype.itemsize > 2 else 64
    if m <= 64:
        return GemmConfig(64, 128, block_k, group_m=4, num_warps=4, num_stages=2)
    return GemmConfig(128, 128, block_k, group_m=4, num_warps=8, num_stages=2)


def gemm_configs(dtype: Any, m: int) -> list[GemmConfig]:
    """Tilings for measuring to choose from, `gemm_config` first."""
    usual = gemm_config(dtype, m)
    found = [usual, usual._replace(block_n=usual.block_n // 2), usual._replace(group_m=8)]
    if m > 64 and dtype.itemsize <= 2:
        found.append(usual._replace(num_stages=3))          # one tile more under way; all 64 KB of LDS on gfx90a and gfx942
    if m > 128 and dtype.itemsize <= 2:
        found.append(usual._replace(block_m=256))           # 256 x 256 spills in gemm_rs
    return found


def options(kwargs: dict) -> dict:
    """Launch options of a kernel with these constexprs: a GEMM's also say which matrix instruction to take.

    A limit of registers is one for NVIDIA, which Triton refuses here.
    """
    found = {**GEMM_OPTIONS, **kwargs} if {"BLOCK_M", "BLOCK_N", "BLOCK_K"} <= kwargs.keys() else kwargs
    return {name: value for name, value in found.items() if name != "maxnreg"}

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The Hopper core as a capability: what it serves, its tiling, and the arguments of its kernels.

Ops ask the backend's registry for "ag_gemm" or "gemm_rs" and get one of these objects, or nothing.
"""
import functools
from typing import Any, Callable

import torch
import triton.experimental.gluon.language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_dist.backends.nvidia.ag_gemm_ws import ag_gemm_ws_kernel
from triton_dist.backends.nvidia.gemm_rs_ws import gemm_rs_ws_kernel
from triton_dist.runtime.backend import GemmConfig
from triton_dist.runtime.groups import Group
from triton_dist.runtime.heap import peer_tensor
from triton_dist.runtime.workspace import Workspace, team

_TYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32}


@functools.cache
def _layout(dtype: torch.dtype, *block: int) -> Any:
    return gl.NVMMASharedLayout.get_default_for(list(block), _TYPES[dtype])


def _descriptor(t: torch.Tensor, *block: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(t, list(block), _layout(t.dtype, *block))


def _tma_can_read(*tensors: torch.Tensor) -> bool:
    """TMA wants a 16-byte aligned base, row strides of whole 16 bytes, and at least one element."""
    return all(t.numel() > 0 and t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 for t in tensors)


class _Core:
    """`tiles(dtype, m)` gives the tiling for chunks of m rows; `preferred` says whether `auto` takes the core."""

    def __init__(self, tiles: Callable[[torch.dtype, int], GemmConfig], preferred: bool):
        self.tiles, self.preferred = tiles, preferred

    def options(self, config: GemmConfig, bias: torch.Tensor | None) -> dict:
        return dict(HAS_BIAS=bias is not None, STAGES=config.num_stages, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
                    BLOCK_K=config.block_k, GROUP_M=config.group_m, num_warps=config.num_warps)


class AgGemmCore(_Core):
    """AG-GEMM. Ranks on which `accepts` is false run the portable kernel in the same call."""

    def serves(self, dtype: torch.dtype, k: int) -> bool:
        """Whether calls of this kind can use the core. Equal on all ranks."""
        return dtype.itemsize == 2 and k * dtype.itemsize % 16 == 0

    def config(self, dtype: torch.dtype, m: int) -> GemmConfig:
        """Tiling for shards of m rows. Equal on all ranks."""
        return self.tiles(dtype, m)

    def accepts(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether this rank's tensors can be read and written by TMA."""
        return _tma_can_read(x, weight, out)

    def launch(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, space: Workspace,
               group: Group, epoch: int, pitch: int, pieces: int, piece_tiles: int, config: GemmConfig) -> tuple:
        """(kernel, args, options) of one call."""
        m, k = x.shape
        n = weight.shape[0]
        bm, bn, bk = config.block_m, config.block_n, config.block_k
        gathered = space.view((space.epoch & 1, "gathered", group.size * pitch, k, x.dtype, bm, bk),
                              lambda: _descriptor(space.half(x.dtype)[:group.size * pitch * k].view(-1, k), bm, bk))
        args = (_descriptor(x, bm, bk), gathered, _descriptor(weight, bn, bk),
                _descriptor(out.view(group.size, m, n), 1, bm, bn), bias if bias is not None else weight, space.flags, epoch,
                group.rank, group.size, m, n, k, pieces, piece_tiles)
        return ag_gemm_ws_kernel, args, dict(self.options(config, bias), STAGING=_layout(out.dtype, bm, bn))


class GemmRsCore(_Core):
    """GEMM-RS. Ranks on which `accepts` is false run the portable kernel in the same call, with the same slots and flags."""

    def serves(self, dtype: torch.dtype, n: int) -> bool:
        """Whether calls of this kind can use the core. Equal on all ranks."""
        return dtype.itemsize == 2 and n * dtype.itemsize % 16 == 0

    def config(self, dtype: torch.dtype, m: int, hop_dtype: torch.dtype) -> GemmConfig:
        """Tiling for chunks of m rows. Equal on all ranks. fp32 staging leaves room for half the columns."""
        c = self.tiles(dtype, m)
        columns = c.block_n // 2 if hop_dtype == torch.float32 else c.block_n
        return GemmConfig(c.block_m, columns, c.block_k, c.group_m, c.num_warps, c.num_stages)

    def accepts(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether this rank's tensors can be read and written by TMA."""
        return _tma_can_read(x, weight, out)

    def launch(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, space: Workspace,
               group: Group, pitch: int, hop_dtype: torch.dtype, config: GemmConfig) -> tuple:
        """(kernel, args, options) of one call."""
        m, n = out.shape
        bm, bn, bk = config.block_m, config.block_n, config.block_k
        rows = max(1, group.size - 1) * pitch

        def slots() -> list:
            successor = group.world_ranks[(group.rank + 1) % group.size]
            halves = [half.view(hop_dtype)[:rows * n].view(rows, n) for half in space.halves()]
            return [_descriptor(t, bm, bn) for t in halves + [peer_tensor(half, successor) for half in halves]]

        args = (_descriptor(x, bm, bk), _descriptor(weight, bn, bk), _descriptor(out, bm, bn),
                *space.view(("slots", rows, n, hop_dtype, bm, bn), slots), bias if bias is not None else weight, space.flags,
                space.control, team(group), m, n, x.shape[1])
        return gemm_rs_ws_kernel, args, self.options(config, bias)


def cores(tiles: Callable[[torch.dtype, int], GemmConfig], preferred: bool) -> dict:
    """The registry's entries, by op."""
    return {"ag_gemm": AgGemmCore(tiles, preferred), "gemm_rs": GemmRsCore(tiles, preferred)}


def hopper_tiles(dtype: torch.dtype, m: int) -> GemmConfig:
    """128 x 256 x 64, three stages and 64 KB of staging fill the shared memory of an SM."""
    return GemmConfig(128, 256, 64, group_m=8, num_warps=8, num_stages=3)

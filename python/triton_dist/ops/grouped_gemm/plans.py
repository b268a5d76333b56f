# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The plans of grouped_gemm: one launch of the portable kernel, or of the device's core."""
from typing import Any, Callable

import torch

from triton_dist.ops.calls import checks
from triton_dist.ops.calls.plans import Plan, present
from triton_dist.ops.calls.possible import precision
from triton_dist.ops.exchange.sizes import power_of_two
from triton_dist.ops.grouped_gemm.kernels import grouped_gemm_kernel
from triton_dist.runtime.backend import backend
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.groups import Group


def flat_rows(t: torch.Tensor) -> torch.Tensor:
    """[rows, columns] of rows by expert, "masked" or not, each of them contiguous. Copies where it must."""
    return checks.rows_contiguous(t if t.ndim == 2 else t.flatten(0, 1))


def lists(offsets: torch.Tensor | None, counts: torch.Tensor | None) -> tuple:
    """begins and counts of a kernel: where there is only one of them, it is both."""
    return (counts if offsets is None else offsets), (offsets if counts is None else counts)


def options_of(x: torch.Tensor, counts: torch.Tensor | None, experts: int) -> dict:
    """What all kernels are told of the experts' rows."""
    return dict(EXPERTS=power_of_two(experts), MASKED=x.ndim == 3, COUNTED=counts is not None)


def launch_options(dtype: torch.dtype, config: GemmConfig) -> dict:
    """How the portable kernels are launched."""
    return dict(PRECISION=precision(dtype), num_warps=config.num_warps, num_stages=config.num_stages)


class _OneLaunch(Plan):
    """One launch, of a call's tensors in the order of the op.

    parts: entries of offsets and counts that each expert has, after each other. spared: SMs that are left to other kernels.
    """

    compiles = True
    launch: Callable[..., None]

    def __init__(self, config: GemmConfig, parts: int = 1, spared: int = 0):
        self.config, self.parts, self.spared = config, parts, spared

    def programs(self) -> int:
        """The most that run at a time."""
        return max(1, backend().num_sms() - self.spared)

    def args(self, x, weight, offsets, counts, sources, row_weights, out) -> tuple:
        """What `launch` takes. None stands for what there is not."""
        raise NotImplementedError

    def run(self, group: Group, *tensors: Any) -> None:
        self.launch(*self.args(*tensors))


class Portable(_OneLaunch):
    """The Triton kernel that runs on every device. It gathers rows itself."""

    def compile(self, x, weight, offsets, counts, sources, row_weights, out):
        experts, n_all, k = weight.shape
        n, c, room = out.shape[-1], self.config, x.shape[1] if x.ndim == 3 else out.shape[0]
        gated = n != n_all
        block_n = max(16, c.block_n // 2) if gated else c.block_n
        experts *= self.parts
        tiles = (-(-out.shape[:-1].numel() // c.block_m) + experts) * -(-n // block_n)
        varying, args = present(*self.args(x, weight, offsets, counts, sources, row_weights, out))
        fixed = n, k, args[0].stride(0), *weight.stride(), experts, room
        self.launch = backend().prepare(
            grouped_gemm_kernel, (min(self.programs(), tiles), ), (*args, *fixed),
            dict(SILU=gated, GATHER=sources is not None, WEIGHTED=row_weights is not None, EVEN_K=k % c.block_k == 0,
                 BLOCK_M=c.block_m, BLOCK_N=block_n, BLOCK_K=c.block_k, PARTS=self.parts, **launch_options(x.dtype, c),
                 **options_of(x, counts, experts)), varying)

    def args(self, x, weight, offsets, counts, sources, row_weights, out):
        return flat_rows(x), weight, *lists(offsets, counts), sources, row_weights, out


class ByCore(_OneLaunch):
    """The device's own core."""

    def compile(self, x, weight, offsets, counts, sources, row_weights, out):
        room, gated = x.shape[1] if x.ndim == 3 else out.shape[0], out.shape[-1] != weight.shape[1]
        args = self.args(x, weight, offsets, counts, sources, row_weights, out.view(-1, out.shape[-1]))
        self.launch = backend().core("grouped_gemm").prepare(
            self.config, args, room, gated, self.programs(), PARTS=self.parts, WEIGHTED=row_weights is not None,
            **options_of(x, counts, weight.shape[0] * self.parts))

    def args(self, x, weight, offsets, counts, sources, row_weights, out):
        return flat_rows(x), weight, *lists(offsets, counts), row_weights, out, sources

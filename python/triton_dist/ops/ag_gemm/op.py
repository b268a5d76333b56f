# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ag_gemm: plan and dispatch."""
from typing import Any

import torch

from triton_dist.ops import _check, _plan
from triton_dist.ops.ag_gemm.kernels import ag_gemm_kernel
from triton_dist.ops.ag_gemm.reference import ag_gemm_reference
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.heap import peer_tensor
from triton_dist.runtime.workspace import Workspace, side_stream, workspace

# A copy of this many bytes runs at the link's full rate; a shard is pushed in pieces no smaller.
_PIECE_BYTES = 8 << 20
_MAX_PIECES = 4


def ag_gemm(x: torch.Tensor, weight: torch.Tensor, *, group: Any = None, bias: torch.Tensor | None = None,
            out: torch.Tensor | None = None, return_gathered: bool = False, method: str = "auto") -> Any:
    """all_gather(x) @ weight^T + bias, with the gather hidden behind the GEMM. Collective over `group`.

    Args:
        x: [M / W, K] fp16, bf16 or fp32 on `triton_dist.device()`: this rank's rows. Equal shape and dtype on all ranks.
        weight: [N_local, K], same dtype: this rank's shard, as nn.Linear stores it. N_local may differ and may be 0.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        bias: [N_local] or None, same dtype, added in fp32 before rounding.
        out: [M, N_local] contiguous, or None to allocate.
        return_gathered: also return the gathered x [M, K], rows in group order.
        method: "auto", "ws" (fused, the device's warp-specialised core), "portable" (fused) or "unfused" (a collective,
            then a matmul). The same on all ranks.

    Returns out [M, N_local], rows in group order, or (out, gathered).
    Sums accumulate in fp32 with one rounding to the output dtype; fp32 follows torch.backends.cuda.matmul.allow_tf32.
    Raises InvalidArgument before anything is sent. Same inputs give the same bits.
    """
    members = resolve(group)
    _check.matrix("x", x)
    _check.matrix("weight", weight, like=x)
    m, k = x.shape
    n = weight.shape[0]
    if weight.shape[1] != k:
        raise InvalidArgument(f"weight: expected [N_local, {k}] to match x {list(x.shape)}, found {list(weight.shape)}")
    _check.vector("bias", bias, n, like=x)
    _check.no_grad(x=x, weight=weight, bias=bias)
    result = _check.output("out", out, (m * members.size, n), like=x)
    _check.no_overlap("out", result, x=x, weight=weight, bias=bias)
    if m == 0 or k == 0:                                # the same on every rank: nothing to send
        result.copy_(bias.expand_as(result)) if bias is not None else result.zero_()
        gathered = x.new_empty((m * members.size, k))
    else:
        core = backend().core("ag_gemm")
        serves = core is not None and core.serves(x.dtype, k)
        chosen = _plan.choose("ag_gemm", method, members, serves, needs_stream_memory_ops=True)
        if chosen == "unfused":
            gathered = ag_gemm_reference(x, weight, members, bias, result)[1]
        else:
            gathered = _fused(x.contiguous(), _check.rows_contiguous(weight), members, bias, result, return_gathered,
                              core if chosen == "ws" else None)
    return (result, gathered) if return_gathered else result


def _fused(x: torch.Tensor, weight: torch.Tensor, group: Group, bias: torch.Tensor | None, out: torch.Tensor,
           return_gathered: bool, core: Any) -> torch.Tensor | None:
    m, k = x.shape
    n = weight.shape[0]
    config = core.config(x.dtype, m) if core else backend().gemm_config(x.dtype, m)
    pitch = -(-m // config.block_m) * config.block_m
    pieces, piece_tiles = _pieces(x, config.block_m)
    space = workspace(group, "ag_gemm")
    space.reserve(group.size * pitch * k * x.element_size(), group.size * _MAX_PIECES)
    tiles = pitch // config.block_m * -(-n // config.block_n) * group.size
    grid = (max(1, min(tiles, backend().num_sms())),)

    def launch(epoch: int) -> tuple:
        if core and core.accepts(x, weight, out):
            kernel, args, options = core.launch(x, weight, bias, out, space, group, epoch, pitch, pieces, piece_tiles, config)
            return kernel, grid, args, options
        args = (x, space.half(x.dtype), weight, bias if bias is not None else weight, out, space.flags, epoch, group.rank,
                group.size, m, n, k, pitch, weight.stride(0), pieces, piece_tiles)
        options = dict(config.options(), HAS_BIAS=bias is not None, EVEN_K=k % config.block_k == 0,
                       PRECISION=_plan.precision(x.dtype))
        return ag_gemm_kernel, grid, args, options

    _plan.agree_once("ag_gemm", group, dict(m=m, k=k, dtype=x.dtype, ws=core is not None), lambda: launch(space.epoch))
    with space.call() as epoch:
        current, side = backend().current_stream(), side_stream()
        side.wait_stream(current)
        _push(x, space, group, pitch, piece_tiles * config.block_m, side)
        kernel, grid, args, options = launch(epoch)
        kernel[grid](*args, **options)
        current.wait_stream(side)
    return _gathered(x, space, group, pitch) if return_gathered else None


def _pieces(x: torch.Tensor, block_m: int) -> tuple[int, int]:
    """(pieces a shard is pushed in, tiles of block_m rows in each): whole tiles, so that a tile waits for one flag."""
    tiles = -(-x.shape[0] // block_m)
    wanted = min(_MAX_PIECES, max(1, x.numel() * x.element_size() // _PIECE_BYTES), tiles)
    piece_tiles = -(-tiles // wanted)
    return -(-tiles // piece_tiles), piece_tiles


def _push(x: torch.Tensor, space: Workspace, group: Group, pitch: int, piece_rows: int, stream: Any) -> None:
    """Copies x into every peer's half and stores the epoch behind each piece; each rank in a rotation of its own."""
    m, k = x.shape

    def targets() -> list:
        half = space.half(x.dtype)
        mine = half[group.rank * pitch * k:][:m * k].view(m, k)
        peers = [group.world_ranks[(group.rank - hop) % group.size] for hop in range(1, group.size)]
        return [(peer_tensor(mine, peer).split(piece_rows), peer_tensor(space.flags, peer)) for peer in peers]

    for theirs, flags in space.view(("push", space.epoch & 1, m, k, x.dtype, pitch, piece_rows), targets):
        for piece, (to, rows) in enumerate(zip(theirs, x.split(piece_rows))):
            backend().copy(to, rows, stream)
            backend().write_value32(flags, piece * group.size + group.rank, space.epoch, stream)


def _gathered(x: torch.Tensor, space: Workspace, group: Group, pitch: int) -> torch.Tensor:
    m, k = x.shape
    gathered = space.half(x.dtype)[:group.size * pitch * k].view(group.size, pitch, k)[:, :m].contiguous()
    gathered[group.rank].copy_(x)                       # the own shard never goes through the workspace
    return gathered.view(group.size * m, k)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the gathers of ag_gemm have in common, and the one by the copy engine."""
from typing import Any

import torch

from triton_dist.ops.calls.plans import OnWorkspace
from triton_dist.ops.calls.possible import precision, switched
from triton_dist.ops.tuning.table import Choice
from triton_dist.ops.ag_gemm.kernels import ag_gemm_kernel
from triton_dist.runtime.backend import backend
from triton_dist.runtime.device import Transfer, absent
from triton_dist.runtime.groups import Group
from triton_dist.runtime.heap import peer_tensor
from triton_dist.runtime.workspace import Workspace, workspace

MAX_PIECES = 4
PIECE_BYTES = 8 << 20           # a copy of so many runs at the link's full rate; a shard is pushed in pieces no smaller


class Gather:
    """Fills a plan's gather buffer beside the GEMM, and sets the flags that tiles of peers' rows wait for.

    A shard is sent in `pieces` of `piece_tiles` tiles of rows, so that a tile waits for one flag, or one of each program that
    pushes. programs: SMs that it takes. streams: how many it takes. captured: as calls.plans.Plan has it.
    """

    pieces: int
    piece_tiles: int
    programs, streams = 0, 1
    captured: bool | None = False

    def __init__(self, plan: Any, choice: Choice):
        self.plan = plan

    @staticmethod
    def workspace(group: Group) -> Workspace:
        """The workspace of its calls on `group`."""
        return workspace(group, "ag_gemm")

    @staticmethod
    def arguments(core: Any) -> type:
        """What makes the arguments of the GEMM that waits for it: of a core's kernel, or with None of the portable one."""
        return Portable if core is None else core.bind

    def prepare(self, x: torch.Tensor) -> None:
        """Makes ready for tensors like x [m, k] what a first call would have to wait for."""
        raise NotImplementedError

    def start(self, x: torch.Tensor, epoch: int | None, *streams: Any) -> None:
        """Puts the gather of one call on its streams."""
        raise NotImplementedError

    def chunks(self, epoch: int | None) -> torch.Tensor:
        """[world, m, k]: what a call gathered, but for the own chunk."""
        p = self.plan
        rows = p.halves[epoch & 1][:p.group.size * p.pitch * p.k].view(p.group.size, p.pitch, p.k)
        return rows[:, :p.m].clone(memory_format=torch.contiguous_format)


class OnGather(OnWorkspace):
    """A plan that runs a gather, and is captured as that is."""

    def serves(self) -> bool:
        """Where only eager calls are served, a warm-up before a capture is one more reason to look at the call."""
        if self.captured is None:
            return True
        return not backend().is_capturing() and (self.prepared or not backend().warms_up())


class PushesByCopies(Gather):
    """The copy engine pushes x to every peer, the epoch behind each piece.

    One peer after another; to all at once where there is no switch, since each then has a link of its own.
    more_flags: for each rank, beside those of its pieces.
    """

    more_flags = 0

    def __init__(self, plan: Any, choice: Choice):
        super().__init__(plan, choice)
        size, row = plan.group.size, plan.k * plan.dtype.itemsize
        self.pieces, self.piece_tiles = cut(plan.tiles, plan.m * row, PIECE_BYTES, choice.pieces)
        self.streams = 1 if switched() else max(1, size - 1)
        plan.space.reserve(size * plan.pitch * row, size * (MAX_PIECES + self.more_flags), writer=lambda flag: flag % size)

    def prepare(self, x: torch.Tensor) -> None:
        """Collects the pushes to each half."""
        distances = self.plan.space.derived("distances", self._distances)
        self.transfers = [self._transfers(half.data_ptr(), distances) for half in self.plan.halves]

    def start(self, x: torch.Tensor, epoch: int, *streams: Any) -> None:
        for transfers, stream in zip(self.transfers[epoch & 1], streams):
            backend().push(x, transfers, epoch, stream)

    def _distances(self) -> list[int]:
        """Bytes to each peer's heap, in the order in which they are served. It is as far away for the halves as for the flags."""
        group, flags = self.plan.group, self.plan.space.flags
        peers = [group.world_ranks[(group.rank - hop) % group.size] for hop in range(1, group.size)]
        return [peer_tensor(flags, peer).data_ptr() - flags.data_ptr() for peer in peers]

    def _transfers(self, half: int, distances: list[int]) -> list[list[Transfer]]:
        """What is pushed on each stream: to each peer, in a rotation of this rank's own, or all in turn.

        half: its address. distances: as of _distances.
        """
        plan, group = self.plan, self.plan.group
        row, piece_rows = plan.k * plan.dtype.itemsize, self.piece_tiles * plan.config.block_m
        to, flags = half + group.rank * plan.pitch * row, plan.space.flags.data_ptr()
        found: list[list[Transfer]] = [[] for _ in range(self.streams)]
        for turn, distance in enumerate(distances):
            on_stream = found[turn % self.streams]
            for piece in range(self.pieces):
                start = piece * piece_rows
                nbytes, flag = (min(plan.m, start + piece_rows) - start) * row, piece * group.size + group.rank
                on_stream.append(Transfer(to + distance + start * row, start * row, nbytes, flags + distance + 4 * flag))
        return found


class Portable:
    """Arguments of the portable kernel for the calls of a plan.

    `args` gives those that change from call to call, in their places; `varying` says which these are. `described` gives all.
    """

    kernel = ag_gemm_kernel

    def __init__(self, plan: Any, has_bias: bool):
        width = plan.config.block_n // (1 + plan.gated)
        self.plan, self.units = plan, plan.tiles * -(-plan.n // width) * plan.group.size
        self.options = dict(plan.config.options(), HAS_BIAS=has_bias, GATED=plan.gated, EVEN_K=plan.k % plan.config.block_k == 0,
                            PRECISION=precision(plan.dtype))
        self.varying = (0, 1, 2, *[3] * has_bias, 4, 6)

    def args(self, x, weight, bias, out, epoch) -> tuple:
        """Of one call: x [m, k], weight, bias or None, out [world * m, n], the call's epoch."""
        return x, self.plan.halves[epoch & 1], weight, bias, out, None, epoch

    def resized(self, x) -> dict:
        """{position: argument of the kernel that depends on the number of rows}, of calls that allocate out."""
        p = self.plan
        return {9: p.m, 12: p.pitch, 14: p.gather.pieces, 15: p.gather.piece_tiles}

    def described(self, x, weight, bias, out, epoch) -> tuple:
        bias = absent(weight) if bias is None else bias
        p = self.plan
        return (x, p.halves[epoch & 1], weight, bias, out, p.space.flags, epoch, p.group.rank,
                p.group.size, p.m, p.n, p.k, p.pitch, weight.stride(0), p.gather.pieces, p.gather.piece_tiles)


def cut(tiles: int, nbytes: int, least: int, pieces: int = 0) -> tuple[int, int]:
    """(pieces of a shard of `tiles` tiles and `nbytes`, tiles in each): so many at most, 0: of at least `least` bytes each."""
    wanted = min(MAX_PIECES, pieces or max(1, nbytes // least), tiles)
    piece_tiles = -(-tiles // wanted)
    return -(-tiles // piece_tiles), piece_tiles

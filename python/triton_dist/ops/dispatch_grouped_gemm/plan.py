# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The fused plan of dispatch_grouped_gemm: rows travel while the product of those that are there already runs."""
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch

from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.calls.plans import OnWorkspace
from triton_dist.ops.dispatch_grouped_gemm.kernels import exchange_rows_kernel, own_rows_kernel
from triton_dist.ops.ep.chunks import Pieces, Room, tile_of
from triton_dist.ops.ep_dispatch.op import EP_DISPATCH
from triton_dist.ops.exchange.sizes import KIB, power_of_two
from triton_dist.ops.grouped_gemm.plans import ByCore, Portable
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import side_streams, team

PER_CHUNK = 4  # programs that store the own rows of a chunk
PIECES, WARPS = Pieces(64 * KIB, 64 * KIB), 16  # few SMs move the rows, so each must have much under way
# For the estimate, which changes times, not results. What an SM does, and what a GPU does in the ops in turn: read off 2 x H200.
SENT_GBS, STORED_GBS, FLOP_NS = 11.0, 50.0, 5000.0
LINK_GBS, COPY_GBS, START_NS = 330.0, 2000.0, 25e3
BUSY_SMS = 22  # more of them move rows no faster


@dataclass(frozen=True)
class Estimate:
    """Nanoseconds.

    exchange: of rows, beside the first product. expert: of the tiles that this product has of one expert.
    in_turn: of ep_dispatch, then grouped_gemm. fused: of both as one op.
    """
    exchange: float
    expert: float
    in_turn: float
    fused: float

    def head(self, experts: int) -> int:
        """How many of these `experts` have tiles in the first product.

        The weights of these are read twice, so they are as few as hide the exchange.
        """
        return max(1, min(experts, round(experts if not self.expert else self.exchange / self.expert)))


def near_of(choice: Choice, world: int) -> int:
    """Ranks whose rows the first product has: this one, or half of them where rows travel in two steps."""
    return world // 2 if choice.pieces == 2 else 1


def estimate(agreed: Any, world: int, choice: Choice, comm_sms: int, num_sms: int) -> Estimate:
    """If all experts are chosen equally often, and the dispatch of the ops in turn stores rows by expert."""
    local, row, near = agreed.experts // world, agreed.row * agreed.dtype.itemsize, near_of(choice, world)
    choices = agreed.max_tokens * agreed.k / world  # of a rank's tokens on another rank
    sent = (world - near) * min(agreed.max_tokens, choices) * row
    stored = (world - near) * (choices + min(agreed.max_tokens, choices)) * row
    exchange = (sent / SENT_GBS + stored / STORED_GBS) / min(comm_sms, BUSY_SMS)
    # Rows in whole tiles: about a tile of an expert's is not.
    whole = max(0.0, near * choices / local - choice.config.block_m)  # pyright: ignore[reportOptionalMemberAccess]
    expert = 2 * whole * agreed.row * agreed.n / (FLOP_NS * max(1, num_sms - comm_sms))
    product = 2 * world * choices * agreed.row * agreed.n / (FLOP_NS * num_sms)
    under = min(exchange, local * expert)           # of the product, on the SMs that are left to it
    fused = (START_NS + near * choices * row / COPY_GBS + max(exchange, under) + product
             - under * (num_sms - comm_sms) / num_sms)
    in_turn = START_NS + max(sent / LINK_GBS, world * choices * row / COPY_GBS) + product
    return Estimate(exchange, expert, in_turn, fused)


class Fused(OnWorkspace):
    """A dispatch of ids alone; then rows on a side stream, beside own rows and their product; then the other product.

    In two steps, rows travel between the ranks of each half first, and the first product has those as well.

    dispatch: what ranks have agreed on in the dispatch of ids. ids: its plan. programs: of the exchange of rows. first, second:
    the plans of the products. head: experts whose tiles the first one has.
    """

    def __init__(self, choice: Choice, agreed: Any, group: Group, tensors: Sequence):
        x = tensors[0]
        self.agreed, self.group, self.tokens, self.chunks = agreed, group, x.shape[0], agreed.chunks
        self.local, row = agreed.experts // group.size, agreed.row
        self.tile = tile_of(self.chunks, row, agreed.dtype.itemsize, PIECES)
        self.dispatch = agreed.ids(group)
        for _ in range(2):  # the second time nothing grows, so both know where buffers are
            self.ids = EP_DISPATCH.plan(Choice("push"), self.dispatch, group, x)
            self.room = Room(group, self.chunks, self.tile, agreed.dtype, row, 0)
        self.programs = self._shared(choice.comm_sms)
        gemm: Any = ByCore if choice.method == "ws" else Portable
        self.first = gemm(choice.config, spared=self.programs)
        self.second = gemm(choice.config, parts=2)
        self.near = near_of(choice, group.size)
        found = estimate(agreed, group.size, choice, self.programs, backend().num_sms())
        self.head, self.block_m = found.head(self.local), choice.config.block_m
        super().__init__(self.room.space)

    def _shared(self, wanted: int) -> int:
        """Programs for the exchange, about as many as wanted, that have equally many chunks."""
        most = max(1, min(wanted, self.chunks.count, backend().num_sms() - 1))
        return -(-self.chunks.count // -(-self.chunks.count // most))

    def compile(self, x, topk_ids, topk_weights, weight, h, *_):
        sent = self._of_ids(x, topk_ids, topk_weights)
        self.ids.compile(*sent)
        rows, parts = self._memory(x)
        exchange, own = self.args(x, topk_ids, sent, rows, parts)
        agreed, room = self.agreed, self.room
        shared = dict(K=agreed.k,
                      CHOICES=power_of_two(agreed.k),
                      E_LOC=self.local,
                      WORLD=self.group.size,
                      RANKS=room.ranks,
                      PITCH=room.pitch,
                      TOKENS=power_of_two(self.chunks.each),
                      ROWS=self.tile.rows,
                      COLS=self.tile.cols,
                      num_warps=WARPS,
                      num_stages=1)
        rest = (*room.rows, *room.flags, room.space.control, team(self.group), self.tokens, self.chunks.each, agreed.row,
                agreed.experts, self.chunks.count, self.near)
        self.exchange = backend().prepare(exchange_rows_kernel, (self.programs, ), (*exchange, *rest),
                                          dict(shared, FAR=True),
                                          varying=len(exchange))
        if self.near > 1:
            self.exchange_near = backend().prepare(exchange_rows_kernel, (self.chunks.count, ), (*exchange, *rest),
                                                   dict(shared, FAR=False),
                                                   varying=len(exchange))
        rest = (team(self.group), self.tokens, agreed.row, agreed.experts, self.chunks.count, self.near, self.head,
                self.dispatch.room.bit_length() + 1)
        self.own = backend().prepare(own_rows_kernel, (PER_CHUNK * self.chunks.count, ), (*own, *rest),
                                     dict(shared,
                                          E_PAD=power_of_two(self.local),
                                          PER_CHUNK=PER_CHUNK,
                                          BLOCK_M=self.block_m),
                                     varying=len(own))
        weight = self._read(weight)
        for gemm, (begins, counts) in zip((self.first, self.second), self._lists(parts)):
            gemm.compile(rows, weight, begins, counts, None, None, h)

    def _of_ids(self, x, topk_ids, topk_weights) -> list:
        """The tensors of the dispatch of ids: rows without elements, and results."""
        return EP_DISPATCH.filled(self.group, self.dispatch,
                                  [x.new_empty((x.shape[0], 0)), topk_ids, topk_weights, None, *[None] * 7])

    def _memory(self, x) -> tuple:
        """Room for rows by expert, and for the parts of experts' rows."""
        return (x.new_empty((self.dispatch.room, self.agreed.row)),
                torch.empty(6 * self.local, dtype=torch.int32, device=x.device))

    def _lists(self, parts: torch.Tensor) -> tuple:
        """(first rows, numbers) of both products."""
        begins, counts, begins_second, counts_second = parts.split([self.local] * 2 + [2 * self.local] * 2)
        return (begins, counts), (begins_second, counts_second)

    def _read(self, weight: torch.Tensor) -> torch.Tensor:
        """`weight`, or a copy where the core cannot read it: ranks have agreed on the core, and TMA needs aligned rows."""
        if isinstance(self.first, ByCore) and (weight.data_ptr() % 16 or weight.stride(2) != 1
                                               or any(s * weight.itemsize % 16 for s in weight.stride()[:2])
                                               or weight.stride(0) % max(1, weight.stride(1))):
            backend().before_torch()
            return weight.clone(memory_format=torch.contiguous_format)
        return weight

    def args(self, x, topk_ids, sent: list, rows, parts) -> tuple:
        told, positions, sources = sent[8:11]
        return (x, topk_ids, told, positions, rows), (x, topk_ids, told, positions, sources, rows, parts)

    def run(self, group, x, topk_ids, topk_weights, weight, h=None, *_) -> tuple:
        try:  # may copy, so it may fail
            x, weight = x.contiguous(), self._read(weight)
            h = x.new_empty(self.out_shape) if h is None else h
            sent, (rows, parts) = self._of_ids(x, topk_ids, topk_weights), self._memory(x)
            exchange, own = self.args(x, topk_ids, sent, rows, parts)
            side: Any = side_streams(1)[0]
        except BaseException as error:
            withdraw(group, self.space.kind, error)
            raise
        self.ids.run(group, *sent)
        self.space.call()
        try:
            if self.near > 1:
                self.exchange_near(*exchange)
                self.space.call()
            current = backend().current_stream()
            side.wait_stream(current)
            with backend().use_stream(side):
                self.exchange(*exchange)
            self.own(*own)
            (begins, counts), second = self._lists(parts)
            self.first.run(group, rows, weight, begins, counts, None, None, h)
            current.wait_stream(side)
            self.second.run(group, rows, weight, *second, None, None, h)
        except BaseException as error:
            self.space.failed(error)
            raise
        return h, sent[6], sent[7], sent[8], sent[9]

    exchange: Callable[..., None]
    exchange_near: Callable[..., None]
    own: Callable[..., None]

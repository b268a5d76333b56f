# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The plan of a combine over nodes."""
from typing import Any, Sequence

import torch

from triton_dist.ops.calls.plans import OnWorkspace
from triton_dist.ops.ep import chunks
from triton_dist.ops.ep.chunks import Room, tile_of
from triton_dist.ops.ep.nodes_device import HEAD
from triton_dist.ops.ep_combine.nodes_kernel import ep_combine_nodes_kernel, ep_combine_take_kernel
from triton_dist.ops.exchange.sizes import power_of_two
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import team


class OverNodes(OnWorkspace):
    """Two kernels: one sends, and sums for other nodes; the other one takes."""

    def __init__(self, agreed: Any, group: Group, tensors: Sequence):
        y, topk_ids, _, positions = tensors[:4]
        self.agreed, self.group, self.tokens, self.chunks = agreed, group, topk_ids.shape[0], agreed.chunks
        self.limit = y.shape[0] if positions is None else positions.shape[0]
        self.tile = tile_of(self.chunks, agreed.row, 4, chunks.NODES)
        self.room = Room(group, self.chunks, self.tile, agreed.dtype, agreed.row, 0, box=HEAD.value + self.chunks.each)
        super().__init__(self.room.space)

    def compile(self, *tensors):
        (given, taken), agreed, room, group = self.args(*tensors), self.agreed, self.room, self.group
        _, _, _, positions, weights, bias, residual, _ = tensors
        options = agreed.options(group, positions, weights, bias, residual)
        each = group.ranks_per_node
        shared = dict(NODES=len(group.nodes), EACH=each, PLACES=power_of_two(each), PITCH=room.pitch,
                      TOKENS=power_of_two(self.chunks.each), ROWS=self.tile.rows, COLS=self.tile.cols, ROUND=self.tile.round,
                      PARTS=self.tile.parts, num_warps=chunks.NODES.warps, num_stages=1, enable_fp_fusion=False)
        sizes = self.tokens, self.chunks.each, self.tile.rounds, agreed.row
        rows_out, *boxes = room.far
        self.give = backend().prepare(
            ep_combine_nodes_kernel, self.tile.grid(self.chunks, True, True),
            (*given, *room.packets, *room.rows, room.words[1], *room.flags, rows_out, *boxes, *room.signals, room.space.control,
             team(group), *sizes, self.limit, agreed.experts, self.chunks.count),
            dict(shared, WORLD=group.size, RANKS=room.ranks,
                 **{name: options[name] for name in ("K", "CHOICES", "E_LOC", "PLACED", "WEIGHTED")}), varying=len(given))
        self.take = backend().prepare(
            ep_combine_take_kernel, self.tile.grid(self.chunks, False, True),
            (*taken, *room.packets, *room.rows, *room.flags, rows_out, *room.signals, room.space.control, team(group), *sizes,
             agreed.experts, self.chunks.count),
            dict(shared, **{name: options[name] for name in ("K", "CHOICES", "E_LOC", "HAS_BIAS", "HAS_RESIDUAL")}),
            varying=len(taken))

    def args(self, y: torch.Tensor, topk_ids: torch.Tensor, told: torch.Tensor, positions: torch.Tensor | None,
             topk_weights: torch.Tensor | None, bias: torch.Tensor | None, residual: torch.Tensor | None,
             out: torch.Tensor) -> tuple:
        """Of both kernels."""
        return ((y.contiguous(), topk_ids, told, told if positions is None else positions,
                 out if topk_weights is None else topk_weights),
                (topk_ids, out if bias is None else bias, out if residual is None else residual.contiguous(), out))

    def launch(self, given: tuple, taken: tuple) -> None:
        self.give(*given)
        self.take(*taken)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The plan of a dispatch that stores a row for each choice."""
from dataclasses import replace
from typing import Any, Callable, Sequence

import torch

from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.calls.plans import OnWorkspace
from triton_dist.ops.ep import chunks
from triton_dist.ops.ep_dispatch.by_expert_kernel import rows_by_expert_kernel
from triton_dist.ops.exchange.sizes import power_of_two
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import team


class ByExpert(OnWorkspace):
    """A dispatch of ids and weights alone, which tells where choices lie by expert; then rows go there, in one kernel.

    So rows are stored by expert while others travel, and own rows do not pass through the workspace.
    make: a Push of what ranks have agreed on and tensors.
    """

    def __init__(self, make: Callable[..., Any], agreed: Any, group: Group, tensors: Sequence):
        self.agreed, self.group, space = agreed, group, chunks.whole_calls(group)
        alone = replace(agreed, row=0, scales=0, quant=None)
        for _ in range(2):  # the second time nothing grows, so both know where buffers are
            self.ids = make(alone, group, tensors, space, expand=False)
            self.rows = make(agreed, group, tensors, space, beside=0, pieces=chunks.PLACED)
        super().__init__(space)

    def compile(self, *tensors):
        agreed, rows, room = self.agreed, self.rows, self.rows.room
        self.ids.compile(*self._of_ids(*tensors))
        args = self.args(*tensors)[1]
        rest = (*room.packets, *room.rows, *room.words, *room.flags, room.space.control, team(self.group), rows.tokens,
                rows.chunks.each, rows.tile.rounds, rows.row, agreed.limit, agreed.room, agreed.align, agreed.experts,
                rows.chunks.count)
        self.place = backend().prepare(
            rows_by_expert_kernel, rows.tile.grid(rows.chunks, True, True), (*args, *rest),
            dict(K=agreed.k, CHOICES=power_of_two(agreed.k), SCALES=agreed.scales,
                 SCALES_PAD=power_of_two(max(1, agreed.scales)), META=rows.meta, E_LOC=rows.local, QUANT=agreed.quant is not None,
                 FIRST=int(agreed.quant is None), MASKED=agreed.layout == "masked", WORLD=self.group.size, RANKS=room.ranks,
                 PITCH=room.pitch, TOKENS=power_of_two(rows.chunks.each), ROWS=rows.tile.rows, COLS=rows.tile.cols,
                 ROUND=rows.tile.round, PARTS=rows.tile.parts, num_stages=1, **rows.pieces.options), len(args))

    def _of_ids(self, x, topk_ids, topk_weights, scales, out, scales_out, ids_out, weights_out, told, positions,
                sources) -> list:
        """Tensors of the dispatch of ids: rows without elements."""
        return [x[:, :0], topk_ids, topk_weights, None, x[:0, :0], scales_out, ids_out, weights_out, told, positions, sources]

    def args(self, *tensors) -> tuple:
        x, ids, _, scales, out, scales_out, _, _, told = self.rows.sending(*tensors)
        _, (_, _, positions, _, of_experts), _ = self.rows.args(*tensors)
        return self.ids.args(*self._of_ids(*tensors)), (x, ids, scales, told, positions, of_experts, out, scales_out)

    def run(self, group: Group, *tensors: torch.Tensor | None) -> None:
        try:  # may copy, so it may fail
            of_ids, rows = self.args(*tensors)
            self.space.call()
        except BaseException as error:
            withdraw(group, self.space.kind, error)
            raise
        try:
            self.ids.launch(*of_ids)
            self.space.call()
            self.place(*rows)
        except BaseException as error:
            self.space.failed(error)
            raise

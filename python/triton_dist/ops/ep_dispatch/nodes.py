# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The plan of a dispatch over nodes."""
from typing import Any

from triton_dist.ops.calls.plans import OnWorkspace
from triton_dist.ops.ep_dispatch.nodes_kernel import ep_dispatch_nodes_kernel
from triton_dist.ops.exchange.sizes import power_of_two
from triton_dist.runtime.backend import backend
from triton_dist.runtime.workspace import team


class OverNodes(OnWorkspace):
    """A kernel that sends and forwards; then those of `take`, a Push that only takes."""

    def __init__(self, take: Any):
        super().__init__(take.space)
        self.take = take

    def args(self, *tensors) -> tuple:
        return self.take.args(*tensors)

    def compile(self, *tensors):
        take = self.take
        take.compile(*tensors)
        sent, room, group = take.args(*tensors)[0][:4], take.room, take.group
        rest = (*room.packets, *room.rows, *room.words, *room.flags, *room.far, *room.signals, room.space.control, team(group),
                take.tokens, take.chunks.each, take.tile.rounds, take.row, take.agreed.experts, take.chunks.count)
        options = {name: value for name, value in take.options.items() if name not in ("E_PAD", "INDEX", "WORLD", "RANKS")}
        each = group.ranks_per_node
        self.send = backend().prepare(ep_dispatch_nodes_kernel, take.tile.grid(take.chunks, True, True), (*sent, *rest),
                                      dict(options, NODES=len(group.nodes), EACH=each, PLACES=power_of_two(each)),
                                      varying=len(sent))

    def launch(self, sent: tuple, placing: tuple, expanding: tuple) -> None:
        self.send(*sent[:4])
        self.take.launch(sent, placing, expanding)

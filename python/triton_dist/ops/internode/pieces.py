# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How kernels over nodes cut what they move into pieces, one a program, and where the pieces' flags lie."""
import torch

from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import Workspace

OPTIONS = dict(BLOCK=16384, num_warps=16)        # elements that a program moves at a time: four 16-byte loads a thread
_MOST = 16                  # programs: as many SMs fill an NVLink with stores
_PIECE = 4096               # elements below which another program does not pay


class Pieces:
    """Pieces of a rank's `count` elements: `size` elements each, of whole `grain`s, one for each of `programs`.

    most: programs, 0: an eighth of the device. All ranks must have the same arguments and number of SMs.
    """

    def __init__(self, group: Group, count: int, grain: int = _PIECE, most: int = 0):
        self.group, self.nodes = group, len(group.nodes)
        wanted = max(1, min(_MOST, most or backend().num_sms() // 8, -(-count // grain)))
        self.size = -(-count // (grain * wanted)) * grain
        self.programs = -(-count // self.size)

    def reserve(self, space: Workspace, half_bytes: int) -> None:
        """Collective: room in the workspace for halves of this size, int32 flags [piece, rank], int64 signals [piece, node]."""
        group, ranks = self.group, self.group.size
        nodes, node, place = group.nodes, group.node, group.local_rank

        def writer(word: int) -> int:
            if word < _MOST * ranks:
                return nodes[node][word % ranks % len(nodes[node])]
            return nodes[(word - _MOST * ranks) // 2 % len(nodes)][place]
        space.reserve(half_bytes, _MOST * (ranks + 2 * self.nodes), writer)

    def words(self, space: Workspace) -> tuple[torch.Tensor, torch.Tensor]:
        """(flags, signals) of a workspace. Both begin where no shape can move them."""
        first = _MOST * self.group.size
        return space.flags, space.flags[first:first + 2 * _MOST * self.nodes].view(torch.int64)

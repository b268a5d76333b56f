# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Sizes of dispatch and combine on the host: chunks of tokens, tiles of rows, and room in the workspace that both share."""
from dataclasses import dataclass
from typing import Any, Callable

import torch

from triton_dist.ops.exchange.sizes import KIB, power_of_two
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import MAX_PROGRAMS, CountedWorkspace, workspace

KIND = "tokens to experts"  # of the workspace
MOST_EACH = 1024  # tokens of a chunk that a program can hold
MOST_CHOICES = 16  # experts of a token
MOST_PARTS = 4  # of all Pieces
MOST_CHUNKS = MAX_PROGRAMS // (2 * MOST_PARTS)  # however many programs the device has room for
_PACKET = 8  # bytes
_ALIGNED = 16
_LINE = 32  # words of a line of memory


@dataclass(frozen=True)
class Pieces:
    """In what pieces programs move rows, in bytes: `tile` at a time, with up to `row` of each row, and `round` with one flag.

    narrow: in place of `tile` where more than two rows fit it. Many rows take registers, and four programs should fit an SM.
    warps: of a program. parts: programs that send the rows of a chunk, and as many that take them. registers: of a thread, at
    most; None: as many as the compiler likes.
    """
    tile: int
    round: int
    row: int = 16 * KIB
    narrow: int | None = None
    warps: int = 4
    parts: int = 2
    registers: int | None = None

    @property
    def options(self) -> dict:
        """Of a launch."""
        return dict(num_warps=self.warps, **({} if self.registers is None else {"maxnreg": self.registers}))


# The fastest of those measured on 2 x H200 (tests/nvidia/moe.py --parts sweep)
MOVED = Pieces(32 * KIB, 64 * KIB, narrow=16 * KIB)
ROUNDED = Pieces(16 * KIB, 32 * KIB, row=4 * KIB, registers=128)  # rows that become fp8 on the way
PLACED = Pieces(16 * KIB, 16 * KIB)  # rows that go straight to the places of their choices
# Rows of a combine, counted in fp32, one at a time. All 8 programs of a chunk fit an SM: those that sum would else begin when the
# others have sent everything. With the limit the compiler takes as many registers as without one, but loads more rows before it
# waits for the first.
SUMMED = Pieces(4 * KIB, 16 * KIB, warps=2, parts=4, registers=128)
PASSED = 8 * KIB  # of a row that is the only one that a rank has of a token, in place of SUMMED's tile
NODES = Pieces(16 * KIB, 16 * KIB)  # rows of a combine over nodes, counted in fp32
EXPANDED = Pieces(16 * KIB, 16 * KIB)  # rows of this rank, to the places of their choices


@dataclass(frozen=True)
class Chunks:
    """max_tokens of a rank as `count` chunks of `each` tokens. Equal on all ranks, and for dispatch and combine."""
    count: int
    each: int

    @property
    def slots(self) -> int:
        """Rows that a rank may have for another one."""
        return self.count * self.each


def chunks_of(max_tokens: int) -> Chunks:
    """Chunks of this many tokens: as many as there are tokens, up to a chunk for each SM."""
    each = max(1, -(-max_tokens // most_chunks()))
    return Chunks(max(1, -(-max_tokens // each)), each)


def most_chunks() -> int:
    """So many that each SM has the programs of one."""
    return min(backend().num_sms(), MOST_CHUNKS)


@dataclass(frozen=True)
class Tile:
    """What a program moves at a time: `rows` rows of `cols` elements of them. It tells of `round` rows with one flag.

    rounds: of a chunk. parts: programs that share them.
    """
    rows: int
    cols: int
    round: int
    rounds: int
    parts: int

    def grid(self, chunks: Chunks, send: bool, take: bool) -> tuple[int]:
        """Of a launch of programs that send, that take, or of both."""
        return ((send + take) * self.parts * chunks.count, )


def tile_of(chunks: Chunks, row: int, itemsize: int, pieces: Pieces, multiple: int = 1) -> Tile:
    """The tile for rows of `row` elements, whose columns are a multiple of `multiple`, a power of two."""
    width, most = power_of_two(max(1, row)), power_of_two(chunks.each)
    tile = pieces.narrow if pieces.narrow and 2 * width * itemsize < pieces.tile else pieces.tile
    cols = max(multiple, min(width, min(pieces.row, tile) // itemsize))
    rows = max(1, min(tile // (cols * itemsize), most))
    rows = 1 << (rows.bit_length() - 1)
    a_round = max(rows, min(pieces.round // (width * itemsize), most))
    a_round = 1 << (a_round.bit_length() - 1)
    rounds = -(-chunks.each // a_round)
    return Tile(rows, cols, a_round, rounds, min(pieces.parts, rounds))


def words_beside(choices: int, scales: int) -> int:
    """Words that lie beside a row: `choices` of its choices, and its scales at the end, which begin a line of memory.

    What crosses a link in whole lines takes fewer packets.
    """
    padded = power_of_two(scales) if scales else 0
    return (-(-choices // _LINE) * _LINE if padded >= _LINE else choices) + padded


def whole_calls(group: Group) -> CountedWorkspace:
    """The workspace of calls that send and take in one launch."""
    return workspace(group, KIND, CountedWorkspace)


class Room:
    """Room in a workspace for rows of `row` elements of `dtype`, and `meta` words of int32 beside each.

    space: the workspace; None for that of whole calls. box: over nodes, words that a chunk's rows for a node have beside them.
    A half holds packets, int64 [RANKS][PITCH], whose place is the same for all calls; then rows [source][slot], then words
    [source][slot]; over nodes also rows to them and from them, [2][node][slot], and as many boxes [2][node][chunk][box].
    Flags: [source][2 halves][chunk][round]. Over nodes they have the first half of the words; in the second one are signals,
    int64 [node][2 halves][chunk][1 + 2 * rounds]. Ranks of a node write flags for those at the same place of other nodes.
    """
    def __init__(self, group: Group, chunks: Chunks, tile: Tile, dtype: torch.dtype, row: int, meta: int, space: Any = None,
                 box: int = 0):
        self.ranks, self.pitch = power_of_two(group.size), power_of_two(most_chunks())
        size, head = dtype.itemsize, _aligned(_PACKET * self.ranks * self.pitch)
        rows, words = _aligned(group.size * chunks.slots * row * size), _aligned(group.size * chunks.slots * meta * 4)
        nodes, self.box = len(group.nodes) if box else 0, _aligned(4 * box) // 4
        far, boxes = _aligned(2 * nodes * chunks.slots * row * size), 2 * nodes * chunks.count * self.box * 4
        flags, signals = 2 * group.size * chunks.count * tile.rounds, 4 * nodes * chunks.count * (1 + 2 * tile.rounds)
        self.space = space = whole_calls(group) if space is None else space
        space.reserve(head + rows + words + far + boxes, 2 * max(flags, signals) if box else flags,
                      _writer(group, space, box > 0))
        packets, data, ints = (space.data.view(kind) for kind in (torch.int64, dtype, torch.int32))
        self.packets: Any = (packets, packets.numel() // 2)
        self.rows: Any = (data[head // size:], data.numel() // 2)
        self.words: Any = (ints[(head + rows) // 4:], ints.numel() // 2)
        count = space.flags.numel() // (2 if box else 1)
        self.flags: Any = (space.flags, count // group.size, count // group.size // 2)
        if box:
            self.far: Any = (data[(head + rows + words) // size:], ints[(head + rows + words + far) // 4:], self.box)
            signals = space.flags[count:].view(torch.int64)
            self.signals: Any = (signals, signals.numel() // nodes, signals.numel() // nodes // 2)


def _aligned(nbytes: int) -> int:
    """`nbytes` rounded up to what kernels load at a time."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def _writer(group: Group, space: Any, over_nodes: bool) -> Callable[[int], int]:
    """The member that writes a flag of a Room."""
    own = group.nodes[group.node] if over_nodes else range(group.size)

    def writer(flag: int) -> int:
        count = space.flags.numel() // (2 if over_nodes else 1)
        if flag >= count:
            node = (flag - count) // 2 // (count // 2 // len(group.nodes))
            return group.nodes[min(node, len(group.nodes) - 1)][group.local_rank]
        return own[min(flag // (count // group.size), group.size - 1) % len(own)]
    return writer

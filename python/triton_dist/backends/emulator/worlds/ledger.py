# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The last op calls of every rank, compared without waiting: ranks that make different calls are told before they hang.

A rank writes its call and looks at what its peers wrote under the same number, so that of two ranks the later one finds the
difference; the earlier one learns of it from the later, or while it waits. Nobody waits for anybody: a barrier here would
hide the races that the emulator is there to show.
"""
import struct
import zlib
from typing import Any, Sequence

_SLOTS = 32                                  # calls a rank can be ahead of another; ops let it be two
_BODY = struct.Struct("<q200s")              # digest (0: refused), words
_HEAD = struct.Struct("<qq")                 # ranks of the group, number (0: nothing to be read)
_ENTRY = _BODY.size + _HEAD.size
SIZE = _SLOTS * _ENTRY


class Ledger:
    """`blocks`: a writable buffer a world rank; entries begin at `offset` of each."""

    def __init__(self, blocks: Sequence, offset: int = 0):
        self._blocks, self._offset = blocks, offset
        self._told: set = set()              # (rank, group, number)

    def post(self, rank: int, ranks: tuple, number: int, what: Any, refused: bool, withdrawn: bool = False) -> list:
        """Notes call `number` of `rank` on the group of `ranks`; the peers that have another call under that number.

        withdrawn: the rank is not told of a difference, since it has an error of its own.
        """
        group, text = zlib.crc32(repr(ranks).encode()), str(what).encode()
        digest = 0 if refused else 1 + zlib.crc32(text)
        slot = self._offset + (group + number) % _SLOTS * _ENTRY
        self._write(rank, slot, (group, number), (digest, text))
        if withdrawn:
            self._told.add((rank, group, number))
        peers = [peer for peer in ranks if peer != rank]
        return [peer for peer in peers if self._differ(self._read(rank, slot), self._read(peer, slot))]

    def conflict(self, rank: int) -> str | None:
        """Words for a call in which `rank` differs from a peer, if it has not been told yet; otherwise None."""
        for i in range(_SLOTS):
            slot = self._offset + i * _ENTRY
            group, number, _, words = mine = self._read(rank, slot)
            if number and (rank, group, number) not in self._told:
                for peer in range(len(self._blocks)):
                    other = self._read(peer, slot)
                    if peer != rank and self._differ(mine, other):
                        self._told.add((rank, group, number))
                        pair = sorted([(rank, words), (peer, other[3])])
                        return (f"call {number} on this group: ranks disagree: " + ", ".join(
                            f"rank {r} has {text.rstrip(bytes(1)).decode(errors='replace')}" for r, text in pair)
                            + "; every rank of a group must make the same calls in the same order")
        return None

    def _write(self, rank: int, slot: int, head: tuple, body: tuple) -> None:
        """The head says that there is an entry, so it goes first and comes last: processes read while others write."""
        block = self._blocks[rank]
        _HEAD.pack_into(block, slot, 0, 0)
        _BODY.pack_into(block, slot + _HEAD.size, *body)
        _HEAD.pack_into(block, slot, *head)

    def _read(self, rank: int, slot: int) -> tuple:
        """(group, number, digest, words); number 0 where there is none, or it changed meanwhile."""
        block = self._blocks[rank]
        head = _HEAD.unpack_from(block, slot)
        body = _BODY.unpack_from(block, slot + _HEAD.size)
        return (*head, *body) if head == _HEAD.unpack_from(block, slot) else (0, 0, *body)

    @staticmethod
    def _differ(mine: tuple, other: tuple) -> bool:
        return mine[:2] == other[:2] and mine[1] != 0 and mine[2] != other[2]

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch and combine of few tokens, whose rows are their own flags: when they are taken, and sizes and room on the host."""
from dataclasses import dataclass
from typing import Any

import torch

from triton_dist.ops.ep.chunks import Chunks, most_chunks
from triton_dist.ops.exchange.sizes import KIB, MIB, VECTOR, power_of_two
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import MAX_PROGRAMS, SelfFlaggedWorkspace, workspace

METHOD = "self_flagged"
KIND = "tokens to experts, self-flagged"  # of the workspace
# "auto" takes it where a rank may send at most this many rows, and this many bytes, to others. On 2 x H200 (hidden 7168, top-8,
# graphs, 1 to 256 tokens) it took 4.7 to 19.0 us for a dispatch in bf16, by "push" 5.3 to 19.4; in fp8 6.6 to 14.5, 6.9 to 14.8;
# and for a combine 3.6 to 15.7, 6.7 to 18.3. A program moves its rows one after the other, so the gain ends where each has many.
# More than 2 ranks have not been measured: there a token counts once for each rank that it may go to.
AUTO_ROWS = 256
AUTO_BYTES = AUTO_ROWS * 14 * KIB
MOST_BYTES = 32 * MIB  # that it carries at most, so that places of words fit int32
MOST_CHOICES = 1 << 15  # of a rank's tokens: the number of one fits 15 bits
MOST_EXPERTS = 1 << 16  # of a rank: the number of one fits 16 bits
MOST_THREADS = 1024  # of a program
MOST_EACH = 1  # vectors that a thread holds at a time
MOST_PARTS = 4  # programs that share a row
TELLERS = 4  # programs that count choices, where rows are ordered by expert
_LEAST_WARPS = 4


class SelfFlaggedRows(SelfFlaggedWorkspace):
    """Slots that are empty between calls, and packets in place of flags; with the epoch of as many programs as others have."""
    control_words = MAX_PROGRAMS


def unserved(row_bytes: int, max_tokens: int, k: int, local_experts: int, group: Group) -> str | None:
    """Why it does not serve such rows, if it does not."""
    if row_bytes % VECTOR or not row_bytes:
        return f"it sends rows of whole vectors of {VECTOR} bytes, found rows of {row_bytes} bytes"
    if group.size * max_tokens * row_bytes > MOST_BYTES:
        return f"it carries at most {MOST_BYTES} bytes, found {group.size} ranks with {max_tokens} rows of {row_bytes} bytes"
    if max_tokens * k >= MOST_CHOICES or local_experts >= MOST_EXPERTS:
        return (f"it carries fewer than {MOST_CHOICES} choices of a rank and {MOST_EXPERTS} experts of a rank, found "
                f"{max_tokens * k} and {local_experts}")
    return None


def pays(row_bytes: int, max_tokens: int, k: int, world: int) -> tuple[bool, str]:
    """(whether "auto" takes it, why), for tokens of k choices. A rank alone moves its own rows alike."""
    rows = max_tokens * max(1, min(k, world - 1))
    if rows > AUTO_ROWS:
        return False, f"up to {rows} rows of a rank are more than {AUTO_ROWS}"
    if rows * row_bytes > AUTO_BYTES:
        return False, f"up to {rows * row_bytes} bytes of rows of a rank are more than {AUTO_BYTES}"
    return True, f"up to {rows} rows of a rank with {row_bytes} bytes each are few"


def serves(row_bytes: int, max_tokens: int, k: int, local_experts: int, group: Group) -> bool:
    """Whether "auto" takes it, inside a node."""
    return (unserved(row_bytes, max_tokens, k, local_experts, group) is None
            and pays(row_bytes, max_tokens, k, group.size)[0])


@dataclass(frozen=True)
class Threads:
    """How programs share rows: `parts` programs a row, each with `pieces` / `parts` pieces of `each` vectors a thread."""
    warps: int
    each: int
    pieces: int
    parts: int

    @property
    def count(self) -> int:
        """Threads of a program."""
        return self.warps * backend().warp_size

    @property
    def options(self) -> dict:
        """Of a kernel."""
        return dict(THREADS=self.count, EACH=self.each, PIECES=self.pieces, PARTS=self.parts, num_warps=self.warps)


def threads_of(chunks: Chunks, vectors: int) -> Threads:
    """For rows of `vectors` vectors: programs as large as a row, and more for each row where there are few rows."""
    lanes, parts = backend().warp_size, 1
    while parts < MOST_PARTS and 2 * parts * chunks.count <= most_chunks() and parts * _LEAST_WARPS * lanes < vectors:
        parts *= 2
    wide = power_of_two(-(-vectors // parts))
    warps = max(_LEAST_WARPS, min(MOST_THREADS, wide) // lanes)
    each = max(1, min(MOST_EACH, wide // (warps * lanes)))
    return Threads(warps, each, -(-vectors // (warps * lanes * each)), parts)


class Slots:
    """Room for rows of `vectors` vectors, and for packets: `told` words of each rank, and `meta` beside each row.

    A half of the packets, int64, holds pairs that tell of chunks [RANKS][PITCH][2], then `told` words [W][told], then
    [W][slot][meta]. A half of the rows holds [W][slot][vector].
    """
    def __init__(self, group: Group, chunks: Chunks, vectors: int, told: int, meta: int):
        self.ranks, self.pitch = power_of_two(group.size), power_of_two(most_chunks())
        self.space: Any = workspace(group, KIND, SelfFlaggedRows)
        packets = 2 * self.ranks * self.pitch + group.size * (told + chunks.slots * meta)
        self.space.reserve(power_of_two(max(64 * KIB, VECTOR * group.size * chunks.slots * vectors)),
                           4 * power_of_two(packets), lambda flag: group.rank)
        words, slots = self.space.flags.view(torch.int64), self.space.data.view(torch.int32)
        self.rest = (words, words.numel() // 2, slots, slots.numel() // 2, self.space.control)


def aligned(t: torch.Tensor) -> torch.Tensor:
    """`t`, a copy of it where its address is no multiple of a vector."""
    return t if t.data_ptr() % VECTOR == 0 else t.clone()

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device pieces of dispatch and combine: which ranks a token goes to, and in which slot its row lies there.

A rank cuts its tokens into chunks of `each` tokens, so that all programs have some. Its rows for a rank, one for each token that
has a choice there, lie in chunks as well: in the order of tokens from slot chunk * each on. So a sender knows its slots from its
own tokens alone. What it tells of a chunk is one word: each << 16 | rows.
"""
import triton
import triton.language as tl

from triton_dist.runtime.workspace import TEAM_DELTAS

_DELTAS = tl.constexpr(TEAM_DELTAS)


@triton.jit
def owners(ids, token, inside, experts, K: tl.constexpr, CHOICES: tl.constexpr, E_LOC: tl.constexpr):
    """int32 [len(token), CHOICES]: the rank of each choice of a token, ids [., K]; -1 for a choice of no expert."""
    choice = tl.arange(0, CHOICES)
    found = tl.load(ids + token.to(tl.int64)[:, None] * K + choice[None, :],
                    mask=inside[:, None] & (choice < K)[None, :],
                    other=-1)
    return tl.where((found >= 0) & (found < experts), found.to(tl.int32) // E_LOC, -1)


@triton.jit
def sent_to(to, rank):
    """int32 [tokens]: 1 where a token has a choice on `rank`."""
    return tl.max((to == rank).to(tl.int32), 1)


@triton.jit
def counts_of(to, WORLD: tl.constexpr, RANKS: tl.constexpr):
    """int32 [RANKS]: how many of the tokens go to each rank."""
    rank = tl.arange(0, RANKS)
    found = tl.zeros((RANKS, ), tl.int32)
    for r in range(WORLD):  # not unrolled: the code would grow with the ranks
        found = tl.where(rank == r, tl.sum(sent_to(to, r), 0), found)
    return found


@triton.jit
def tokens_in(to, rank, slot):
    """int32 [len(slot)]: which token of the chunk lies in each slot of `rank`; 0 where there is none."""
    sent = sent_to(to, rank)
    place = tl.cumsum(sent, 0) - 1
    here = (sent > 0)[None, :] & (place[None, :] == slot[:, None])
    return tl.sum(tl.where(here, tl.arange(0, to.shape[0])[None, :], 0), 1)


@triton.jit
def token_in(to, rank, slot):
    """Which token of the chunk lies in `slot` of `rank`: int32."""
    sent = sent_to(to, rank)
    return tl.sum(tl.where((sent > 0) & (tl.cumsum(sent, 0) - 1 == slot), tl.arange(0, to.shape[0]), 0), 0)


@triton.jit
def four_tokens(to, rank, slot):
    """Which tokens of the chunk lie in `slot` of `rank` and in the three after it: an int64, 16 bits for each; 0 for none.

    One sum for four, since threads meet for each.
    """
    sent = sent_to(to, rank)
    place = tl.cumsum(sent, 0) - 1 - slot
    bits = tl.arange(0, to.shape[0]).to(tl.int64) << 16 * (place & 3)
    return tl.sum(tl.where((sent > 0) & (place >= 0) & (place < 4), bits, 0), 0)


@triton.jit
def token_of(four, i):
    """Token i of `four_tokens`: int32."""
    return ((four >> 16 * (i & 3)) & 0xFFFF).to(tl.int32)


@triton.jit
def token_of_slot(to, rank, slot, ROWS: tl.constexpr):
    """int32 [ROWS]: which tokens of the chunk lie in `slot` of `rank` and in those after it; any where there is none."""
    if ROWS <= 4:
        token = token_of(four_tokens(to, rank, slot), tl.arange(0, ROWS))
    else:
        token = tokens_in(to, rank, slot + tl.arange(0, ROWS))
    return token


@triton.jit
def slots_of(to, rank, token):
    """int32 [len(token)]: the slot of each of these tokens of the chunk on `rank`; -1 for one that does not go there."""
    sent = sent_to(to, rank)
    place = tl.where(sent > 0, tl.cumsum(sent, 0) - 1, -1)
    here = tl.arange(0, to.shape[0])[None, :] == token[:, None]
    return tl.max(tl.where(here, place[None, :], -1), 1)


@triton.jit
def slot_in(to, rank, t, token):
    """(whether token t of the chunk goes to `rank`, the slot of its row there)."""
    sent = sent_to(to, rank)
    return tl.sum(tl.where(token == t, sent, 0), 0) > 0, tl.sum(tl.where(token < t, sent, 0), 0)


@triton.jit
def words_of(told, chunks, WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr):
    """int32 [RANKS, PITCH]: the words of the chunks of each source, of a dispatch's `told`; 0 where there is none."""
    rank, chunk = tl.arange(0, RANKS)[:, None], tl.arange(0, PITCH)[None, :]
    return tl.load(told + 1 + rank * chunks + chunk, mask=(rank < WORLD) & (chunk < chunks), other=0)


@triton.jit
def matrix_of(told, pid):
    """Of int32 told [RANKS, chunks], a word for each source and chunk: what chunk `pid` brings.

    Three int32 [RANKS], by source: rows, the first of them in the order of all (source, then chunk), and their first slot.
    """
    counts = told & 0xFFFF
    chunk = tl.arange(0, counts.shape[1])[None, :]
    total = tl.sum(counts, 1)
    begin = tl.cumsum(total, 0) - total + tl.sum(tl.where(chunk < pid, counts, 0), 1)
    return tl.sum(tl.where(chunk == pid, counts, 0), 1), begin, tl.max(told >> 16, 1) * pid


@triton.jit
def rows_told(told):
    """All rows that int32 words `told` [RANKS, chunks] tell of."""
    return tl.sum(tl.sum(told & 0xFFFF, 1), 0)


@triton.jit
def of(values, i):
    """Element `i` of a vector."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == i, values, 0))


@triton.jit
def distance(team, peer):
    """Bytes from an object in this rank's heap to the same on member `peer`."""
    return tl.load((team + _DELTAS).to(tl.pointer_type(tl.int64), bitcast=True) + peer)


@triton.jit
def floats(words):
    """Pointers to int32 as pointers to fp32."""
    return words.to(tl.pointer_type(tl.float32), bitcast=True)


@triton.jit
def column_of(values, j):
    """Column j of a matrix."""
    return tl.sum(tl.where(tl.arange(0, values.shape[1])[None, :] == j, values, 0), 1)


@triton.jit
def spread(row_at, scales_at, land, there, positions, out, scales_out, row, K: tl.constexpr, CHOICES: tl.constexpr,
           SCALES: tl.constexpr, SCALES_PAD: tl.constexpr, COLS: tl.constexpr):
    """Stores rows, where `there`, at the place of each of their choices in out, and their scales in scales_out.

    row_at, scales_at: pointers to them. land: their numbers among all that came, by which `positions` has places, -1 for none.
    """
    choice, group = tl.arange(0, CHOICES), tl.arange(0, SCALES_PAD)
    places = tl.load(positions + land.to(tl.int64)[:, None] * K + choice[None, :],
                     mask=there[:, None] & (choice < K)[None, :],
                     other=-1)
    for column in range(0, row, COLS):
        cols = column + tl.arange(0, COLS)
        part = tl.load(row_at[:, None] + cols[None, :], mask=there[:, None] & (cols < row)[None, :])
        for j in range(K):
            place = column_of(places, j)
            tl.store(out + place.to(tl.int64)[:, None] * row + cols[None, :],
                     part,
                     mask=(there & (place >= 0))[:, None] & (cols < row)[None, :])
    if SCALES > 0:
        scale = tl.load(scales_at[:, None] + group[None, :], mask=there[:, None] & (group < SCALES)[None, :])
        for j in range(K):
            place = column_of(places, j)
            tl.store(scales_out + place.to(tl.int64)[:, None] * SCALES + group[None, :],
                     scale,
                     mask=(there & (place >= 0))[:, None] & (group < SCALES)[None, :])

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Self-flagged data: 16-byte stores whose words say by themselves that they have arrived.

A 32-bit word of 0 means "empty". A sender stores words that are never 0 (sf_filled makes them so). The receiver polls a slot
until no word of it is 0, takes the words, and empties the slot again (sf_take). So all 16 bytes of a store are data: no flag,
no fence. The rules that make this right are in docs/protocol.md:

1. A sender never stores a word of 0, and only into a slot that is empty.
2. Each slot has one sender a call, and one taker, which empties it in the same call.
3. Slots alternate between two buffers from call to call, and every rank takes something from every peer in each call. So
   when a rank sends into a slot again, it knows that the taker has finished the call in which it emptied the slot.
"""
import triton.language as tl
from triton.language import core

from triton_dist.compat.triton import unwrap_constexpr
from triton_dist.language._call import assembly, helper, primitive
from triton_dist.language._check import pointee_bits, whole_words
from triton_dist.language.abi import TAKE, TRY_TAKE
from triton_dist.language.sync import _true

_TRY_TAKE = tl.constexpr(TRY_TAKE)
_EMPTY_TO = tl.constexpr(-2**31)        # -0.0 in the upper element of two fp16 or bf16, or of one fp32


@core.builtin
def _takes_whole_slots(_semantic=None):
    """Whether the backend has assembly that takes the four words of a slot in one access."""
    return core.constexpr(assembly(_semantic, TAKE) is not None)


@core.builtin
def _takes_in_time(_semantic=None):
    """Whether waits are bounded, and so the backend's assembly stops at the time limit."""
    return core.constexpr(assembly(_semantic, TRY_TAKE) is not None)


@core.builtin
def _sf_take(address, pred, symbol=TAKE, _semantic=None):
    """Polls a slot and empties it, in accesses of 16 bytes: four int32. A call could give only one value."""
    text, constraints = assembly(_semantic, unwrap_constexpr(symbol))
    return core.inline_asm_elementwise(text, constraints, [address, pred], dtype=(core.int32,) * 4, is_pure=False, pack=1,
                                       _semantic=_semantic)


@primitive
def _sf_store(ptr, a, b, c, d, mask):
    pointee_bits("sf_store", ptr, (32, ))
    return "tdist_sf_store", (ptr, a, b, c, d, mask)


@primitive
def _sf_give_up(ptr, mask):
    pointee_bits("sf_take", ptr, (32, ))
    return "tdist_sf_give_up", (ptr, mask)


@primitive
def _sf_take_pair(ptr, mask):
    pointee_bits("sf_take", ptr, (32, ))
    return "tdist_sf_take_pair", (ptr, mask)


@helper
def split_words(words):
    """The four columns of int32 `words` [N, 4], as a tuple of int32 [N]. Moves nothing where a thread holds whole rows."""
    even, odd = tl.split(tl.reshape(words, (words.shape[0], 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@helper
def join_words(a, b, c, d):
    """int32 [N, 4] of four columns [N], the inverse of split_words."""
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (a.shape[0], 4))


@helper
def sf_filled(words):
    """Replaces words of 0, which mark an empty slot, so that floating-point data can be sent by `sf_store`.

    A word of zeros becomes -0.0 in its upper element, which adds and compares as 0. The bits of all other words stay. Data
    whose bits must arrive unchanged cannot be sent like this: use packets (`ll_store`).

    Args:
        words: int32, each the bits of one fp32, or of two fp16 or bf16.

    Returns:
        int32 of the same shape, with no word 0.
    """
    whole_words("sf_filled", words)
    return tl.where(words == 0, _EMPTY_TO, words)


@helper
def sf_plain(words):
    """Undoes `sf_filled`. The only difference: a lower +0.0 beside an upper -0.0 becomes two +0.0.

    A rank that sends a sum keeps `sf_plain` of what it sent, so that all ranks have the same bits.

    Args:
        words: int32 of `sf_filled` or `sf_take`.

    Returns:
        int32 of the same shape.
    """
    return tl.where(words == _EMPTY_TO, 0, words)


@helper
def sf_store(ptr, words, mask):
    """Stores four self-flagged words per element in one 16-byte relaxed store of system scope.

    It needs no barrier or fence, and orders nothing else.

    Args:
        ptr: tensor [N] of pointers to int32, each 16-byte aligned: empty slots, local or a peer's (symm_at).
        words: int32 [N, 4], none of them 0: `sf_filled` of the data.
        mask: bool [N]. Elements where it is false are not stored.
    """
    whole_words("sf_store", words)
    a, b, c, d = split_words(words)
    _sf_store(ptr, a, b, c, d, mask)


@helper
def sf_take(ptr, mask):
    """Polls slots of four words until no word is 0, and empties them. Each thread polls its own elements' slots.

    Where the backend's assembly does it, a warp goes on when all its slots have filled, and its threads go on together.

    The accesses are relaxed: nothing but the slot itself is ordered.

    Args:
        ptr: tensor [N] of pointers to int32, each 16-byte aligned, into this rank's symmetric memory.
        mask: bool [N]. Elements where it is false give 0 and touch nothing.

    Returns:
        int32 [N, 4]: what `sf_store` stored.
    """
    a = tl.zeros(ptr.shape, tl.int32)
    b, c, d = a, a, a
    once = _true()
    # The compiler may repeat an operation to get its result in another layout, assembly too. Not one inside a while loop.
    while once != 0:
        if _takes_in_time():
            a, b, c, d = _sf_take(ptr.to(tl.int64), mask.to(tl.int32), _TRY_TAKE)
            _sf_give_up(ptr, mask & (a == 0))
        elif _takes_whole_slots():
            a, b, c, d = _sf_take(ptr.to(tl.int64), mask.to(tl.int32))
        else:
            low = _sf_take_pair(ptr, mask)
            high = _sf_take_pair(ptr + 2, mask)
            a, b, c, d = low.to(tl.int32), (low >> 32).to(tl.int32), high.to(tl.int32), (high >> 32).to(tl.int32)
        once = 0
    return join_words(a, b, c, d)

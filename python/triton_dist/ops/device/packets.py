# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device pieces of collectives: the epoch that kernels count themselves, and tensors as 64-bit words, the load of two packets."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.reduce import finished, neutral, reduced
from triton_dist.runtime.workspace import MAX_PROGRAMS, TEAM_DELTAS, TEAM_PEERS

_COPIES, _DELTAS, _PEERS = tl.constexpr(MAX_PROGRAMS), tl.constexpr(TEAM_DELTAS), tl.constexpr(TEAM_PEERS)


@triton.jit
def this_epoch(control):
    """The epoch of this call, int32, from this program's copy of that of the last call in `control`, int32 [COPIES].

    0, the content of fresh memory, is no epoch: 2 follows -1, so that halves still alternate.
    """
    epoch = tl.load(control + tl.program_id(0)) + 1
    return tl.where(epoch == 0, 2, epoch)


@triton.jit
def epoch_in_turn(control):
    """this_epoch for a kernel that may be launched before the one ahead of it has ended, which it waits for.

    What is read before is written by no kernel. The next kernel may be launched at once, hence while this one's data travels.
    """
    dl.gdc_wait()
    dl.gdc_launch_dependents()
    return this_epoch(control)


@triton.jit
def count_call(control, epoch, COPIES: tl.constexpr = _COPIES):
    """Every program calls this once, after this_epoch, and advances its own copy of the epoch and its share of the unused ones.

    So all copies are equal between calls, whatever the grids, and no program waits for another as it would with a ticket.
    COPIES: how many there are, which bounds all grids. The stores take time at the end of a short kernel.
    """
    tl.debug_barrier()                          # every thread has read the copy
    copy = tl.program_id(0) + tl.num_programs(0) * tl.arange(0, COPIES)
    tl.store(control + copy, epoch, mask=copy < COPIES)


@triton.jit
def at_member(words, team, member):
    """int64 words of this rank's heap as addresses of the same on `member` of `team`. One load: latency counts here."""
    deltas = (team + _DELTAS).to(tl.pointer_type(tl.int64), bitcast=True)
    return words + (tl.load(deltas + member) >> 3)


@triton.jit
def deltas_of_peers(team, WORLD: tl.constexpr):
    """For each other member of `team`, the one after this one first: int32 words from this rank's heap to that member's."""
    deltas = (team + _PEERS).to(tl.pointer_type(tl.int64), bitcast=True)
    found = ()
    for i in tl.static_range(1, WORLD):
        found = found + (tl.load(deltas + i) >> 2, )
    return found


@triton.jit
def load_words(x, word, mask, n, WHOLE: tl.constexpr):
    """int64 words of x [n], each of 1 to 8 elements: those at `word` where `mask`, 0 beyond the end.

    WHOLE: x consists of whole words and begins at a multiple of 8 bytes, as 8-byte elements always do.
    """
    bits: tl.constexpr = x.dtype.element_ty.primitive_bitwidth
    each: tl.constexpr = 64 // bits
    if WHOLE:
        words = tl.load(x.to(tl.pointer_type(tl.int64), bitcast=True) + word, mask=mask & (word < n // each), other=0)
    else:
        raw = x.to(tl.pointer_type(tl.int8 if bits == 8 else (tl.int16 if bits == 16 else tl.int32)), bitcast=True)
        words = tl.zeros_like(word).to(tl.int64)
        for e in tl.static_range(each):
            at = each * word + e
            part = tl.load(raw + at, mask=mask & (at < n), other=0).to(tl.int64)
            words |= (part & ((1 << bits) - 1)) << (bits * e)
    return words


@triton.jit
def store_words(out, word, mask, n, words, WHOLE: tl.constexpr):
    """Stores int64 `words` into out [n], as load_words reads them."""
    bits: tl.constexpr = out.dtype.element_ty.primitive_bitwidth
    each: tl.constexpr = 64 // bits
    if WHOLE:
        tl.store(out.to(tl.pointer_type(tl.int64), bitcast=True) + word, words, mask=mask & (word < n // each))
    else:
        raw = out.to(tl.pointer_type(tl.int8 if bits == 8 else (tl.int16 if bits == 16 else tl.int32)), bitcast=True)
        for e in tl.static_range(each):
            at = each * word + e
            tl.store(raw + at, (words >> (bits * e)).to(raw.dtype.element_ty), mask=mask & (at < n))


@triton.jit
def packed(values, e, dtype: tl.constexpr):
    """`values`, rounded to `dtype` of 2 to 8 bytes, as element `e` of int64 words that are 0 elsewhere."""
    bits: tl.constexpr = dtype.primitive_bitwidth
    if bits == 64:
        return values.to(tl.int64, bitcast=True)
    else:
        raw = values.to(dtype).to(tl.int16 if bits == 16 else tl.int32, bitcast=True).to(tl.int64)
        return (raw & ((1 << bits) - 1)) << (bits * e)


@triton.jit
def unpacked(words, e, dtype: tl.constexpr):
    """Element `e` of int64 words of `dtype` elements, of the type that `dtype` is reduced in."""
    bits: tl.constexpr = dtype.primitive_bitwidth
    if bits == 64:
        return words.to(dtype, bitcast=True)
    else:
        values = (words >> (bits * e)).to(tl.int16 if bits == 16 else tl.int32).to(dtype, bitcast=True)
        return values.to(tl.float32) if dtype.is_floating() else values


@triton.jit
def reduce_over_ranks(words, dtype: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr, OP: tl.constexpr):
    """The reduction (reduce.py) of each RANKS neighbours of int64 words [THREADS] of `dtype`, in the place of each of them.

    By a tree, with one rounding to `dtype`. Of RANKS neighbours the first WORLD have terms.
    """
    threads: tl.constexpr = words.shape[0]
    total = tl.zeros((threads, ), tl.int64)
    for e in tl.static_range(64 // dtype.primitive_bitwidth):
        terms = unpacked(words, e, dtype)
        if WORLD < RANKS:
            terms = tl.where(tl.arange(0, threads) % RANKS < WORLD, terms, neutral((threads, ), dtype, OP))
        part = reduced(tl.reshape(terms, (threads // RANKS, RANKS)), OP)
        part = tl.reshape(tl.broadcast_to(part, (threads // RANKS, RANKS)), (threads, ))
        total |= packed(finished(part, WORLD, OP), e, dtype)
    return total


@triton.jit
def sum_and_add(words, added, dtype: tl.constexpr, RANKS: tl.constexpr):
    """The sum of each RANKS neighbours of int64 words [THREADS] of fp16, bf16 or fp32, in the place of each of them.

    In fp32, by tl.sum's tree, with one rounding to `dtype`. Before the rounding it adds each of `added`, a tuple of words
    [THREADS] that neighbours have alike.
    """
    threads: tl.constexpr = words.shape[0]
    total = tl.zeros((threads, ), tl.int64)
    for e in tl.static_range(64 // dtype.primitive_bitwidth):
        part = tl.sum(tl.reshape(unpacked(words, e, dtype), (threads // RANKS, RANKS)), 1, keep_dims=True)
        part = tl.reshape(tl.broadcast_to(part, (threads // RANKS, RANKS)), (threads, ))
        for i in tl.static_range(len(added)):
            part += unpacked(added[i], e, dtype)
        total |= packed(part, e, dtype)
    return total

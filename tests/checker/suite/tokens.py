# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Waits in loops: Triton's pipeliner hoists loads over a wait unless they depend on its token (rule 2)."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

from .common import N, filled, flags, meet, pairs, symm
from .registry import case


@triton_dist.jit
def send_pieces(x, buffer, flag, PIECES: tl.constexpr, N: tl.constexpr, EVERY: tl.constexpr = 1):
    i = tl.arange(0, N)
    for piece in range(PIECES):
        tl.store(dl.symm_at(buffer, 1) + piece * N + i, tl.load(x + piece * N + i))  # FAULT
        if piece % EVERY == EVERY - 1:
            dl.notify(flag + piece, 1)


@triton_dist.jit
def sum_pieces(buffer, flag, out, HOW: tl.constexpr, PIECES: tl.constexpr, N: tl.constexpr):
    """out [N] = the sum of the pieces, each behind its flag."""
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    before = 0
    for piece in tl.range(0, PIECES, num_stages=3):
        token = dl.wait(flag + piece, 1, "sys", "acquire")
        if HOW == "no-token":
            total += tl.load(buffer + piece * N + i)  # FAULT no-token
        elif HOW == "old-token":
            total += tl.load(dl.consume_token(buffer, before) + piece * N + i)  # FAULT old-token
        elif HOW == "other-load":
            total += tl.load(dl.consume_token(buffer, token) + piece * N + i)
            total += 0 * tl.load(buffer + piece * N + i)  # FAULT other-load
        elif HOW == "offset":
            total += tl.load(buffer + dl.consume_token(piece, token) * N + i)
        elif HOW == "block":
            total += tl.load(dl.consume_token(buffer + piece * N + i, token))
        else:
            total += tl.load(dl.consume_token(buffer, token) + piece * N + i)
        before = token
    tl.store(out + i, total)


@case("token/loop")
@case("token/loop-token-on-the-offset", how="offset")
@case("token/loop-token-on-the-pointers", how="block")
@case("token/loop-no-token", "race", how="no-token", twin="token/loop",
      why="Nothing ties the load to the wait, so the pipeliner issues it before.")
@case("token/loop-token-of-the-last-round", "race", how="old-token", twin="token/loop",
      why="The load depends on the wait of the round before, not on its own.")
@case("token/loop-second-load-untied", "race", how="other-load", twin="token/loop",
      why="One of two loads of the loop does not use the token.")
def loop(rank, how):
    """Rank 1 sums pieces in a pipelined loop and waits in it for each piece's flag."""
    buffer, flag, out = symm(4 * N), flags(), filled(-1.0)
    if rank == 0:
        send_pieces[(1, )](torch.arange(4.0).repeat_interleave(N), buffer, flag, PIECES=4, N=N)
    else:
        sum_pieces[(1, )](buffer, flag, out, HOW=how, PIECES=4, N=N)
    meet()
    return pairs((out, 6 if rank else -1))


@triton_dist.jit
def sum_under_if(buffer, flag, out, HOW: tl.constexpr, PIECES: tl.constexpr, N: tl.constexpr):
    """A flag covers two pieces: the wait is in an `if` of the loop."""
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for piece in tl.range(0, PIECES, num_stages=3):
        token = 0
        if piece % 2 == 0:
            token = dl.wait(flag + piece + 1, 1, "sys", "acquire")
        if HOW == "no-token":
            total += tl.load(buffer + piece * N + i)  # FAULT
        else:
            total += tl.load(dl.consume_token(buffer, token) + piece * N + i)
    tl.store(out + i, total)


@case("token/wait-under-if")
@case("token/wait-under-if-no-token", "race", how="no-token", twin="token/wait-under-if",
      why="The load is tied to no wait, in rounds with and without one.")
def under_if(rank, how):
    """One flag, and one wait, for two pieces."""
    buffer, flag, out = symm(4 * N), flags(), filled(-1.0)
    if rank == 0:
        send_pieces[(1, )](torch.arange(4.0).repeat_interleave(N), buffer, flag, PIECES=4, N=N, EVERY=2)
    else:
        sum_under_if[(1, )](buffer, flag, out, HOW=how, PIECES=4, N=N)
    meet()
    return pairs((out, 6 if rank else -1))


@triton_dist.jit
def wait_then_loop(buffer, flag, out, PIECES: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    dl.wait(flag, PIECES, "sys", "acquire")
    total = tl.zeros([N], tl.float32)
    for piece in tl.range(0, PIECES, num_stages=3):
        total += tl.load(buffer + piece * N + i)
    tl.store(out + i, total)


@case("token/wait-before-the-loop")
def before_the_loop(rank):
    """All flags are waited for before the loop: program order holds there, and no token is needed."""
    buffer, flag, out = symm(4 * N), flags(), filled(-1.0)
    if rank == 0:
        send_pieces[(1, )](torch.arange(4.0).repeat_interleave(N), buffer, flag, PIECES=4, N=N)
    else:
        wait_then_loop[(1, )](buffer, flag, out, PIECES=4, N=N)
    meet()
    return pairs((out, 6 if rank else -1))


@triton_dist.jit
def dot_pieces(w, buffer, flag, out, HOW: tl.constexpr, PIECES: tl.constexpr, B: tl.constexpr):
    """out [B, B] = the sum over pieces of w @ piece: a GEMM whose operand arrives piece by piece."""
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    acc = tl.zeros([B, B], tl.float32)
    for piece in range(PIECES):
        token = dl.wait(flag + piece, 1, "sys", "acquire")
        base = buffer
        if HOW != "no-token":
            base = dl.consume_token(buffer, token)
        acc = tl.dot(tl.load(w + i * B + j), tl.load(base + piece * B * B + i * B + j), acc)  # FAULT
    tl.store(out + i * B + j, acc)


@case("token/gemm-loop")
@case("token/gemm-loop-no-token", "race", how="no-token", twin="token/gemm-loop",
      why="Loads that feed a dot are pipelined, and these do not depend on the wait.")
def gemm_loop(rank, how):
    """The K loop of a GEMM waits for each block of its operand; num_stages=3 pipelines it."""
    buffer, flag, out = symm(3 * 256), flags(), filled(-1.0, 256)
    if rank == 0:
        send_pieces[(1, )](torch.arange(3.0).repeat_interleave(256), buffer, flag, PIECES=3, N=256)
    else:
        dot_pieces[(1, )](torch.eye(16), buffer, flag, out, HOW=how, PIECES=3, B=16, num_stages=3)
    meet()
    return pairs((out, 3 if rank else -1))


@triton_dist.jit
def store_in_loop(buffer, credit, PIECES: tl.constexpr, N: tl.constexpr):
    """Waits for a credit before each store: stores are never hoisted, so no token is needed."""
    i = tl.arange(0, N)
    for piece in tl.range(0, PIECES, num_stages=3):
        dl.wait(credit + piece, 1, "sys", "acquire")
        tl.store(dl.symm_at(buffer, 1) + piece * N + i, tl.zeros([N], tl.float32) + 8)


@triton_dist.jit
def read_and_credit(buffer, credit, out, PIECES: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    for piece in range(PIECES):
        tl.store(out + piece * N + i, tl.load(buffer + piece * N + i))
        dl.notify(credit + piece, 0)


@case("token/store-in-loop")
def stores(rank):
    """Rank 1 reads old pieces and gives credits; rank 0 waits for them in its loop and stores new ones."""
    buffer, credit, out = symm(3 * N), flags(), filled(-1.0, 3 * N)
    if rank == 0:
        store_in_loop[(1, )](buffer, credit, PIECES=3, N=N)
    else:
        read_and_credit[(1, )](buffer, credit, out, PIECES=3, N=N)
    meet()
    return pairs((out, 0 if rank else -1), (buffer, 8 if rank else 0))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels whose generated code the compile tests read. Each exercises one thing."""
import triton.language as tl
from triton.experimental.gluon import language as gl

import triton_dist.language as dl
from triton_dist.language.selfflag import _sf_give_up, _sf_store, _sf_take_pair
from triton_dist.runtime.jit import gluon_jit, jit


@jit
def waits(flags32, flags64, n, value, scope: tl.constexpr, semantic: tl.constexpr):
    """Both widths and comparisons of one scope and semantic."""
    token = dl.wait(flags32, n, scope, semantic, value)
    token += dl.wait(flags32, n, scope, semantic, value, "ge")
    token += dl.wait(flags64, n, scope, semantic, value)
    token += dl.wait(flags64, n, scope, semantic, value, cmp="ge")
    return token


@jit
def fences(scope: tl.constexpr):
    """Every fence of one scope."""
    dl.fence("acquire", scope)
    dl.fence("release", scope)
    dl.fence("acq_rel", scope)


@jit
def signals(flags32, flags64, value, scope: tl.constexpr):
    """Every warp-level notify of one scope."""
    dl.notify_warp(flags32, value, "set", scope)
    dl.notify_warp(flags32, value, "add", scope)
    dl.notify_warp(flags64, value, "set", scope)
    dl.notify_warp(flags64, value, "add", scope)


@jit
def notifies(flags32, flags64, value, comm_scope: tl.constexpr):
    """Every notify of one scope."""
    dl.notify(flags32, 0, value, "set", comm_scope)
    dl.notify(flags32, 0, value, "add", comm_scope)
    dl.notify(flags64, 0, value, "set", comm_scope)
    dl.notify(flags64, 0, value, "add", comm_scope)


@jit
def self_flagged_rows(flags32, flags64, packets, out, n, value, BLOCK: tl.constexpr):
    """Calls the device functions of self-flagged stores; `every_row` calls all others."""
    offsets = tl.arange(0, BLOCK)
    words = flags32 + 4 * offsets
    _sf_store(words, offsets, offsets, offsets, offsets, offsets < n)
    _sf_give_up(words, offsets < n)
    tl.store(out + offsets, _sf_take_pair(words, offsets < n).to(tl.int32))


@jit
def every_row(flags32, flags64, packets, out, n, value, BLOCK: tl.constexpr):
    """Calls every device function of the runtime, but for those of self_flagged_rows."""
    token = waits(flags32, flags64, n, value, "gpu", "acquire")
    token += waits(flags32, flags64, n, value, "sys", "acquire")
    token += waits(flags32, flags64, n, value, "gpu", "relaxed")
    token += waits(flags32, flags64, n, value, "sys", "relaxed")
    fences("gpu")
    fences("sys")
    signals(flags32, flags64, value, "gpu")
    signals(flags32, flags64, value, "sys")
    notifies(flags32, flags64, value, "gpu")
    notifies(flags32, flags64, value, "intra_node")
    offsets = tl.arange(0, BLOCK)
    peer = (dl.rank() + 1) % dl.num_ranks()
    dl.ll_store(dl.symm_at(packets, peer) + offsets, offsets, value, offsets < n)
    data = dl.ll_load(packets + offsets, value)
    dl.ll_store_pair(dl.symm_at(packets, peer) + 2 * offsets, data.to(tl.int64), value, offsets < n)
    data += dl.ll_load_pair(packets + 2 * offsets, value).to(tl.int32)
    dl.barrier_all()
    dl.prefetch(packets + offsets, offsets < n)
    dl.gdc_wait()
    dl.gdc_launch_dependents()
    tl.store(dl.consume_token(out, token) + offsets, data)


@jit
def load_after_wait(x, flag, out, n, SCOPE: tl.constexpr, SEMANTIC: tl.constexpr, CMP: tl.constexpr,
                    BLOCK: tl.constexpr):
    """One wait, then a load that depends on it."""
    token = dl.wait(flag, n, SCOPE, SEMANTIC, 3, CMP)
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(dl.consume_token(x, token) + offsets))


@jit
def copy_to_peer(x, symmetric, flag, rank, SIG_OP: tl.constexpr, COMM_SCOPE: tl.constexpr, BLOCK: tl.constexpr):
    """Stores to a peer, then tells it."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dl.symm_at(symmetric, rank) + offsets, tl.load(x + offsets))
    dl.notify(flag, rank, 7, SIG_OP, COMM_SCOPE)


@jit
def gemm_wait_once(a, b, c, flag, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """A pipelined GEMM that waits before its K loop."""
    token = dl.wait(flag + tl.program_id(0), 1, "sys", "acquire", 5, "ge")
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    pa = dl.consume_token(a, token) + rows[:, None] * K + k[None, :]
    pb = b + cols[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, K, BLOCK_K):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += BLOCK_K
        pb += BLOCK_K
    tl.store(c + rows[:, None] * N + cols[None, :], acc.to(c.dtype.element_ty))


@jit
def gemm_wait_in_loop(a, b, c, flag, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """A pipelined GEMM that waits in every step of its K loop."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        token = dl.wait(flag + start // BLOCK_K, 1, "sys", "acquire", 5, "ge")
        pa = dl.consume_token(a, token) + start + rows[:, None] * K + k[None, :]
        pb = dl.consume_token(b, token) + start + cols[None, :] * K + k[:, None]
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
    tl.store(c + rows[:, None] * N + cols[None, :], acc.to(c.dtype.element_ty))


@jit
def descriptor_in_loop(a, b, out, flags, N, B: tl.constexpr, WHEN: tl.constexpr):
    """A product over a loop, in which a descriptor is tied to a wait: in every turn, in the first one, or never."""
    left = tl.make_tensor_descriptor(a, [N, B], [B, 1], [64, B])
    right = tl.make_tensor_descriptor(b, [N, B], [B, 1], [64, B])
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(0, N // 64):
        if WHEN == "every turn":
            left = dl.consume_token(left, dl.wait(flags + i, 1, "sys", "acquire"))
        elif WHEN == "first turn":
            if i == 0:
                left = dl.consume_token(left, dl.wait(flags, 1, "sys", "acquire"))
        acc = tl.dot(left.load([i * 64, 0]), right.load([i * 64, 0]), acc)
    o = tl.arange(0, 64)
    tl.store(out + o[:, None] * 64 + o[None, :], acc)


@jit
def block_pointer_in_loop(a, b, out, flags, N, B: tl.constexpr, WHEN: tl.constexpr):
    """The same with a block pointer, tied in every turn; b is not used."""
    left = tl.make_block_ptr(a, (N, B), (B, 1), (0, 0), (64, B), (1, 0))
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(0, N // 64):
        left = dl.consume_token(left, dl.wait(flags + i, 1, "sys", "acquire"))
        tile = tl.load(left)
        acc = tl.dot(tile, tile, acc)
        left = tl.advance(left, (64, 0))
    o = tl.arange(0, 64)
    tl.store(out + o[:, None] * 64 + o[None, :], acc)


@jit
def descriptor_after_wait(x, flag, out, M, N, BLOCK: tl.constexpr):
    """A tensor descriptor tied to a wait, used for a load and a store."""
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BLOCK, BLOCK])
    token = dl.wait(flag, 1, "sys", "acquire", 1)
    block = dl.consume_token(source, token).load([tl.program_id(0) * BLOCK, 0])
    dl.consume_token(target, token).store([tl.program_id(0) * BLOCK, 0], block)


@jit
def consume_kinds(x, flag, out, BLOCK: tl.constexpr):
    """consume_token on everything it accepts but descriptors."""
    token = dl.wait(flag, 1, "gpu", "acquire", 1)
    offsets = tl.arange(0, BLOCK)
    pointers = dl.consume_token(x + offsets, token)
    coordinate = dl.consume_token(tl.program_id(0), token)
    wide = dl.consume_token(tl.program_id(0).to(tl.int64), token)
    narrow = dl.consume_token(offsets.to(tl.int8), token)
    number = dl.consume_token(tl.load(pointers + coordinate + wide), token)
    tl.static_assert(number.dtype == x.dtype.element_ty)
    tl.static_assert(narrow.dtype == tl.int8)
    literal = dl.consume_token(4, token)
    per_element = dl.consume_token(out, tl.load(flag + offsets))
    tl.store(per_element + offsets, number + narrow.to(tl.float32) + literal)


@jit
def team_ring(team, symmetric, flag, out, BLOCK: tl.constexpr):
    """Translation through a team instead of the world."""
    successor = dl.team_world_rank(team, (dl.team_rank(team) + 1) % dl.team_size(team))
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(dl.symm_at(symmetric + offsets, successor)))
    dl.notify(flag, successor, comm_scope="intra_node")


@jit
def world_barrier(out):
    """The world barrier alone."""
    dl.barrier_all()
    tl.store(out, dl.rank())


@gluon_jit
def gluon_default(x, symmetric, rank, layout: gl.constexpr):
    """Default partition: plain work beside the signalling one."""
    offsets = gl.arange(0, 128, layout=layout)
    gl.store(dl.symm_at(symmetric, rank) + offsets, gl.load(x + offsets))


@gluon_jit
def gluon_signaller(flag, rank):
    """Worker partition of one warp: waits, then releases to a peer."""
    dl.wait(flag, 1, "sys", "acquire", 5, "ge")
    dl.fence("release", "gpu")
    dl.notify_warp(dl.symm_at(flag + 1, rank), 6)


@gluon_jit
def gluon_partitions(x, symmetric, flag, rank):
    """Primitives inside warp-specialised partitions."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    gl.warp_specialize([(gluon_default, (x, symmetric, rank, layout)), (gluon_signaller, (flag, rank))], [1], [24])


@jit
def waits_elsewhere(flag):
    """A helper that waits."""
    return dl.wait(flag + 1, 1, "sys", "acquire", 1)


@jit
def waits_in_two_places(flag, out):
    """Three waits that stand on three lines."""
    token = dl.wait(flag, 1, "sys", "acquire", 1)
    token += waits_elsewhere(flag)
    dl.barrier_all()
    tl.store(out, token)

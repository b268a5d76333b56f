# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gluon kernels for Hopper between ranks: TMA stores into a peer's memory, flags behind them, TMA loads of what has come."""
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

import triton_dist.language as dl
from triton_dist import peer_tensor
from triton_dist.cores.hopper.hopper_prims import fence_proxy_async, flush_tma_stores, tma_load, tma_store
from triton_dist.runtime.jit import gluon_jit

from .common import flags, meet, pairs, symm
from .gluon_ring import desc
from .registry import case

ONE_WARP = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [1, 1], [1, 0]))


# -- one warp does all -------------------------------------------------------------------------------------------------
@gluon_jit(do_not_specialize=["value", "epoch"])
def exchange(there, here, target, flag, peer_flag, value, epoch, HOW: gl.constexpr):
    """Stores a tile of `value` to `there` by TMA, signals, waits, and copies the tile that has come `here` to `target`."""
    box = gl.allocate_shared_memory(here.dtype, here.block_type.shape, here.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    box.store(gl.full([16, 32], 0, gl.float32, layout=ONE_WARP) + value)
    fence_async_shared()
    tma_store(there, [0, 0], box)  # FAULT
    if HOW == "read-only-wait":
        tma.store_wait(pendings=0)
    elif HOW == "flag-first":
        dl.notify_warp(peer_flag, epoch)
        flush_tma_stores()
    else:
        flush_tma_stores()
    if HOW != "flag-first":
        if HOW == "gpu-flag":
            dl.notify_warp(peer_flag, epoch, "set", "gpu")
        else:
            dl.notify_warp(peer_flag, epoch)
    if HOW == "relaxed":
        token = dl.wait(flag, 1, "sys", "relaxed", epoch, "ge")
    elif HOW == "old":
        token = dl.wait(flag, 1, "sys", "acquire", epoch - 1, "ge")
    else:
        token = dl.wait(flag, 1, "sys", "acquire", epoch, "ge")
    if HOW != "no-proxy-fence":
        fence_proxy_async(token)
    mbarrier.expect(bar, here.block_type.nbytes)
    tma_load(here, [0, 0], bar, box)  # FAULT
    mbarrier.wait(bar, 0)
    tma_store(target, [0, 0], box)
    tma.store_wait(pendings=0)


@case("gluon/exchange", classes=("gluon", "proxy"))
@case("gluon/flag-behind-a-store-that-is-only-read", "race", how="read-only-wait", twin="gluon/exchange",
      classes=("gluon", "proxy"),
      why="store_wait says that shared memory has been read, not that the peer's memory is written (rule 1).")
@case("gluon/flag-before-the-flush", "race", how="flag-first", twin="gluon/exchange", classes=("gluon", "proxy"),
      why="The flag is released before the TMA store is complete.")
@case("gluon/flag-at-gpu-scope", "race", how="gpu-flag", twin="gluon/exchange", classes=("gluon", "proxy"),
      why="The flag is for another device.")
@case("gluon/no-proxy-fence-behind-the-wait", "race", how="no-proxy-fence", twin="gluon/exchange", classes=("gluon", "proxy"),
      why="TMA reads by the async proxy, for which the acquire alone does nothing (rule 2).")
@case("gluon/relaxed-wait", "race", how="relaxed", twin="gluon/exchange", classes=("gluon", "proxy"),
      why="A relaxed poll and a proxy fence make no acquire.")
@case("gluon/wait-one-epoch-behind", "race", how="old", twin="gluon/exchange", classes=("gluon", "epoch"),
      why="The wait passes on the flag of the call before.")
def one_warp(rank, how):
    """Two ranks exchange tiles by TMA over double buffers, three calls; every kernel is one program of one warp."""
    buffer, flag = symm(2, 16, 32), flags(1)
    there, peer_flag = peer_tensor(buffer, 1 - rank), peer_tensor(flag, 1 - rank)
    target = [torch.full((16, 32), -1.0) for _ in range(3)]
    for epoch in (1, 2, 3):
        half = epoch & 1
        exchange[(1, )](desc(there[half], 16, 32), desc(buffer[half], 16, 32), desc(target[epoch - 1], 16, 32), flag, peer_flag,
                        10.0 * epoch + rank, epoch, HOW=how, num_warps=1)
    meet()
    return pairs(*((got, 10 * epoch + 1 - rank) for epoch, got in enumerate(target, 1)))


# -- roles -------------------------------------------------------------------------------------------------------------
@gluon.jit
def _make(staging, filled, free, tiles, HOW: gl.constexpr):
    for t in range(tiles):
        if HOW != "not-free":
            mbarrier.wait(free, (t & 1) ^ 1)
        staging.store(gl.full([16, 32], 0, gl.float32, layout=_FOUR_WARPS) + t)  # FAULT not-free, no-shared-fence, freed-early
        if HOW != "no-shared-fence":
            fence_async_shared()
        mbarrier.arrive(filled, count=1)  # FAULT not-free


@gluon.jit
def _send(there, peer_flags, staging, filled, free, tiles, HOW: gl.constexpr):
    for t in range(tiles):
        mbarrier.wait(filled, t & 1)  # FAULT not-free
        tma_store(there, [t * 16, 0], staging)  # FAULT
        if HOW == "freed-early":
            mbarrier.arrive(free, count=1)
            tma.store_wait(pendings=0)
        else:
            tma.store_wait(pendings=0)
            mbarrier.arrive(free, count=1)
        if HOW != "no-flush":
            flush_tma_stores()
        dl.notify_warp(peer_flags + t, 1)


@gluon.jit
def _receive(here, target, flags_here, box, bar, tiles, HOW: gl.constexpr):
    for t in range(tiles):
        if HOW == "waits-once":
            if t == 0:
                fence_proxy_async(dl.wait(flags_here, 1, "sys", "acquire"))
        elif HOW == "one-behind":
            fence_proxy_async(dl.wait(flags_here + gl.maximum(t - 1, 0), 1, "sys", "acquire"))
        else:
            fence_proxy_async(dl.wait(flags_here + t, 1, "sys", "acquire"))
        mbarrier.expect(bar, here.block_type.nbytes)
        tma_load(here, [t * 16, 0], bar, box)  # FAULT one-behind, no-flush, waits-once
        mbarrier.wait(bar, t & 1)
        tma_store(target, [t * 16, 0], box)
        tma.store_wait(pendings=0)
    if HOW == "waits-once" or HOW == "one-behind":
        dl.wait(flags_here, tiles, "sys", "acquire")


_FOUR_WARPS = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))


@gluon_jit
def pipeline(there, here, target, flags_here, peer_flags, tiles, HOW: gl.constexpr):
    """A partition makes tiles, one sends them to the peer, one takes what comes from the peer."""
    staging = gl.allocate_shared_memory(here.dtype, here.block_type.shape, here.layout)
    box = gl.allocate_shared_memory(here.dtype, here.block_type.shape, here.layout)
    bars = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(3):
        mbarrier.init(bars.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize([(_make, (staging, bars.index(0), bars.index(1), tiles, HOW)),
                        (_send, (there, peer_flags, staging, bars.index(0), bars.index(1), tiles, HOW)),
                        (_receive, (here, target, flags_here, box, bars.index(2), tiles, HOW))], [1, 1], [24, 24])


@case("gluon/pipeline", classes=("gluon", "proxy"))
@case("gluon/staging-freed-while-a-store-reads", "race", how="freed-early", twin="gluon/pipeline",
      why="The buffer is handed back before the TMA store has read it.")
@case("gluon/staging-not-waited-for", "race", how="not-free", twin="gluon/pipeline", also=("barrier-misuse", "deadlock"),
      why="The next tile goes into the staging buffer without asking whether it is free.")
@case("gluon/staging-without-proxy-fence", "race", how="no-shared-fence", twin="gluon/pipeline", classes=("gluon", "proxy"),
      why="The arrival orders threads; TMA also needs the proxy fence of the thread that stored.")
@case("gluon/tile-signalled-before-it-has-landed", "race", how="no-flush", twin="gluon/pipeline", classes=("gluon", "proxy"),
      why="The flag is set when the store has read shared memory, and the peer's memory may not be written.")
@case("gluon/flag-of-the-tile-before", "race", how="one-behind", twin="gluon/pipeline",
      why="A tile is loaded behind the flag of the one before.")
@case("gluon/one-wait-for-all-tiles", "race", how="waits-once", twin="gluon/pipeline",
      why="Only the first tile's flag is waited for.")
def roles(rank, how):
    """Two ranks send each other four tiles: maker, sender and receiver partitions."""
    buffer, words, target = symm(64, 32), flags(4), torch.full((64, 32), -1.0)
    pipeline[(1, )](desc(peer_tensor(buffer, 1 - rank), 16, 32), desc(buffer, 16, 32), desc(target, 16, 32), words,
                    peer_tensor(words, 1 - rank), 4, HOW=how, num_warps=4)
    meet()
    return pairs((target, torch.arange(4.0).repeat_interleave(16)[:, None].expand(64, 32)))

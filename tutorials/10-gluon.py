# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A Gluon kernel
==============

.. code-block:: bash

    bash launch.sh 10-gluon.py

Gluon is Triton with layouts and warps in your own hands. Signals and peers' addresses work in it as well, with one rule: in a
partition of warps there is no barrier of the program to lean on, so signals are sent by warps (`dl.notify_warp`). In this
tutorial you will write an all-reduce in which one warp does everything: it sends its block to every peer, waits for the blocks of
the peers, and sums them.
"""
import torch
from triton.experimental.gluon import language as gl

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.groups import resolve
from triton_dist.testing import milliseconds, plot

# %%
# The kernel
# ----------
#
# A layout says which thread holds which element: 32 threads, 4 adjacent elements each, again and again until the block is
# full. It is the same for loads and stores, so nothing is exchanged between threads. `dl.notify_warp` is a barrier of the warp
# and then a release by its first thread: all that the warp has stored is there before the flag.
#
# The halves of the inbox take turns: a peer may be a call ahead, and cannot be two, since every call waits for all. A half has
# `room` elements for each rank, so that its place does not depend on n.


@triton_dist.gluon_jit(do_not_specialize=["call"])
def all_reduce(x, inbox, flags, out, n, room, call, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    me, world, part = dl.rank(), dl.num_ranks(), gl.program_id(0)
    offsets = part * BLOCK + gl.arange(0, BLOCK, layout)
    half = inbox + call % 2 * world * room
    mine = gl.load(x + offsets, mask=offsets < n, other=0.0)
    for hop in range(world):
        peer = (me + hop) % world
        gl.store(dl.symm_at(half, peer) + me * room + offsets, mine, mask=offsets < n)
        dl.notify_warp(dl.symm_at(flags, peer) + part * world + me, call)
    dl.wait(flags + part * world, world, "sys", "acquire", call, "ge")
    total = gl.zeros([BLOCK], gl.float32, layout)
    for rank in range(world):
        total += gl.load(half + rank * room + offsets, mask=offsets < n, other=0.0)
    gl.store(out + offsets, total, mask=offsets < n)


# %%
# A check and a plot
# ------------------
#
# .. image:: /tutorial_plots/10-gluon.png
#    :alt: milliseconds of an all-reduce over its bytes


def main() -> None:
    triton_dist.initialize_distributed()
    group, device = resolve(), triton_dist.device()
    on_gpu = device.type == "cuda"
    sizes, block = ([1 << shift for shift in (10, 13, 16)], 512) if on_gpu else ([256, 1024], 256)
    programs = -(-sizes[-1] // block)
    inbox = triton_dist.create_symm_tensor((2 * group.size * sizes[-1],), torch.float32, name="inbox")
    flags, calls = triton_dist.create_symm_tensor((programs * group.size,), torch.int32, name="block is there"), [0]

    def reduce(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        out = torch.empty_like(x)
        all_reduce[(programs,)](x, inbox, flags, out, x.numel(), sizes[-1], calls[0], BLOCK=block, num_warps=1)
        return out

    right, times = 0, []
    for n in sizes:
        for turn in range(2):
            x = torch.arange(n, dtype=torch.float32, device=device) + 1000 * turn + group.rank
            out = reduce(x)
            triton_dist.synchronize()
            right += torch.equal(out, group.size * (x - group.rank) + group.size * (group.size - 1) / 2)
        times.append(milliseconds(lambda: reduce(x), group, 20 if on_gpu else 1))
    print(f"rank {group.rank}: {right} of {2 * len(sizes)} sums are right", flush=True)
    plot("10-gluon", [4 * n for n in sizes], {"one warp a block": times}, group, "bytes")
    triton_dist.finalize_distributed()
    raise SystemExit(right != 2 * len(sizes))


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/10-gluon.png'

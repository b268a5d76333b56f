# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""An all-reduce of packets
========================

.. code-block:: bash

    bash launch.sh 12-packets.py

A signal after data costs a fence, which waits until the data has arrived. A small all-reduce that is called again and again
should not pay for it. You will write one in which

* data travels in packets: an int64 word holds 32 bits of data and the number of the call. Both are written and read as one, so a
  rank that sees the number has the data, and needs no signal;
* launches overlap: a kernel may start while the one before it still runs.
"""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist import ops
from triton_dist.runtime.groups import resolve
from triton_dist.testing import milliseconds, plot

N, BLOCK, CALLS = 1000, 256, 5

# %%
# The kernel
# ----------
#
# It computes out [n] = sum over ranks of x [n] in fp32, in rank order. `packets` is int64 [2][rank][room], where
# `room` is the largest n of any call. So the two halves have the same places in all calls. Calls count from 1, since fresh memory
# is 0. The halves take turns: what a slow rank still reads in call c is overwritten in call c + 2 at the earliest. No rank gets
# there before all ranks have sent call c + 1, and a rank that has sent it has read call c.
#
# With `launch_pdl` a kernel may start early. It waits by `gdc_wait` for the one before it, before it touches anything. This needs
# an NVIDIA GPU from sm_90 on; elsewhere the option and both calls do nothing.


@triton_dist.jit(do_not_specialize=["call"])          # or a number such as 16 would be compiled for itself
def all_reduce(x, packets, out, call, n, room, BLOCK: tl.constexpr):
    dl.gdc_wait()
    dl.gdc_launch_dependents()
    me, world = dl.rank(), dl.num_ranks()
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    half = packets + (call & 1) * world * room
    mine = tl.load(x + offsets, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    for hop in range(world):
        peer = (me + hop) % world
        dl.ll_store(dl.symm_at(half, peer) + me * room + offsets, mine, call, mask=inside)
    total = tl.zeros((BLOCK,), tl.float32)
    for source in range(world):
        total += dl.ll_load(half + source * room + offsets, call, mask=inside).to(tl.float32, bitcast=True)
    tl.store(out + offsets, total, mask=inside)


# %%
# A check and a plot
# ------------------
#
# .. image:: /tutorial_plots/12-packets.png
#    :alt: milliseconds of an all-reduce over its bytes, of these packets and of ops.all_reduce


def main() -> None:
    triton_dist.initialize_distributed()
    group, device = resolve(), triton_dist.device()
    rank, world = group.rank, group.size
    packets = triton_dist.create_symm_tensor((2, world, N), torch.int64, name="packets")
    inputs = [torch.arange(N, dtype=torch.float32, device=device) + 100 * call + rank for call in range(1, CALLS + 1)]
    sums = [torch.empty(N, device=device) for _ in inputs]
    for call, (x, total) in enumerate(zip(inputs, sums), 1):
        all_reduce[(-(-N // BLOCK),)](x, packets, total, call, N, N, BLOCK=BLOCK, launch_pdl=True)
    triton_dist.synchronize()
    right = sum(torch.equal(total, world * (x - rank) + world * (world - 1) / 2) for x, total in zip(inputs, sums))
    print(f"rank {rank}: {right} of {CALLS} sums are right", flush=True)

    sizes, times, call = [N // 4, N // 2, N], {"packets": [], "ops.all_reduce": []}, CALLS
    for n in sizes:
        x, out = inputs[0][:n], torch.empty(n, device=device)

        def packed(x=x, out=out, n=n) -> None:
            nonlocal call
            call += 1
            all_reduce[(-(-n // BLOCK),)](x, packets, out, call, n, N, BLOCK=BLOCK, launch_pdl=True)

        times["packets"].append(milliseconds(packed, group, 20 if device.type == "cuda" else 1))
        times["ops.all_reduce"].append(milliseconds(lambda x=x: ops.all_reduce(x), group, 20 if device.type == "cuda" else 1))
    plot("12-packets", [4 * n for n in sizes], times, group, "bytes")
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/12-packets.png'

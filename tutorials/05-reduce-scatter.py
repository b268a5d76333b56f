# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A reduce-scatter, in a node and between nodes
=============================================

.. code-block:: bash

    bash launch.sh 05-reduce-scatter.py
    TRITON_DIST_NODES=2x2 bash launch.sh --nproc_per_node 4 05-reduce-scatter.py

Every rank has a row for each rank; rank r wants the sum of all rows for r. You will write

* a pull: each rank loads its row from every peer and sums, in one order on all ranks, so that results repeat bit by bit,
* a ring: a partial sum visits all ranks, so that each link carries a row once,

and call `triton_dist.ops.reduce_scatter_2d`, which sums inside each node first and sends one sum a node over the network.
"""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist import ops
from triton_dist.runtime.groups import resolve
from triton_dist.testing import milliseconds, plot

# %%
# Pull
# ----
#
# A row may be loaded once its owner has stored it: every program meets its peers by `ready` first. It tells them when it has
# read, and waits until all have, since the owners may then overwrite their rows. Flags hold the number of the call.


@triton_dist.jit(do_not_specialize=["call"])
def pull(rows, out, ready, done, n, call, BLOCK: tl.constexpr):
    part, me, world = tl.program_id(0), dl.rank(), dl.num_ranks()
    offsets = part * BLOCK + tl.arange(0, BLOCK)
    for hop in range(world):
        dl.notify(ready + part * world + me, (me + hop) % world, call)
    token = dl.wait(ready + part * world, world, "sys", "acquire", call)
    mine = dl.consume_token(rows, token) + me * n + offsets
    total = tl.zeros((BLOCK,), tl.float32)
    for rank in range(world):
        total += tl.load(dl.symm_at(mine, rank), mask=offsets < n, other=0.0)
    tl.store(out + offsets, total, mask=offsets < n)
    for hop in range(world):
        dl.notify(done + part * world + me, (me + hop) % world, call)
    dl.wait(done + part * world, world, "sys", "acquire", call)


# %%
# Ring
# ----
#
# In step s a rank adds its own row for r = me - s - 1 to what the previous rank has sent, and sends the sum on. The sum for r
# starts at the rank after r and ends at r. A step has an inbox of its own, so that nobody overwrites what is not read yet. The
# inboxes are double, by the parity of the call. Each has `room` elements, as many as the longest row. So the place of an inbox
# does not depend on n: otherwise a call with another n could overwrite what a peer still reads of the call before.


@triton_dist.jit(do_not_specialize=["call"])
def ring(rows, out, inbox, arrived, n, room, call, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    part, me, world = tl.program_id(0), dl.rank(), dl.num_ranks()
    offsets = part * BLOCK + tl.arange(0, BLOCK)
    half = call % 2 * world
    for step in range(world):
        owner = (me - step - 1 + world) % world
        total = tl.load(rows + owner * n + offsets, mask=offsets < n, other=0.0)
        if step > 0:
            token = dl.wait(arrived + step * PARTS + part, 1, "sys", "acquire", call, "ge")
            total += tl.load(dl.consume_token(inbox, token) + (half + step) * room + offsets, mask=offsets < n, other=0.0)
        if step < world - 1:
            following = (me + 1) % world
            tl.store(dl.symm_at(inbox, following) + (half + step + 1) * room + offsets, total, mask=offsets < n)
            dl.notify(arrived + (step + 1) * PARTS + part, following, call)
        else:
            tl.store(out + offsets, total, mask=offsets < n)


# %%
# A check and a plot
# ------------------
#
# .. image:: /tutorial_plots/05-reduce-scatter.png
#    :alt: milliseconds of a reduce-scatter over the bytes of a row, by pulls, by a ring and by the op


def main() -> None:
    triton_dist.initialize_distributed()
    group, device = resolve(), triton_dist.device()
    on_gpu, world = device.type == "cuda", group.size
    sizes, block = ([1 << shift for shift in (12, 16, 19)], 1024) if on_gpu else ([256, 1024], 256)
    most = -(-sizes[-1] // block)
    rows = triton_dist.create_symm_tensor((world * sizes[-1],), torch.float32, name="rows")
    inbox = triton_dist.create_symm_tensor((2 * world * sizes[-1],), torch.float32, name="inbox")
    ready, done, arrived = (triton_dist.create_symm_tensor((most * world,), torch.int32, name=name)
                            for name in ("ready", "done", "arrived"))
    calls = [0]

    def scatter(x: torch.Tensor, how: str) -> torch.Tensor:
        n = x.shape[1]
        if how == "op":
            return ops.reduce_scatter_2d(x).view(-1)
        calls[0] += 1
        parts, out = -(-n // block), torch.empty(n, device=device)
        if how == "pull":
            rows[:x.numel()].copy_(x.view(-1))
            pull[(parts,)](rows, out, ready, done, n, calls[0], BLOCK=block)
        else:
            ring[(parts,)](x, out, inbox, arrived, n, sizes[-1], calls[0], BLOCK=block, PARTS=most)
        return out

    one_node = len(group.nodes) == 1
    right, times = 0, {how: [] for how in (("pull", "ring", "op") if one_node else ("op",))}      # stores reach one node only
    for how in times:
        for n in sizes:
            seeds = [torch.Generator().manual_seed(n + rank) for rank in range(world)]
            every = [torch.randint(-8, 8, (world, n), generator=seed).float() for seed in seeds]
            out = scatter(every[group.rank].to(device), how)
            triton_dist.synchronize()
            right += torch.equal(out.cpu(), sum(x[group.rank] for x in every))
            x = every[group.rank].to(device)
            times[how].append(milliseconds(lambda: scatter(x, how), group, 10 if on_gpu else 1))
    print(f"rank {group.rank}: {right} of {len(times) * len(sizes)} sums are right", flush=True)
    plot("05-reduce-scatter", [4 * n for n in sizes], times, group, "bytes a row")
    triton_dist.finalize_distributed()
    raise SystemExit(right != len(times) * len(sizes))


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/05-reduce-scatter.png'

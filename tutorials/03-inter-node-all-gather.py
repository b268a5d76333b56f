# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""An all-gather over nodes
========================

.. code-block:: bash

    TRITON_DIST_NODES=2x2 bash launch.sh --nproc_per_node 4 03-inter-node-all-gather.py

Loads and stores do not reach another node: there is no address for `dl.symm_at` to give. SHMEM's puts do. A network between
nodes is also slower than the links inside one, so rows should cross it once. You will write

* a flat gather, in which each rank puts its rows to every other,
* one in two levels: first to the rank at the same position of each other node, and from there inside the node.

On GPUs the kernels need `TRITON_DIST_HEAP=nvshmem`.
"""
import os

import torch
import triton.language as tl

import triton_dist
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.runtime.groups import resolve
from triton_dist.testing import milliseconds, plot

# %%
# Flat
# ----
#
# Program p sends to rank p. `putmem_signal_nbi_block` copies, and sets a flag at the target once all bytes are there, so no
# fence is needed. The flag is the sender's own word, and holds the number of the call; a sender may be one ahead.


@triton_dist.jit(do_not_specialize=["call"])
def flat(gathered, flags, nbytes, call):
    peer, me = tl.program_id(0), shmem.my_pe()
    mine = gathered.to(tl.pointer_type(tl.int8)) + me * nbytes
    if peer != me:
        shmem.putmem_signal_nbi_block(mine, mine, nbytes, flags + me, call, shmem.NVSHMEM_SIGNAL_SET, peer)
        shmem.signal_wait_until(flags + peer, shmem.NVSHMEM_CMP_GE, call)
    shmem.quiet()                                   # what is sent may be overwritten by the next call


# %%
# In two levels
# -------------
#
# Program (node, place) of a rank passes the rows of the rank at its own position of that node on to one neighbour in its own
# node. Its own rows need no wait. Those of other nodes have come by the first level. So each row crosses the network
# once for each other node, instead of once for each of its ranks.


@triton_dist.jit(do_not_specialize=["call"])
def two_levels(gathered, flags, nbytes, call, per_node):
    node, place, me = tl.program_id(0), tl.program_id(1), shmem.my_pe()
    own_node, own_place = me // per_node, me % per_node
    rows = gathered.to(tl.pointer_type(tl.int8))
    twin = node * per_node + own_place
    if place == own_place:
        if node != own_node:
            mine = rows + me * nbytes
            shmem.putmem_signal_nbi_block(mine, mine, nbytes, flags + me, call, shmem.NVSHMEM_SIGNAL_SET, twin)
    else:
        if node != own_node:
            shmem.signal_wait_until(flags + twin, shmem.NVSHMEM_CMP_GE, call)
        part = rows + twin * nbytes
        neighbour = own_node * per_node + place
        shmem.putmem_signal_nbi_block(part, part, nbytes, flags + twin, call, shmem.NVSHMEM_SIGNAL_SET, neighbour)
    source = node * per_node + place
    if source != me:
        shmem.signal_wait_until(flags + source, shmem.NVSHMEM_CMP_GE, call)
    shmem.quiet()


# %%
# A check and a plot
# ------------------
#
# .. image:: /tutorial_plots/03-inter-node-all-gather.png
#    :alt: milliseconds of an all-gather over the bytes of a rank, flat and in two levels


def main() -> None:
    os.environ.setdefault("TRITON_DIST_HEAP", "nvshmem" if triton_dist.device().type == "cuda" else "auto")
    triton_dist.initialize_distributed()
    group, device = resolve(), triton_dist.device()
    on_gpu = device.type == "cuda"
    nodes, per_node = len(group.nodes), group.ranks_per_node
    sizes = [1 << shift for shift in ((12, 16, 20) if on_gpu else (8, 11))]
    buffers = [triton_dist.create_symm_tensor((group.size * sizes[-1],), torch.float32, name="gathered") for _ in range(2)]
    flags, calls = triton_dist.create_symm_tensor((group.size,), torch.int64, name="rows are there"), [0]

    def gather(x: torch.Tensor, how: str) -> torch.Tensor:
        calls[0] += 1
        out = buffers[calls[0] % 2][:group.size * x.numel()].view(group.size, -1)
        out[group.rank].copy_(x)
        if how == "flat":
            flat[(group.size,)](out, flags, x.nbytes, calls[0])
        else:
            two_levels[(nodes, per_node)](out, flags, x.nbytes, calls[0], per_node)
        return out

    right, times = 0, {"flat": [], "two levels": []}
    for how in times:
        for n in sizes:
            x = torch.full((n,), float(n + group.rank), device=device)
            out = gather(x, how)
            triton_dist.synchronize()
            right += torch.equal(out.cpu(), (n + torch.arange(group.size).float())[:, None].expand(-1, n))
            times[how].append(milliseconds(lambda: gather(x, how), group, 10 if on_gpu else 1))
    print(f"rank {group.rank}: {right} of {2 * len(sizes)} gathers over {nodes} nodes are right", flush=True)
    plot("03-inter-node-all-gather", [4 * n for n in sizes], times, group, "bytes a rank")
    triton_dist.finalize_distributed()
    raise SystemExit(right != 2 * len(sizes))


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/03-inter-node-all-gather.png'

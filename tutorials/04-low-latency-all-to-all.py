# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A low-latency all-to-all
========================

.. code-block:: bash

    bash launch.sh 04-low-latency-all-to-all.py

In a mixture of experts each token goes to the ranks of its experts, and back. At inference there are few tokens, so the time
of an exchange is latency. You will write a dispatch in one kernel:

* one program for each peer pushes the rows for this peer, and their number,
* one signal for each peer says that both are there, so the host does not have to know how many rows have come,
* buffers are double, so that no barrier stands between two calls.
"""
import torch
import triton
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.groups import resolve
from triton_dist.testing import milliseconds, plot

# %%
# The kernel
# ----------
#
# `begins[p]` is the first row for rank p, as a prefix sum over the sorted tokens gives it. Rank r's rows arrive in the part
# of `recv` that belongs to r, which has room for `MAX_ROWS`. The half of the buffers is the parity of the call: the receiver
# may still read what call n has brought while n + 1 arrives. Nobody sends n + 2 before it has heard n + 1 from all.


@triton_dist.jit(do_not_specialize=["call"])
def dispatch(tokens, begins, recv, counts, signals, call, MAX_ROWS: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    peer, me, world = tl.program_id(0), dl.rank(), dl.num_ranks()
    place = call % 2 * world + me
    first, last = tl.load(begins + peer), tl.load(begins + peer + 1)
    target = dl.symm_at(recv, peer) + place * MAX_ROWS * HIDDEN
    columns = tl.arange(0, BLOCK)
    for row in range(first, last):
        data = tl.load(tokens + row * HIDDEN + columns, mask=columns < HIDDEN)
        tl.store(target + (row - first) * HIDDEN + columns, data, mask=columns < HIDDEN)
    tl.store(dl.symm_at(counts, peer) + place, last - first)
    dl.notify(signals + place, peer, call)                                # after the rows and their number
    dl.wait(signals + call % 2 * world + peer, 1, "sys", "acquire", call)


# %%
# The host
# --------


class Dispatch:
    def __init__(self, group, max_rows: int, hidden: int):
        self.group, self.max_rows, self.hidden, self.call = group, max_rows, hidden, 0
        self.recv = triton_dist.create_symm_tensor((2, group.size, max_rows, hidden), torch.bfloat16, name="received")
        self.counts = triton_dist.create_symm_tensor((2, group.size), torch.int32, name="counts")
        self.signals = triton_dist.create_symm_tensor((2, group.size), torch.int32, name="arrived")

    def __call__(self, tokens: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows [W, max_rows, hidden], how many of each rank are valid), until the call after the next."""
        self.call += 1
        dispatch[(self.group.size,)](tokens, begins, self.recv, self.counts, self.signals, self.call, MAX_ROWS=self.max_rows,
                                     HIDDEN=self.hidden, BLOCK=triton.next_power_of_2(self.hidden))
        half = self.call % 2
        return self.recv[half], self.counts[half]


def tokens_of(rank: int, call: int, world: int, rows: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a rank sends in a call: rows sorted by target, and where each target's begin. Every rank can make all ranks'."""
    random = torch.Generator().manual_seed(1000 * call + rank)
    targets = torch.randint(0, world, (rows,), generator=random).sort().values
    begins = torch.searchsorted(targets, torch.arange(world + 1)).to(torch.int32)
    return torch.randn(rows, hidden, generator=random).to(torch.bfloat16), begins


# %%
# A check and a plot
# ------------------
#
# .. image:: /tutorial_plots/04-low-latency-all-to-all.png
#    :alt: milliseconds of a dispatch over the tokens of a rank


def main() -> None:
    triton_dist.initialize_distributed()
    group, device = resolve(), triton_dist.device()
    on_gpu = device.type == "cuda"
    hidden, sizes = (7168, [1, 8, 64, 128]) if on_gpu else (96, [1, 8, 16])
    send, right = Dispatch(group, sizes[-1], hidden), 0
    for call in range(4):
        mine, begins = tokens_of(group.rank, call, group.size, sizes[-1], hidden)
        rows, counts = send(mine.to(device), begins.to(device))
        triton_dist.synchronize()
        for rank in range(group.size):
            theirs, at = tokens_of(rank, call, group.size, sizes[-1], hidden)
            wanted = theirs[at[group.rank]:at[group.rank + 1]]
            right += torch.equal(rows[rank, :int(counts[rank])].cpu(), wanted)
    print(f"rank {group.rank}: {right} of {4 * group.size} parts have arrived", flush=True)
    times = []
    for size in sizes:
        mine, begins = (x.to(device) for x in tokens_of(group.rank, 9, group.size, size, hidden))
        times.append(milliseconds(lambda: send(mine, begins), group, 20 if on_gpu else 1))
    plot("04-low-latency-all-to-all", sizes, {"dispatch": times}, group, "tokens a rank")
    triton_dist.finalize_distributed()
    raise SystemExit(right != 4 * group.size)


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/04-low-latency-all-to-all.png'

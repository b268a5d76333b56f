# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A queue between two ranks
=========================

.. code-block:: bash

    bash launch.sh 01-queue.py

Two kernels on two GPUs can hand data to each other while both run. In this tutorial you will write

* a queue of a few slots in a peer's memory, which a producer fills and a consumer empties,
* the protocol of its flags: who writes each flag, what it holds, and who waits for it,
* a check, and a measurement of how the number of slots matters.
"""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.groups import resolve
from triton_dist.testing import milliseconds, plot

# %%
# The kernel
# ----------
#
# Each rank produces for the next one. An item goes to slot `item % SLOTS` of the next rank's queue. Two flags belong to a slot:
#
# * `full`, in the consumer's memory: the producer stores the number of items that this slot has been given;
# * `free`, in the producer's memory: the consumer stores how many of them it has taken.
#
# Both only grow, so nothing is ever reset, and a wait for "at least" can miss nothing. The producer may fill a slot again
# once `free` says that the item before has been taken. `dl.wait` gives a token, and `dl.consume_token` ties a load to it.
#
# Half of the programs produce and half consume. All of them must be resident at a time, since they wait for each other:
# a grid that is larger than the number of SMs would hang.
#
# `drained` is for the end. The consumer may still read the last items when `queue` has ended on the producer's side. The producer
# waits until all slots are free, and only then gives up the memory.


@triton_dist.jit(do_not_specialize=["taken"])          # or a number such as 16 would be compiled for itself
def queue(source, out, slots, full, free, items, taken, SLOTS: tl.constexpr, BLOCK: tl.constexpr, WORKERS: tl.constexpr):
    program, me, world = tl.program_id(0), dl.rank(), dl.num_ranks()
    following, previous = (me + 1) % world, (me + world - 1) % world
    lanes = tl.arange(0, BLOCK)
    if program < WORKERS:
        for item in range(program, items, WORKERS):
            slot, turn = item % SLOTS, taken + item // SLOTS
            dl.wait(free + slot, 1, "sys", "acquire", turn, "ge")
            data = tl.load(source + item * BLOCK + lanes)
            tl.store(dl.symm_at(slots, following) + slot * BLOCK + lanes, data)
            dl.notify(full + slot, following, turn + 1)
    else:
        for item in range(program - WORKERS, items, WORKERS):
            slot, turn = item % SLOTS, taken + item // SLOTS
            token = dl.wait(full + slot, 1, "sys", "acquire", turn + 1, "ge")
            tl.store(out + item * BLOCK + lanes, tl.load(dl.consume_token(slots, token) + slot * BLOCK + lanes))
            dl.notify(free + slot, previous, turn + 1)


@triton_dist.jit(do_not_specialize=["taken"])
def drained(free, taken, SLOTS: tl.constexpr):
    """One program: returns when the next rank has taken all items of this one."""
    dl.wait(free, SLOTS, "sys", "acquire", taken, "ge")


# %%
# The host
# --------
#
# A symmetric tensor lies at the same offset of every rank's heap, so `dl.symm_at` finds it on a peer. New ones are zero, which
# suits flags that count. The number of slots is a multiple of the number of workers, so that a slot belongs to one worker.


class Queue:
    def __init__(self, n_slots: int, block: int, workers: int):
        self.n_slots, self.block, self.workers, self.taken = n_slots, block, workers, 0
        self.slots = triton_dist.create_symm_tensor((n_slots, block), torch.float32, name="slots")
        self.full = triton_dist.create_symm_tensor((n_slots,), torch.int32, name="full")
        self.free = triton_dist.create_symm_tensor((n_slots,), torch.int32, name="free")

    def __call__(self, source: torch.Tensor) -> torch.Tensor:
        """What the previous rank's `source` [items, block] holds; items is a multiple of the number of slots."""
        out = torch.empty_like(source)
        queue[(2 * self.workers,)](source, out, self.slots, self.full, self.free, len(source), self.taken,
                                   SLOTS=self.n_slots, BLOCK=self.block, WORKERS=self.workers)
        self.taken += len(source) // self.n_slots
        return out

    def close(self) -> None:
        """Call it before the queue is dropped."""
        drained[(1,)](self.free, self.taken, SLOTS=self.n_slots)


# %%
# A check and a plot
# ------------------
#
# A protocol of flags must be called again and again to be tested: what the last call has left is where the next begins.
#
# With one slot a producer waits for the consumer after every item: a round trip each. More slots hide it.
#
# .. image:: /tutorial_plots/01-queue.png
#    :alt: milliseconds of a call over the number of slots, of a queue with one worker


def main() -> None:
    triton_dist.initialize_distributed()
    group, device = resolve(), triton_dist.device()
    items, block = (2048, 1024) if device.type == "cuda" else (32, 64)
    passed = 0
    pipe = Queue(n_slots=8, block=block, workers=4)
    for call in range(3):
        source = torch.randn(items, block, generator=torch.Generator().manual_seed(100 * call + group.rank)).to(device)
        out = pipe(source)
        wanted = torch.randn(items, block, generator=torch.Generator().manual_seed(
            100 * call + (group.rank - 1) % group.size))
        passed += torch.equal(out.cpu(), wanted)
    pipe.close()
    print(f"rank {group.rank}: {passed} of 3 calls passed {items} items", flush=True)

    sizes, times = [1, 2, 4, 8], []
    for n_slots in sizes:
        pipe = Queue(n_slots, block, workers=1)
        times.append(milliseconds(lambda: pipe(source), group, 3 if device.type == "cuda" else 1))
        pipe.close()
    plot("01-queue", sizes, {"one worker": times}, group, "slots")
    triton_dist.finalize_distributed()
    raise SystemExit(passed != 3)


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/01-queue.png'

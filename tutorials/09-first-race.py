# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Your first race
===============

.. code-block:: bash

    bash launch.sh 09-first-race.py

A kernel that is wrong by one missing wait gives right results most of the time. In this tutorial you will

* write one that hands a block to a neighbour, and forgets that the neighbour may not have read the last one,
* let the checker run it in many orders of events, and read what it says,
* fix it, and see that the checker finds nothing.

The script itself runs the checker, on a CPU, whatever the machine has. One process is enough, so the other ranks have nothing
to do.
"""
import os
import sys

import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

# %%
# A kernel with a race
# --------------------
#
# Each rank stores its block into the next rank's inbox and notifies it; then it waits for its own inbox to be filled and reads
# it. The flag holds the number of the call. That is right for one call. In the second one a rank that is ahead stores into the
# inbox while its neighbour still reads what the first call has brought.
#
# `FIX` adds what is missing: the reader says that it has read, and the writer waits for that before the call ends. Then nobody
# can start the next call, and store again, too early.


@triton_dist.jit(do_not_specialize=["call"])
def hand_on(x, inbox, full, free, out, call, FIX: tl.constexpr, BLOCK: tl.constexpr):
    offsets, me, world = tl.arange(0, BLOCK), dl.rank(), dl.num_ranks()
    following, previous = (me + 1) % world, (me + world - 1) % world
    block = tl.load(x + offsets)
    tl.store(dl.symm_at(inbox, following) + offsets, block)
    dl.notify(full, following, call)
    token = dl.wait(full, 1, "sys", "acquire", call, "ge")
    tl.store(out + offsets, tl.load(dl.consume_token(inbox, token) + offsets))
    if FIX:
        dl.notify(free, previous, call)                           # this block has been read
        dl.wait(free, 1, "sys", "acquire", call, "ge")            # so has the one that this rank has sent


def script(fix: bool, calls: int = 3) -> int:
    """What each rank runs; how many calls gave the right block."""
    triton_dist.initialize_distributed()
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    inbox = triton_dist.create_symm_tensor((64,), torch.float32, name="inbox")
    full, free = (triton_dist.create_symm_tensor((1,), torch.int32, name=name) for name in ("full", "free"))
    right = 0
    for call in range(1, calls + 1):
        x = torch.full((64,), 100.0 * call + rank, device=triton_dist.device())
        out = torch.zeros_like(x)
        hand_on[(1,)](x, inbox, full, free, out, call, FIX=fix, BLOCK=64)
        triton_dist.synchronize()
        right += bool((out == 100.0 * call + (rank - 1) % world).all())
    return right


# %%
# The checker
# -----------
#
# `check_kernel` runs the script on virtual ranks, in many orders, and keeps for each access what it is ordered after. Two
# accesses of which one is a store, and that nothing orders, are a race: the report names both, and what to do.


def main() -> None:
    if os.environ.pop("RANK", "0") != "0":
        return
    from triton_dist.checker import check_kernel                  # makes its own world, of virtual ranks
    print("-- broken --")
    broken = check_kernel(lambda: script(fix=False), 2, schedules=8)
    print(broken)
    print("-- fixed --")
    fixed = check_kernel(lambda: script(fix=True), 2, schedules=8)
    print(fixed)
    sys.stdout.flush()
    kinds = {fault.kind for fault in broken.faults}
    print(f"the checker found {', '.join(sorted(kinds))} in the broken kernel, and {len(fixed.faults)} faults in the fixed one")
    raise SystemExit(kinds != {"race"} or not fixed.clean)


if __name__ == "__main__":
    main()

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A broadcast along a ring
========================

.. code-block:: bash

    bash launch.sh 00-ring-broadcast.py

Rank 0 has a block that all ranks want. It stores the block into rank 1's memory and tells rank 1. Rank 1 passes it to rank 2 in
the same way, and so on. Four things are new beside plain Triton:

* A *symmetric tensor* lies at the same offset of every rank's heap. `dl.symm_at(pointer, rank)` gives the address of the same
  tensor in the memory of another rank, to load from or to store to.
* `dl.notify(flag, rank, value)` sets a flag of another rank. All that this program has stored before is there when the flag is.
* `dl.wait(flag, 1, "sys", "acquire", value)` spins until this rank's own flag has the value, and returns a token.
* `dl.consume_token(pointer, token)` ties loads to the wait, so that the compiler cannot move them before it.
"""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

# %%
# The kernel
# ----------
#
# It runs as one program a rank. Rank r waits for its flag (r > 0), then stores the block into the inbox of r + 1 and notifies
# it (r < last). The flag holds the number of the call, so it is never reset. The barrier at the end bounds the call: no rank
# starts the next one, and stores into an inbox, before its owner has read it.


@triton_dist.jit(do_not_specialize=["call"])          # or a number such as 16 would be compiled for itself
def ring_broadcast(x, inbox, flag, out, call, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    me, last = dl.rank(), dl.num_ranks() - 1
    if me == 0:
        block = tl.load(x + offsets)
    else:
        token = dl.wait(flag, 1, "sys", "acquire", call)
        block = tl.load(dl.consume_token(inbox, token) + offsets)
    if me < last:
        tl.store(dl.symm_at(inbox, me + 1) + offsets, block)
        dl.notify(flag, me + 1, call)
    tl.store(out + offsets, block)
    dl.barrier_all()


# %%
# A check
# -------
#
# Every call sends other values, so that what the last one has left cannot pass for a result.


def main() -> None:
    triton_dist.initialize_distributed()
    rank, device = torch.distributed.get_rank(), triton_dist.device()
    inbox = triton_dist.create_symm_tensor((256,), torch.float32, name="inbox")
    flag = triton_dist.create_symm_tensor((1,), torch.int32, name="arrived")      # symmetric tensors start at zero
    x, out = torch.empty(256, device=device), torch.empty(256, device=device)
    for call in range(1, 4):
        x.fill_(10.0 * call + rank)
        ring_broadcast[(1,)](x, inbox, flag, out, call, BLOCK=256)
        triton_dist.synchronize()
        if out.tolist() != [10.0 * call] * 256:
            raise AssertionError(f"call {call}: found {out}")
    print(f"rank {rank} has {out[0].item():g} of rank 0")
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()

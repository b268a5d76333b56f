# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A broadcast along a ring, with wait and notify.

    bash launch.sh 00-ring-broadcast.py

Rank 0 has a block that all ranks want. It stores it into rank 1's memory and tells rank 1; rank 1 hands it to rank 2, and so
on. Four things are new beside plain Triton:

- a *symmetric tensor* lies at the same offset of every rank's heap, so that `dl.symm_at(pointer, rank)` is its twin in the
  memory of another rank, to load from or to store to;
- `dl.notify(flag, rank, value)` releases a flag of another rank: all that this program has stored is there before it;
- `dl.wait(flag, 1, "sys", "acquire", value)` spins until the own flag has the value, and returns a token;
- `dl.consume_token(pointer, token)` ties loads to the wait, so that the compiler cannot move them before it.
"""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl


@triton_dist.jit
def ring_broadcast(x, inbox, flag, out, call, BLOCK: tl.constexpr):
    """out of every rank = x of rank 0; one program a rank.

    Rank r waits for its flag (r > 0), then stores the block into the inbox of r + 1 and notifies it (r < last). The flag holds
    the number of the call, so it is never reset. The barrier at the end bounds the call: nobody starts the next one, and
    stores into an inbox, before its owner has read it.
    """
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

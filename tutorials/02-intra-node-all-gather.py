# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""An all-gather inside a node
===========================

.. code-block:: bash

    bash launch.sh 02-intra-node-all-gather.py

Every rank has rows, and all ranks want all rows. Inside a node there are two ways to move them, and you will write both:

* by the copy engine: the host puts copies on a stream, and a flag after each. SMs stay free for a GEMM.
* by a kernel that pushes: it is one launch, so the host is not involved between the parts, and the latency is lowest.
"""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import resolve
from triton_dist.testing import milliseconds, plot

# %%
# By the copy engine
# ------------------
#
# `peer_tensor` gives a symmetric tensor in a peer's memory, as a tensor that this rank can copy to. A flag that is written on
# the same stream comes after the copy, so a rank that sees it may read the rows. Flags hold the number of the call. Waits are for
# "at least" this number, because a peer may be a call ahead.


def by_copies(x: torch.Tensor, gathered: list, flags: list, rank: int, call: int, stream) -> None:
    rows = len(x)
    for hop in range(len(gathered)):
        peer = (rank + hop) % len(gathered)                  # from itself on, so that no two send to one rank at a time
        backend().copy(gathered[peer][rank * rows:(rank + 1) * rows], x, stream)
        backend().write_value32(flags[peer], rank, call, stream)


@triton_dist.jit(do_not_specialize=["call"])          # or a number such as 16 would be compiled for itself
def await_all(flags, call):
    """One program: returns when the flags of all ranks have reached the call's number."""
    dl.wait(flags, dl.num_ranks(), "sys", "acquire", call, "ge")


# %%
# By a kernel
# -----------
#
# Program (peer, part) pushes a part of the rows to a peer, then sets a flag there that no other program sets. A release costs
# a fence, so parts should not be too small. Every program then waits for the same part of one peer. So when the kernel has ended,
# all rows are there.


@triton_dist.jit(do_not_specialize=["call"])
def push(x, gathered, flags, elements, call, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    hop, part, me = tl.program_id(0), tl.program_id(1), dl.rank()
    peer = (me + hop) % dl.num_ranks()
    target = dl.symm_at(gathered, peer) + me * elements
    for start in range(part * BLOCK, elements, PARTS * BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        tl.store(target + offsets, tl.load(x + offsets, mask=offsets < elements), mask=offsets < elements)
    dl.notify(flags + me * PARTS + part, peer, call)
    dl.wait(flags + peer * PARTS + part, 1, "sys", "acquire", call, "ge")


# %%
# A check and a plot
# ------------------
#
# Buffers are double: a rank that is ahead may push call n + 1 while another still reads call n. It cannot be two calls ahead,
# since every call waits for all.
#
# .. image:: /tutorial_plots/02-intra-node-all-gather.png
#    :alt: milliseconds of an all-gather over the bytes of a rank, by a kernel and by the copy engine


def main() -> None:
    triton_dist.initialize_distributed()
    group, device = resolve(), triton_dist.device()
    on_gpu, parts = device.type == "cuda", 4 if device.type == "cuda" else 2
    sizes = [1 << shift for shift in ((12, 16, 20, 22) if on_gpu else (8, 10, 12))]
    buffers = [triton_dist.create_symm_tensor((group.size, sizes[-1]), torch.float32, name="gathered") for _ in range(2)]
    flags = triton_dist.create_symm_tensor((group.size,), torch.int32, name="rows are there")
    part_flags = triton_dist.create_symm_tensor((group.size * parts,), torch.int32, name="part is there")
    every_flag = [flags if r == group.rank else triton_dist.peer_tensor(flags, r) for r in range(group.size)]
    stream, calls = triton_dist.new_stream(), [0]

    def rows_of(buffer: torch.Tensor, n: int) -> torch.Tensor:
        return buffer.view(-1)[:group.size * n].view(group.size, n)

    def gather(x: torch.Tensor, how: str) -> torch.Tensor:
        calls[0] += 1
        own, n = buffers[calls[0] % 2], x.numel()
        if how == "kernel":
            push[(group.size, parts)](x, own, part_flags, n, calls[0], BLOCK=1024 if on_gpu else 128, PARTS=parts)
        else:
            every = [rows_of(own if r == group.rank else triton_dist.peer_tensor(own, r), n) for r in range(group.size)]
            stream.wait_stream(triton_dist.current_stream())
            by_copies(x.view(1, n), every, every_flag, group.rank, calls[0], stream)
            await_all[(1,)](flags, calls[0])
        return rows_of(own, n)

    right, times = 0, {"kernel": [], "copy engine": []}
    for how in times:
        for n in sizes:
            x = torch.full((n,), float(n + group.rank), device=device)
            wanted = n + torch.arange(group.size).float()
            out = gather(x, how)
            triton_dist.synchronize()
            right += torch.equal(out.cpu(), wanted[:, None].expand(-1, n))
            times[how].append(milliseconds(lambda: gather(x, how), group, 10 if on_gpu else 1))
    print(f"rank {group.rank}: {right} of {2 * len(sizes)} gathers are right", flush=True)
    plot("02-intra-node-all-gather", [4 * n for n in sizes], times, group, "bytes a rank")
    triton_dist.finalize_distributed()
    raise SystemExit(right != 2 * len(sizes))


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/02-intra-node-all-gather.png'

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""An all-gather that overlaps with its GEMM
=========================================

.. code-block:: bash

    bash launch.sh 06-ag-gemm.py

Every rank has rows x [m, k] of a matrix and a weight [n, k]; it wants all rows times its weight. A collective first and a
matmul after it would leave the tensor cores idle while data moves. You will write one kernel for both, in which

* every program first pushes its share of x to all ranks, and counts there that it has,
* all programs then take tiles of the product, those of their own rank's rows first; a tile waits until all programs of the rank
  whose rows it needs have been counted, and by then most of them have.

`triton_dist.ops.ag_gemm` does this with copy engines, a warp-specialised core and several flags a shard; the idea is the same.
"""
import torch
import triton
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist import ops
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, milliseconds, plot, random_tensor

# %%
# A push
# ------
#
# A program stores its share of its rank's rows into the rank's own chunk of the peer's `gathered`, then adds 1 to the rank's
# counter there. One program alone would be far slower than the link.


@triton_dist.jit
def push(x, gathered, counters, peer, elements, BLOCK: tl.constexpr):
    target = dl.symm_at(gathered, peer) + dl.rank() * elements
    for at in range(tl.program_id(0) * BLOCK, elements, tl.num_programs(0) * BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        inside = offsets < elements
        tl.store(target + offsets, tl.load(x + offsets, mask=inside), mask=inside)
    dl.notify(counters + dl.rank(), peer, 1, "add")


# %%
# The kernel
# ----------
#
# It computes out [world * m, n] = all_gather(x [m, k]) @ weight [n, k]^T. Only rank r's programs write counter r of a rank, each
# once a call. The counters are never reset: `pushed` is what they hold when all programs of this call have pushed. The tiles of
# chunk r wait for that, at system scope because a peer writes. A program never waits before it has pushed, so every rank makes
# progress.
#
# `pushed` grows from call to call. Triton compiles an integer argument for itself when it is 1 or a multiple of 16;
# `do_not_specialize` keeps it from compiling the kernel again in the middle of a run.


@triton_dist.jit(do_not_specialize=["pushed"])
def ag_gemm(x, gathered, weight, out, counters, pushed, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
            BLOCK_K: tl.constexpr):
    program, world, me = tl.program_id(0), dl.num_ranks(), dl.rank()
    for hop in range(world):                                      # from itself on: no two ranks send to one at a time
        push(x, gathered, counters, (me + hop) % world, m * k, BLOCK=4096)
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tiles = tiles_m * tiles_n
    for t in range(program, tiles * world, tl.num_programs(0)):
        chunk = (me - t // tiles + world) % world                 # in the order in which peers push to us
        token = dl.wait(counters + chunk, 1, "sys", "acquire", pushed, "ge")
        a = dl.consume_token(gathered, token) + chunk * m * k
        rows = (t % tiles) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = (t % tiles) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for at in range(0, k, BLOCK_K):
            inner = at + tl.arange(0, BLOCK_K)
            left = tl.load(a + rows[:, None] * k + inner[None, :], mask=(rows < m)[:, None] & (inner < k)[None, :], other=0.0)
            right = tl.load(weight + cols[None, :] * k + inner[:, None], mask=(cols < n)[None, :] & (inner < k)[:, None],
                            other=0.0)
            acc = tl.dot(left, right, acc)
        tl.store(out + (chunk * m + rows)[:, None] * n + cols[None, :], acc.to(out.dtype.element_ty),
                 mask=(rows < m)[:, None] & (cols < n)[None, :])


# %%
# A check and a plot
# ------------------
#
# A program that waits must not keep one that pushes from running, so there are no more programs than fit at a time. The barrier
# between two calls keeps a fast rank from pushing into rows that a slow one still reads.
#
# .. image:: /tutorial_plots/06-ag-gemm.png
#    :alt: milliseconds over the rows of a rank, of this kernel and of ops.ag_gemm


def main() -> None:
    triton_dist.initialize_distributed()
    group, on_gpu = resolve(), triton_dist.device().type == "cuda"
    n, k, block = (4096, 4096, 128) if on_gpu else (80, 64, 32)
    sizes = [256, 512, 1024] if on_gpu else [32, 96]                         # rows of a rank
    counters = triton_dist.create_symm_tensor((group.size,), torch.int32, name="programs that have pushed")
    buffer = triton_dist.create_symm_tensor((group.size * sizes[-1], k), torch.bfloat16, name="gathered")
    weight, pushed = random_tensor(n, k, dtype=torch.bfloat16, seed=100 + group.rank), [0]

    def ours(x: torch.Tensor) -> torch.Tensor:
        m, out = len(x), x.new_empty(group.size * len(x), n)
        tiles = triton.cdiv(m, block) * triton.cdiv(n, block) * group.size
        programs = min(tiles, backend().num_sms())
        pushed[0] += programs
        ag_gemm[(programs,)](x, buffer, weight, out, counters, pushed[0], m, n, k, BLOCK_M=block, BLOCK_N=block,
                             BLOCK_K=64 if on_gpu else 32, num_warps=8 if on_gpu else 4)
        triton_dist.synchronize()
        group.barrier()
        return out

    worst, times = 0.0, {"this kernel": [], "ops.ag_gemm": []}
    for m in sizes:
        for turn in range(2):
            shards = [random_tensor(m, k, dtype=torch.bfloat16, seed=10 * turn + rank) for rank in range(group.size)]
            out = ours(shards[group.rank])
            worst = max(worst, assert_matches(out, torch.cat(shards).double() @ weight.double().t(), k=k))
        x = shards[group.rank]
        times["this kernel"].append(milliseconds(lambda: ours(x), group, 10 if on_gpu else 1))
        times["ops.ag_gemm"].append(milliseconds(lambda: ops.ag_gemm(x, weight), group, 10 if on_gpu else 1))
    print(f"rank {group.rank}: {group.size} x {m} rows gathered and multiplied, relative error {worst:.1e}", flush=True)
    plot("06-ag-gemm", sizes, times, group, "rows a rank")
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/06-ag-gemm.png'

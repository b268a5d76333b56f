# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A GEMM that waits for its operand chunk by chunk. A script and a pytest module.

    bash launch.sh test_distributed_wait.py --case correctness|correctness_tma|perf [M N K]

On every rank a producer kernel on a side stream copies A into the next rank's symmetric buffer, chunk after chunk, and
notifies a flag behind each; the consumer kernel waits for the flag of a tile's chunk before it loads. `correctness` loads
through pointers, `correctness_tma` through a tensor descriptor made from the consumed pointer.
"""
import argparse

import torch
import triton
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.backend import backend
from triton_dist.runtime.console import printable
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.workspace import side_streams
from triton_dist.testing import assert_matches, milliseconds, poisoned, random_tensor


@triton_dist.jit
def send_kernel(a, buffer, flags, epoch, chunk_elements, BLOCK: tl.constexpr):
    """Program c stores chunk c of `a` into the next rank's `buffer`, then releases the epoch into flags[c] there."""
    chunk = tl.program_id(0)
    successor = (dl.rank() + 1) % dl.num_ranks()
    target = dl.symm_at(buffer, successor)
    start = chunk.to(tl.int64) * chunk_elements
    for at in range(0, chunk_elements, BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        inside = offsets < chunk_elements
        tl.store(target + start + offsets, tl.load(a + start + offsets, mask=inside), mask=inside)
    dl.notify(flags + chunk, successor, epoch)


@triton_dist.jit
def gemm_kernel(buffer, b, out, flags, epoch, m, n, k, chunk_tiles, TMA: tl.constexpr, BLOCK_M: tl.constexpr,
                BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """out [m, n] = buffer [m, k] @ b [n, k]^T; a tile acquires the flag of its chunk of rows first."""
    tiles_n = tl.cdiv(n, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    for t in range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * tiles_n, tl.num_programs(0)):
        tile_m = t // tiles_n
        tile_n = t % tiles_n
        token = dl.wait(flags + tile_m // chunk_tiles, 1, "sys", "acquire", epoch)
        a = dl.consume_token(buffer, token)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if TMA:
            a_desc = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BLOCK_M, BLOCK_K])
            b_desc = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BLOCK_N, BLOCK_K])
            for at in range(0, k, BLOCK_K):
                acc = tl.dot(a_desc.load([tile_m * BLOCK_M, at]), b_desc.load([tile_n * BLOCK_N, at]).T, acc)
        else:
            for at in range(0, k, BLOCK_K):
                inside = offs_k < k - at
                x = tl.load(a + rows.to(tl.int64)[:, None] * k + at + offs_k[None, :],
                            mask=(rows < m)[:, None] & inside[None, :], other=0.0)
                w = tl.load(b + cols.to(tl.int64)[None, :] * k + at + offs_k[:, None],
                            mask=(cols < n)[None, :] & inside[:, None], other=0.0)
                acc = tl.dot(x, w, acc)
        tl.store(out + rows.to(tl.int64)[:, None] * n + cols[None, :], acc.to(out.dtype.element_ty),
                 mask=(rows < m)[:, None] & (cols < n)[None, :])


class Pipe:
    """Buffers of one shape, and the call number."""

    def __init__(self, m: int, n: int, k: int, dtype: torch.dtype, tma: bool, block: int, chunks: int = 4):
        self.shape, self.tma, self.block = (m, n, k), tma, block
        self.tiles = -(-m // block)
        self.chunk_tiles = -(-self.tiles // chunks)
        self.chunks = -(-self.tiles // self.chunk_tiles)
        group = resolve()
        rows = self.chunks * self.chunk_tiles * block
        self.a = random_tensor(rows, k, dtype=dtype, seed=group.rank)
        self.expected = random_tensor(rows, k, dtype=dtype, seed=(group.rank - 1) % group.size)[:m]
        self.b = random_tensor(n, k, dtype=dtype, seed=50 + group.rank)
        self.buffer = triton_dist.create_symm_tensor((rows, k), dtype, name="pipe")
        self.flags = triton_dist.create_symm_tensor((self.chunks,), torch.int32, name="pipe flags")
        self.epoch = 0

    def __call__(self) -> torch.Tensor:
        """One pass. The barrier lets the previous pass end everywhere before its buffer is written again."""
        m, n, k = self.shape
        out = poisoned(m, n, dtype=self.a.dtype)
        triton_dist.synchronize()
        resolve().barrier()
        self.epoch += 1
        (side, ), current = side_streams(1), triton_dist.current_stream()
        side.wait_stream(current)
        with triton_dist.use_stream(side):
            send_kernel[(self.chunks,)](self.a, self.buffer, self.flags, self.epoch, self.chunk_tiles * self.block * k,
                                        BLOCK=1024)
        # Programs that wait must leave room for those that they wait for (the emulator reports it where they do not).
        tiles = self.tiles * -(-n // self.block)
        gemm_kernel[(min(tiles, backend().num_sms() - self.chunks),)](
            self.buffer, self.b, out, self.flags, self.epoch, m, n, k, self.chunk_tiles, TMA=self.tma, BLOCK_M=self.block,
            BLOCK_N=self.block, BLOCK_K=32 if self.tma or k % 64 else 64)
        current.wait_stream(side)
        return out


def check(m: int, n: int, k: int, tma: bool, block: int = 64) -> float:
    """Three passes against float64, bitwise equal. Returns the relative error."""
    if triton_dist.device().type == "cuda":
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    pipe = Pipe(m, n, k, torch.float16, tma, block)
    outs = [pipe() for _ in range(3)]
    triton_dist.synchronize()
    if not all(torch.equal(out, outs[0]) for out in outs):
        raise AssertionError("repeated passes differ")
    return assert_matches(outs[0], pipe.expected.double() @ pipe.b.double().t(), k=k)


def main() -> None:
    on_gpu = triton_dist.device().type == "cuda"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", type=int, nargs="*", metavar="M N K", help="sizes on each rank")
    parser.add_argument("--case", default="correctness", choices=["correctness", "correctness_tma", "perf"])
    args = parser.parse_args()
    if len(args.shape) not in (0, 3):
        parser.error("give M, N and K, or none of them")
    m, n, k = args.shape or ((4096, 4096, 4096) if on_gpu else (200, 96, 64))
    triton_dist.initialize_distributed()
    group = resolve()
    block = 128 if on_gpu else 64
    error = max(group.all_gather_object(check(m, n, k, args.case == "correctness_tma", block)))
    text = ""
    if args.case == "perf":
        pipe = Pipe(m, n, k, torch.float16, False, block)
        text = f", {milliseconds(pipe, group, 20 if on_gpu else 2):.3f} ms a pass, barrier included"
    if group.rank == 0:
        print(f"{args.case}: M={m} N={n} K={k} float16 on {group.size} x {triton_dist.device().type}, relative error "
              f"{error:.1e}{text}")
        print(printable("✅ Triton and Torch match"))
    triton_dist.finalize_distributed()


def test_waiting_gemm_on_emulated_ranks():
    from triton_dist.backends.emulator import run_ranks
    for tma in (False, True):
        assert max(run_ranks(lambda: check(150, 40, 64, tma), 3, mode="late")) < 1e-3


if __name__ == "__main__":
    main()

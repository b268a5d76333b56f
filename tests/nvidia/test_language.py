# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The device language between ranks. A script (`bash launch.sh test_language.py`) and a pytest module.

`bash launch.sh test_language.py --timeout` leaves a signal out on purpose: with TRITON_DIST_WAIT_TIMEOUT=1 the process
must end with a WaitTimeout that names the flag, not hang.
"""
import argparse
import os

import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import TritonDistError, WaitTimeout
from triton_dist.runtime.groups import resolve


@triton_dist.jit
def identity_kernel(out):
    """out = [rank, world size]."""
    tl.store(out, dl.rank())
    tl.store(out + 1, dl.num_ranks())


@triton_dist.jit
def queue_kernel(x, out, slots, flags, blocks, SLOTS: tl.constexpr, PRODUCERS: tl.constexpr, CONSUMERS: tl.constexpr,
                 BLOCK: tl.constexpr):
    """Ring queue: each rank sends its x to the next one through SLOTS slots of BLOCK elements there.

    Who writes: a producer stores block i into slot i % SLOTS of the next rank and sets its flag to 2 * round + 1.
    Who waits: a consumer for that value, and the next round's producer for the 2 * round + 2 that the consumer sets.
    """
    pid = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    if pid < PRODUCERS:
        successor = (dl.rank() + 1) % dl.num_ranks()
        for i in range(pid, blocks, PRODUCERS):
            slot = i % SLOTS
            lap = i // SLOTS
            token = dl.wait(dl.symm_at(flags, successor) + slot, 1, "sys", "acquire", lap * 2)
            data = tl.load(dl.consume_token(x, token) + i * BLOCK + offsets)
            tl.store(dl.symm_at(slots, successor) + slot * BLOCK + offsets, data)
            dl.notify(flags + slot, successor, lap * 2 + 1)
    else:
        for i in range(pid - PRODUCERS, blocks, CONSUMERS):
            slot = i % SLOTS
            lap = i // SLOTS
            token = dl.wait(flags + slot, 1, "sys", "acquire", lap * 2 + 1)
            data = tl.load(dl.consume_token(slots, token) + slot * BLOCK + offsets)
            tl.store(out + i * BLOCK + offsets, data)
            dl.notify(flags + slot, dl.rank(), lap * 2 + 2)


@triton_dist.jit
def barrier_kernel(board, out, rounds, WORLD: tl.constexpr):
    """Each round every rank stores (round, rank) on all boards; between two barriers everyone reads its own board."""
    ranks = tl.arange(0, WORLD)
    me = dl.rank()
    for i in range(rounds):
        tl.store(dl.symm_at(board + me, ranks), (i * 1000 + me) + tl.zeros_like(ranks), mask=ranks < dl.num_ranks())
        dl.barrier_all()
        seen = tl.load(board + ranks, mask=ranks < dl.num_ranks(), other=0, volatile=True)
        tl.store(out + i * WORLD + ranks, seen)
        dl.barrier_all()


@triton_dist.jit
def packet_kernel(x, out, packets, epoch, BLOCK: tl.constexpr):
    """x goes to the next rank as packets that carry their own flag."""
    offsets = tl.arange(0, BLOCK)
    successor = (dl.rank() + 1) % dl.num_ranks()
    dl.ll_store(dl.symm_at(packets, successor) + offsets, tl.load(x + offsets), epoch)
    tl.store(out + offsets, dl.ll_load(packets + offsets, epoch))


@triton_dist.jit
def wait_kernel(flags, n, value, data, out, BLOCK: tl.constexpr):
    """Copies data once n flags have reached value."""
    token = dl.wait(flags, n, "sys", "acquire", value, "ge")
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(dl.consume_token(data, token) + offsets))


def int32(*shape: int, fill: int = -1) -> torch.Tensor:
    return torch.full(shape, fill, dtype=torch.int32, device=triton_dist.device())


def check_identity():
    group, out = resolve(), int32(2)
    identity_kernel[(1,)](out)
    triton_dist.synchronize()
    assert out.tolist() == [group.rank, group.size]


def check_queue(blocks: int = 37):
    group, block, slots = resolve(), 128, 8
    x = torch.randn(blocks * block, generator=torch.Generator().manual_seed(group.rank)).to(triton_dist.device())
    ring = triton_dist.create_symm_tensor((slots, block), torch.float32)
    flags = triton_dist.create_symm_tensor((slots,), torch.int32)
    out = torch.full_like(x, float("nan"))
    queue_kernel[(6,)](x, out, ring, flags, blocks, slots, 4, 2, block, num_warps=4)
    triton_dist.synchronize()
    before = (group.rank - 1) % group.size
    want = torch.randn(blocks * block, generator=torch.Generator().manual_seed(before))
    assert torch.equal(out.cpu(), want), "the queue delivered something else"
    triton_dist.free_symm_tensor(ring)
    triton_dist.free_symm_tensor(flags)


def check_barrier(rounds: int = 5):
    group, world = resolve(), 16
    board = triton_dist.create_symm_tensor((world,), torch.int32)
    out = int32(rounds, world)
    for _ in range(2):                                   # the epoch lives on between launches
        barrier_kernel[(1,)](board, out, rounds, world, num_warps=2)
    triton_dist.synchronize()
    want = torch.tensor([[i * 1000 + r if r < group.size else 0 for r in range(world)] for i in range(rounds)])
    assert torch.equal(out.cpu().long(), want), "a rank left the barrier early"
    triton_dist.free_symm_tensor(board)


def check_packets(block: int = 256):
    group = resolve()
    packets = triton_dist.create_symm_tensor((2, block), torch.int64)
    for epoch in (1, 2, 3):
        x = torch.arange(block, dtype=torch.int32).to(triton_dist.device()) + 1000 * group.rank + epoch
        out = int32(block)
        packet_kernel[(1,)](x, out, packets[epoch % 2], epoch, block)
        triton_dist.synchronize()
        before = (group.rank - 1) % group.size
        assert torch.equal(out.cpu(), torch.arange(block, dtype=torch.int32) + 1000 * before + epoch)
        group.barrier()          # nothing else tells a rank that its successor has taken the packets of this half
    triton_dist.free_symm_tensor(packets)


def check_copy_engine_and_stream_flag(rows: int = 4096):
    """A push by the copy engine, its flag by the stream, and a kernel that waits for it near the wrap of int32."""
    group = resolve()
    if not backend().has_stream_memory_ops():
        print("no stream memory operations here: skipped")
        return
    data = triton_dist.create_symm_tensor((rows,), torch.int32)
    flags = triton_dist.create_symm_tensor((group.size,), torch.int32)
    out, x = int32(rows), torch.arange(rows, dtype=torch.int32).to(triton_dist.device()) + group.rank
    flags.fill_(2**31 - 2)
    triton_dist.synchronize()
    group.barrier()
    successor, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    side = triton_dist.new_stream()
    side.wait_stream(triton_dist.current_stream())
    backend().copy(triton_dist.peer_tensor(data, successor), x, side)
    backend().write_value32(triton_dist.peer_tensor(flags, successor), group.rank, -(2**31) + 1, side)
    wait_kernel[(1,)](flags[before:], 1, -(2**31) + 1, data, out, rows)
    triton_dist.current_stream().wait_stream(side)
    triton_dist.synchronize()
    assert torch.equal(out.cpu(), torch.arange(rows, dtype=torch.int32) + before)
    triton_dist.free_symm_tensor(data)
    triton_dist.free_symm_tensor(flags)


def check_graph_capture():
    """First launch inside a capture is refused; after one launch outside it is captured and replays."""
    if triton_dist.device().type != "cuda":
        return

    @triton_dist.jit
    def fresh_kernel(out):
        tl.store(out, tl.load(out) + 1 + 10 * dl.rank())

    group, out = resolve(), int32(1, fill=0)
    stream, graph = triton_dist.new_stream(), torch.cuda.CUDAGraph()
    refused = False
    try:
        with torch.cuda.graph(graph, stream=stream):
            fresh_kernel[(1,)](out)
    except TritonDistError as error:
        refused = "before the capture" in str(error)
    assert refused
    fresh_kernel[(1,)](out)
    triton_dist.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        fresh_kernel[(1,)](out)
    graph.replay()
    graph.replay()
    triton_dist.synchronize()
    assert out.item() == 3 * (1 + 10 * group.rank)


def expect_timeout() -> None:
    """Waits for a flag that nobody sets."""
    flags, out = int32(4, fill=7), int32(64)
    flags[2] = 3
    triton_dist.synchronize()
    try:
        wait_kernel[(2,)](flags, 4, 5, out, out, 64)
        triton_dist.synchronize()
    except WaitTimeout as error:
        print(error, flush=True)
        assert "wait_kernel" in str(error) and f"{flags.data_ptr() + 8:#x}" in str(error)
        return
    raise AssertionError("expected a WaitTimeout; is TRITON_DIST_WAIT_TIMEOUT set?")


CHECKS = (check_identity, check_queue, check_barrier, check_packets, check_copy_engine_and_stream_flag, check_graph_capture)


def test_on_emulated_ranks():
    from triton_dist.backends.emulator import run_ranks
    for check in CHECKS[:-1]:
        for world in (1, 2, 3):
            run_ranks(check, world)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", action="store_true", help="show what a missing signal looks like")
    args = parser.parse_args()
    triton_dist.initialize_distributed()
    if args.timeout:
        expect_timeout()
        print("timed out as expected", flush=True)
        os._exit(0)                                      # the device context is lost: nothing can be torn down
    for check in CHECKS:
        check()
        resolve().barrier()
        if resolve().rank == 0:
            print(f"{check.__name__} passed", flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()

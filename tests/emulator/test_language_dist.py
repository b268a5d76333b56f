# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The device runtime's twins, and triton_dist.language on them, over several ranks."""
import pytest
import torch
import triton
import triton.language as tl
from language_helpers import engine, finish, launch, start  # noqa: F401

import triton_dist.language as dl
from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.memory import memory
from triton_dist.backends.emulator.twins import dist
from triton_dist.language._call import primitive
from triton_dist.language.abi import ROWS
from triton_dist.runtime.context import Context
from triton_dist.runtime.errors import DeviceFault, HangError, InvalidArgument
from triton_dist.runtime.jit import jit

PAD = 8192


class World:
    """Heaps of W ranks in one process, with their contexts."""

    def __init__(self, size, nbytes=16384):
        self.size = size
        slab = torch.zeros((size + 1) * nbytes, dtype=torch.uint8)
        first = -slab.data_ptr() % 256
        self.heaps = [slab[first + r * nbytes:first + (r + 1) * nbytes] for r in range(size)]
        self.bases = [h.data_ptr() for h in self.heaps]
        self.segments = [
            memory.active().add_segment(b, nbytes, f"heap of rank {r}", r) for r, b in enumerate(self.bases)
        ]
        for r in range(size):
            scheduler.active().set_context(r, Context(r, size, 0, 0, self.bases[r] + PAD, self.bases))

    def view(self, rank, offset, n, dtype=torch.int32):
        return self.heaps[rank][offset:offset + n * dtype.itemsize].view(dtype)

    def run(self, kernel, grid, args, **kwargs):
        """Launches on all ranks at once; args(rank)."""
        finish(*(start(kernel, grid, *args(r), rank=r, **kwargs) for r in range(self.size)))


@pytest.fixture
def world(engine, request):      # noqa: F811
    made = World(getattr(request, "param", 4))
    yield made
    for segment in made.segments:
        memory.active().drop_segment(segment)


def test_every_row_of_the_abi_has_a_twin_and_no_twin_lacks_a_row():
    assert dist.TWINS.keys() == ROWS.keys()


@jit
def _identity(out, team_like):
    tl.store(out, dl.rank())
    tl.store(out + 1, dl.num_ranks())
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(out + 2, peer), dl.rank())
    ranks = tl.arange(0, 4)
    tl.store(dl.symm_at(team_like + dl.rank(), ranks), dl.rank() * 10, mask=ranks < dl.num_ranks())


def test_rank_size_and_peers(world):
    world.run(_identity, (1, ), lambda r: (world.view(r, 0, 4), world.view(r, 256, 4)))
    for r in range(4):
        assert world.view(r, 0, 3).tolist() == [r, 4, (r - 1) % 4] and world.view(r, 256, 4).tolist() == [0, 10, 20, 30]


@jit
def _far(out):
    tl.store(dl.symm_at(out, 9), 1)


def test_a_rank_that_does_not_exist_faults_when_used(world):
    with pytest.raises(DeviceFault, match="store of 4 bytes: symm_at was given rank 9, which does not exist: the world has 4"):
        launch(_far, 1, world.view(0, 0, 1))


@jit
def _exchange(data, flags, out, call, WORD: tl.constexpr):
    """Every program pushes its piece to all peers, then waits for all of theirs."""
    me, W, i = dl.rank(), dl.num_ranks(), tl.program_id(0)
    k = tl.arange(0, 16)
    for s in range(W):
        peer = (me + s) % W
        tl.store(dl.symm_at(data + (i * 4 + me) * 16 + k, peer), me * 1000 + i * 100 + k + call)
        dl.notify(flags + i * 4 + me, peer, call)
    token = dl.wait(flags + i * 4, W, "sys", "acquire", call, "ge")
    src = dl.consume_token(data + i * 4 * 16, token)
    total = tl.zeros([16], tl.int32)
    for p in range(W):
        total += tl.load(src + p * 16 + k)
    tl.store(out + i * 16 + k, total)


@pytest.mark.parametrize("word", [torch.int32, torch.int64])
@pytest.mark.parametrize("first", [1, 2**31 - 2])
def test_push_notify_wait(world, word, first):
    bits = 32 if word is torch.int32 else 64
    out = [torch.zeros(2, 16, dtype=torch.int32) for _ in range(4)]
    for r in range(4):
        world.view(r, 4096, 8, word).fill_(first - 1)
    for call in range(first, first + 4):             # with 32 bits the flag wraps: compared by signed difference
        stored = call if bits == 64 or call < 2**31 else call - 2**32
        world.run(_exchange, (2, ),
                  lambda r: (world.view(r, 0, 128), world.view(r, 4096, 8, word), out[r], stored),
                  WORD=bits)
        want = torch.tensor([[sum(p * 1000 + i * 100 + k + stored for p in range(4)) for k in range(16)]
                             for i in range(2)])
        for r in range(4):
            assert torch.equal(out[r], want.to(torch.int32)) and set(world.view(r, 4096, 8, word).tolist()) == {stored}


@jit
def _barriers(out, n):
    for i in range(n):
        tl.store(dl.symm_at(out + dl.rank(), (dl.rank() + 1) % dl.num_ranks()), i)
        dl.barrier_all()
        left = (dl.rank() + dl.num_ranks() - 1) % dl.num_ranks()
        tl.device_assert(tl.load(out + left) == i, "a peer's store from before the barrier was not seen")
        dl.barrier_all()


@pytest.mark.parametrize("world", [1, 2, 3, 8], indirect=True)
def test_barrier_all(world):
    for r in range(world.size):
        world.view(r, PAD, 1)[0] = 2**31 - 3                 # the epoch wraps on the way
        world.view(r, PAD + 64, 64).fill_(2**31 - 3)
    world.run(_barriers, (1, ), lambda r: (world.view(r, 0, 8), 3))
    assert all(world.view(r, PAD, 1).item() == (2**31 + 3) - 2**32 for r in range(world.size))


@jit
def _packets(box, x, out, n, epoch, N: tl.constexpr):
    k = tl.arange(0, N)
    mask = k < n
    peer = 1 - dl.rank()
    data = tl.load(x + k, mask=mask, other=0.0).to(tl.int32, bitcast=True)
    dl.ll_store(dl.symm_at(box + k, peer), data, epoch, mask)
    got = dl.ll_load(box + k, epoch, mask)
    tl.store(out + k, got.to(tl.float32, bitcast=True), mask=mask)


@pytest.mark.parametrize("world", [2], indirect=True)
def test_packets(world):
    for epoch in (1, 2, 2**32 - 1, 5):
        x, out = torch.randn(2, 100), torch.full((2, 100), float("nan"))
        epoch = epoch - 2**32 if epoch >= 2**31 else epoch
        world.run(_packets, (1, ), lambda r: (world.view(r, 0, 128, torch.int64), x[r], out[r], 100, epoch), N=128)
        assert torch.equal(out, x.flip(0))


@jit
def _pairs(box, x, out, n, epoch, N: tl.constexpr):
    k = tl.arange(0, N)
    mask = k < n
    dl.ll_store_pair(dl.symm_at(box + 2 * k, 1 - dl.rank()), tl.load(x + k, mask=mask, other=0), epoch, mask)
    tl.store(out + k, dl.ll_load_pair(box + 2 * k, epoch, mask))


@pytest.mark.parametrize("world", [2], indirect=True)
def test_pairs_of_packets(world):
    """64 bits of data each, all of them; masked elements are 0."""
    for epoch in (1, 2, -1, 5):
        x = torch.randint(-2**63, 2**63 - 1, (2, 100))
        out = torch.full((2, 128), 7)
        world.run(_pairs, (1, ), lambda r: (world.view(r, 0, 256, torch.int64), x[r], out[r], 100, epoch), N=128)
        assert torch.equal(out[:, :100], x.flip(0)) and not out[:, 100:].any()


@jit
def _half_a_pair(box, out):
    if dl.rank() == 0:
        dl.ll_store_pair(dl.symm_at(box, 1), -3, 3)
        dl.ll_store(dl.symm_at(box + 2, 1), 1, 3)
    else:
        tl.store(out, dl.ll_load_pair(box, 3))
        tl.store(out + 1, dl.ll_load_pair(box + 2, 3))


@pytest.mark.parametrize("world", [2], indirect=True)
def test_a_pair_is_there_when_both_packets_are(world):
    out = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(Exception, match="wanted|waits"):
        world.run(_half_a_pair, (1, ), lambda r: (world.view(r, 0, 4, torch.int64), out))
    assert out.tolist() == [-3, 0]


@jit
def _scalar_packet(box, out):
    if dl.rank() == 0:
        dl.ll_store(dl.symm_at(box, 1), 77, 3)
    else:
        tl.store(out, dl.ll_load(box, 3))


@pytest.mark.parametrize("world", [2], indirect=True)
def test_scalar_packets(world):
    out = torch.zeros(1, dtype=torch.int32)
    world.run(_scalar_packet, (1, ), lambda r: (world.view(r, 0, 1, torch.int64), out))
    assert out.item() == 77


@jit
def _warp_signals(flags, OP: tl.constexpr, SCOPE: tl.constexpr):
    dl.notify_warp(flags, 2, OP, SCOPE)
    dl.fence("release", SCOPE)
    dl.fence()


def test_warp_signals_count_warps(world):
    flags = [world.view(0, 64 * i, 1, d) for i, d in enumerate((torch.int32, torch.int64, torch.int32))]
    launch(_warp_signals, 1, flags[0], "add", "sys", num_warps=8)
    launch(_warp_signals, 1, flags[1], "add", "gpu", num_warps=4)
    launch(_warp_signals, 1, flags[2], "set", "sys", num_warps=8)
    assert [f.item() for f in flags] == [16, 8, 2]


@jit
def _never(flags):
    dl.wait(flags + 1, 1, "gpu", "relaxed", 4)


def test_a_wait_for_nothing_names_flag_value_and_line(world):
    with pytest.raises(HangError, match=r"(?s)_never.*test_language_dist.py.*eq 4\s+0"):
        launch(_never, 1, world.view(0, 0, 4))


@jit
def _block_consumes_token(x, flags, out):
    token = dl.wait(flags, 1, "sys", "acquire")
    k = tl.arange(0, 8)
    tl.store(out + k, tl.load(dl.consume_token(x + k, token)) + dl.consume_token(k.to(tl.float32), token))
    d = tl.make_tensor_descriptor(x, [8], [1], [8])
    tl.store(out + 8 + k, dl.consume_token(d, token).load([0]))
    tl.static_assert(dl.consume_token(k.to(tl.int8), token).dtype == tl.int8)


def test_consume_token_of_pointers_values_and_descriptors(world):
    x, out = torch.arange(8.0), torch.zeros(16)
    flags = world.view(0, 0, 1)
    flags[0] = 1
    launch(_block_consumes_token, 1, x, flags, out)
    assert out.tolist() == [*(2 * x).tolist(), *x.tolist()]


@jit
def _ties_in_a_loop(x, flags, out, N: tl.constexpr, B: tl.constexpr, BLOCK_POINTERS: tl.constexpr):
    desc = tl.make_tensor_descriptor(x, [N], [1], [B])
    for i in range(0, N // B):
        if i == 0:
            desc = dl.consume_token(desc, dl.wait(flags, 1, "sys", "acquire"))
        tl.store(out + i * B + tl.arange(0, B), desc.load([i * B]))
    if BLOCK_POINTERS:
        block = tl.make_block_ptr(x, (N,), (1,), (0,), (B,), (0,))
        for i in range(0, N // B):
            if i == 0:
                block = dl.consume_token(block, dl.wait(flags, 1, "sys", "acquire"))
            tl.store(out + N + i * B + tl.arange(0, B), tl.load(block))
            block = tl.advance(block, (B,))


def test_consume_token_keeps_the_type_of_descriptors_and_block_pointers(world):
    x, out, old = torch.arange(64.0), torch.zeros(128), not hasattr(tl, "atomic_store")
    flags = world.view(0, 0, 1)
    flags[0] = 1
    launch(_ties_in_a_loop, 1, x, flags, out, 64, 16, old)
    assert out.tolist() == x.tolist() + (x.tolist() if old else [0.0] * 64)


@triton.jit
def _plain(out):
    tl.store(out, dl.rank())


def test_primitives_need_the_device_runtime(world):
    with pytest.raises(InvalidArgument, match="triton_dist.jit instead of @triton.jit"):
        launch(_plain, 1, world.view(0, 0, 1))
    launch(_plain, 1, world.view(0, 0, 1), extern_libs={"tdist": "device.ll"})
    with pytest.raises(TypeError, match="64-bit|32 or 64"):
        launch(_bad_pointer, 1, torch.zeros(4))


@jit
def _bad_pointer(x):
    dl.wait(x, 1, "sys", "acquire")


def test_an_unknown_symbol_is_an_error(world):
    @primitive
    def _odd():
        return "tdist_rank", (1, )

    @jit
    def kernel(out):
        tl.store(out, _odd())
    with pytest.raises(InvalidArgument, match="takes 0 arguments, 1 given"):
        launch(kernel, 1, world.view(0, 0, 1))

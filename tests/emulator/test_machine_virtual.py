# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Virtual worlds: ranks, groups, the arena, failures, hangs."""
import os
import re

import pytest
import torch
from launched import python
from machine_helpers import MODES, launch, set_flag, step, wait_flag

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.worlds import virtual
from triton_dist.runtime.errors import HangError, InvalidArgument
from triton_dist.runtime.heap import create_symm_tensor, heap, peer_tensor
from triton_dist.runtime.state import state

backend = EmulatorBackend()


@pytest.fixture(autouse=True)
def emulator(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_BACKEND", "emulator")
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "2M")


def ping_pong(rounds):
    """Each rank passes a counter round the ring through flags in the symmetric heap."""
    world = state().world
    flags = create_symm_tensor((4, ), torch.int32, name="ring flags")
    after = peer_tensor(flags, (world.rank + 1) % world.size)
    seen = []

    def kernel(*_):
        for n in range(1, rounds + 1):
            if world.rank > 0 or n > 1:
                wait_flag(flags.data_ptr() + 4, n - (world.rank == 0))
            seen.append(n)
            set_flag(after.data_ptr() + 4, n)
    launch(kernel)
    world.barrier()
    return world.rank, seen, int(flags[1])


@pytest.mark.parametrize("size", range(1, 9))
def test_ping_pong(size):
    for mode in MODES:
        for rank, (index, seen, last) in enumerate(run_ranks(ping_pong, size, 5, mode=mode, seed=size)):
            assert (index, seen, last) == (rank, [1, 2, 3, 4, 5], 5)


def test_push_between_ranks_in_every_mode():
    def script(calls):
        world, side = state().world, backend.new_stream()
        inbox = create_symm_tensor((2, world.size, 64), torch.int32, name="inbox")
        flags = create_symm_tensor((world.size, ), torch.int32, name="inbox flags")
        for call in range(1, calls + 1):
            mine = torch.full((64, ), 100 * call + world.rank, dtype=torch.int32)
            side.wait_stream(backend.current_stream())
            for peer in range(world.size):
                backend.copy(peer_tensor(inbox, peer)[call % 2, world.rank], mine, side)
                backend.write_value32(peer_tensor(flags, peer), world.rank, call, side)
            got = []

            def kernel(*_):
                for peer in range(world.size):
                    wait_flag(flags.data_ptr() + 4 * peer, call)
                    got.append(inbox[call % 2, peer].unique().tolist())
            launch(kernel)
            assert got == [[100 * call + peer] for peer in range(world.size)]
            side.synchronize()
    for mode in MODES:
        for seed in range(6):
            run_ranks(script, 3, 4, mode=mode, seed=seed)


def test_runs_are_replayable():
    def script():
        order = []
        launch(lambda x, *_: (step(), order.append(x), step(), order.append(-x)), (6, 1, 1), "k")
        return state().world.all_gather_object(order)
    first = run_ranks(script, 3, seed=5)
    assert run_ranks(script, 3, seed=5) == first
    assert any(run_ranks(script, 3, seed=seed) != first for seed in range(6, 10))


def test_collectives_and_groups():
    def script(group):
        world = state().world
        assert world.all_gather_object({"rank": world.rank}) == [{"rank": r} for r in range(4)]
        assert world.broadcast_object([world.rank], root=2) == [2]
        out = torch.empty(4, 3)
        world.all_gather_tensor(out, torch.full((1, 3), float(world.rank)))
        assert out[:, 0].tolist() == [0, 1, 2, 3]
        part = torch.empty(1, 2, dtype=torch.bfloat16)
        world.reduce_scatter_tensor(part, torch.arange(8, dtype=torch.bfloat16).view(4, 2) + world.rank)
        assert part.tolist() == [[4 * (2 * world.rank) + 6, 4 * (2 * world.rank + 1) + 6]]
        assert group.world_ranks == ((0, 2) if world.rank % 2 == 0 else (3, 1))
        assert group.all_gather_object(world.rank) == list(group.world_ranks)
        x = create_symm_tensor((8, ), torch.float32, group)
        peer = group.world_ranks[1 - group.rank]
        peer_tensor(x, peer).fill_(world.rank)
        group.barrier()
        assert x[0] == peer
        none = world.new_group([0, 1])
        assert (none is None) == (world.rank > 1)
        with pytest.raises(InvalidArgument, match="different members"):
            world.new_group([0, 7])
        return group.rank
    assert run_ranks(script, 4, groups=[(0, 2), (3, 1)]) == [0, 1, 1, 0]


def test_mismatched_collectives_name_both_ranks():
    def script():
        world = state().world
        world.barrier() if world.rank else world.all_gather_object(1)
    with pytest.raises(InvalidArgument, match=r"rank \d called .*rank \d called"):
        run_ranks(script, 2)


def test_rank_state_is_private_and_torch_state_too():
    def script():
        rank = state().world.rank
        draws = []
        torch.manual_seed(rank)
        with torch.no_grad() if rank == 0 else torch.enable_grad():
            for _ in range(3):
                state().world.barrier()
                assert torch.is_grad_enabled() == (rank != 0)
                draws.append(torch.rand(()).item())
        expected = torch.Generator().manual_seed(rank)
        assert draws == [torch.rand((), generator=expected).item() for _ in range(3)]
        w = torch.full((2, ), float(rank + 1), requires_grad=True)

        class Meet(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                launch(lambda *_: step(), name="backward")
                return grad * sum(state().world.all_gather_object(rank + 1))
        Meet.apply(w).sum().backward()
        return w.grad.tolist()
    before = torch.get_rng_state()
    assert run_ranks(script, 3) == [[6.0, 6.0]] * 3
    assert torch.equal(before, torch.get_rng_state())


def test_context_and_initialize():
    def script():
        group = triton_dist.initialize_distributed()
        context = scheduler.active().context_of(state().world.rank)
        assert context.rank == group.rank() == state().world.rank and context.world_size == 2
        assert context.bases == list(heap().arena.bases) and context.barrier_pad == heap().base
        assert heap().base % 4096 == 0 and heap().arena.nbytes == 2 << 20
        assert int(heap().arena.local.sum()) == 0
        heap().arena.local.fill_(7)
        triton_dist.finalize_distributed()
        return context.rank
    for _ in range(2):
        assert run_ranks(script, 2) == [0, 1]
    assert state().world is None


def test_error_on_one_rank_names_it():
    cleaned = []

    def script():
        world = state().world
        try:
            if world.rank == 1:
                launch(lambda x, *_: (step(), {}[x]), (2, 1, 1), "broken")
            world.barrier()
        finally:
            cleaned.append(world.rank)
    with pytest.raises(KeyError) as error:
        run_ranks(script, 3, seed=4)
    assert sorted(cleaned) == [0, 1, 2]
    notes = "\n".join(error.value.__notes__)
    assert "kernel broken" in notes and "rank 1 of a virtual world of 3" in notes and "seed=4" in notes
    names = [entry.name for entry in error.traceback]
    assert "<lambda>" in names                                    # the kernel's own line
    assert run_ranks(ping_pong, 2, 2)[0][1] == [1, 2]


class TimeIsUp:
    """A host's lock. The hub hears of the end of a script only after its thread is gone, as if time were up."""

    def __init__(self, host):
        self.host, self.lock = host, host._back

    def acquire(self, blocking=True, timeout=-1):
        came = self.lock.acquire(blocking)
        if timeout >= 0 and self.host.done:
            self.host._thread.join()
            return False
        return came

    def release(self):
        self.lock.release()


def test_a_script_that_ends_when_the_hub_looks_after_it_is_not_interrupted(monkeypatch):
    """On a machine that is busy, a script may run longer than the hub waits between two looks, and end just then."""
    make = virtual._Host.__init__

    def made(self, *args):
        make(self, *args)
        self._back = TimeIsUp(self)
    monkeypatch.setattr(virtual._Host, "__init__", made)
    assert run_ranks(lambda: state().world.rank + 7, 2) == [7, 8]


def test_a_caught_error_does_not_end_the_world():
    def script():
        with pytest.raises(ZeroDivisionError):
            launch(lambda *_: 1 // 0, name="bad")
        return sum(state().world.all_gather_object(1))
    assert run_ranks(script, 3) == [3, 3, 3]


def test_ring_deadlock_report():
    def script():
        world = state().world
        flags = create_symm_tensor((4, ), torch.int32, name="ring flags")
        peer = peer_tensor(flags, (world.rank + 1) % 3)
        launch(lambda *_: set_flag(peer.data_ptr() + 8, 1), name="first")
        launch(lambda *_: (wait_flag(flags.data_ptr() + 8, 2), set_flag(peer.data_ptr() + 8, 2)), name="ring")
    with pytest.raises(HangError) as error:
        run_ranks(script, 3)
    text = str(error.value)
    for rank in range(3):
        assert re.search(rf"^{rank} +ring +\(0, 0, 0\) +kernel.py:1 \(wait\) +flag ring flags \+ 8, of rank {rank} .*"
                         rf"ge 2 +1 +rank {(rank - 1) % 3} first", text, re.M), text
    assert "rank 0 waits for rank 2 waits for rank 1 waits for rank 0" in text


def test_missing_collective_is_a_hang():
    def script():
        if state().world.rank != 1:
            state().world.barrier()
    with pytest.raises(HangError, match="barrier, which rank 1 did not call"):
        run_ranks(script, 3)


def test_side_stream_work_is_run_after_the_scripts():
    done = []

    def script():
        with backend.use_stream(backend.new_stream()):
            launch(lambda *_: (step(), done.append(1)), name="k")
    run_ranks(script, 2, mode="late")
    assert done == [1, 1]

    def failing():
        with backend.use_stream(backend.new_stream()):
            launch(lambda *_: 1 // 0, name="k")
    with pytest.raises(ZeroDivisionError):
        run_ranks(failing, 2, mode="late")


def test_nested_worlds():
    def inner():
        return sum(state().world.all_gather_object(1))

    def outer():
        world = state().world
        launch(lambda *_: step(), name="k")
        found = run_ranks(inner, 3)
        assert state().world is world
        return found, sum(world.all_gather_object(10))
    assert run_ranks(outer, 2) == [([3, 3, 3], 20)] * 2
    with pytest.raises(InvalidArgument, match="at least 1"):
        run_ranks(inner, 0)


ON_A_MACHINE_WITH_GPUS = """
import torch
torch.cuda.is_available = lambda: True          # what `detect` asks
import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.runtime import backend as registry

def script():
    triton_dist.initialize_distributed()
    x = triton_dist.create_symm_tensor((4,), torch.float32)
    return triton_dist.device().type, x.sum().item()

assert registry.detect() == "nvidia"
"""


@pytest.mark.parametrize("before, said", [
    ("", "[('cpu', 0.0), ('cpu', 0.0)]"),
    ("import sys, types; sys.modules['other'] = types.SimpleNamespace(make=lambda: types.SimpleNamespace(name='nvidia'))\n"
     "registry.BACKENDS['nvidia'] = 'other'; registry.backend()", "another one, 'nvidia'"),
])
def test_virtual_worlds_are_emulated_on_machines_with_gpus_too(before, said, tmp_path):
    """They take the emulator where the process has no backend yet, and refuse where it has another one."""
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_DIST_BACKEND"}
    script = tmp_path / "script.py"
    script.write_text(f"{ON_A_MACHINE_WITH_GPUS}{before}\nprint(run_ranks(script, 2))")
    done = python(str(script), environment=environ)
    assert said in done.stdout + done.stderr and bool(done.returncode) == bool(before), done.stderr

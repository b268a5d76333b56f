# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The symmetric heap in long runs: dropped tensors, heaps that are too small for a method, groups that go, reset()."""
import gc
import warnings

import pytest
import torch

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import (ag_gemm, all_gather, all_reduce, all_reduce_rmsnorm, all_to_all_single, all_to_all_vdev, gemm_ar,
                             gemm_rs, reduce_scatter)
from triton_dist.runtime.errors import OutOfHeap, WorkspacePoisoned
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import heap
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import workspace

pytestmark = pytest.mark.usefixtures("few_objects")
WORLD = 2
SMALL = 4 << 20


@pytest.fixture
def small_heap(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", str(SMALL))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def used():
    return sum(allocation.nbytes for allocation in heap().allocations())


# -- tensors that are dropped ------------------------------------------------------------------------------
def test_tensors_that_all_ranks_have_dropped_make_room(small_heap):
    """Also where their views live longest, and where ranks drop at other times; never while one of them holds on."""
    def ranks():
        rank = state().world.rank
        for turn in range(20):                                   # 20 MiB in a heap of 4
            t = triton_dist.create_symm_tensor((1 << 18,), torch.float32)
            t.fill_(turn)
            t = t.view(4, -1)[1:].detach() if turn % 2 else torch.nn.Parameter(t, requires_grad=False)
            assert t.min() == t.max() == turn
        held = triton_dist.create_symm_tensor((1 << 18,), torch.float32)
        held.fill_(7)
        kept = held if rank == 0 else None                       # rank 1 lets go of it
        del held, t
        seen = [triton_dist.create_symm_tensor((1 << 17,), torch.float32) for _ in range(4)]
        assert kept is None or (kept == 7).all()
        spans = [(s.data_ptr(), s.data_ptr() + s.nbytes) for s in seen]
        assert kept is None or all(kept.data_ptr() + kept.nbytes <= a or b <= kept.data_ptr() for a, b in spans)
    run_ranks(ranks, WORLD)


def test_a_tensor_of_a_group_is_freed_by_an_allocation_of_all_its_members_only():
    def ranks(group):
        before = used()
        t = triton_dist.create_symm_tensor((1 << 10,), torch.float32, group)
        assert used() == before + t.nbytes
        del t
        alone = state().world.new_group([state().world.rank])
        a = triton_dist.create_symm_tensor((64,), torch.float32, alone)
        assert used() == before + 4096 + 256
        b = triton_dist.create_symm_tensor((64,), torch.float32)
        assert used() == before + 512 and a is not b
    run_ranks(ranks, 4, groups=[[0, 1], [2, 3]])


def test_what_has_been_freed_or_is_of_another_world_is_not_freed_again():
    def ranks():
        t = triton_dist.create_symm_tensor((64,), torch.float32)
        triton_dist.free_symm_tensor(t)
        other = triton_dist.create_symm_tensor((64,), torch.float32)         # at the same place
        del t
        more = triton_dist.create_symm_tensor((64,), torch.float32)
        assert other.data_ptr() != more.data_ptr() and other.tdist_allocation.live
        return other
    kept = run_ranks(ranks, WORLD)
    assert [t.sum().item() for t in kept] == [0, 0]
    run_ranks(ranks, WORLD)


# -- a heap without room -----------------------------------------------------------------------------------
BIG = {
    "ag_gemm": lambda x, **kw: ag_gemm(x, torch.eye(64)[:8], **kw),
    "gemm_rs": lambda x, **kw: gemm_rs(x[:, :4], normal(1 << 8, 4), **kw),
    "gemm_ar": lambda x, **kw: gemm_ar(x[:, :4], normal(1 << 8, 4), **kw),
    "all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter, "all_to_all_single": all_to_all_single,
    "all_to_all_vdev": lambda x, **kw: all_to_all_vdev(x, torch.full((WORLD,), 5, dtype=torch.int32), **kw)[0][:10],
    "all_reduce_rmsnorm": lambda x, **kw: all_reduce_rmsnorm(x[:1 << 12].view(64, -1), torch.ones(1 << 12), **kw)[1],
}
ASKED = {"ag_gemm": "portable", "gemm_rs": "portable", "gemm_ar": "ring", "all_reduce_rmsnorm": "one_shot"}


@pytest.mark.parametrize("op", BIG)
def test_auto_does_without_the_heap_where_it_has_no_room_and_says_so_once(op, small_heap):
    """The size that would do is named; a method that was asked for is refused, and nothing is lost."""
    def ranks():
        rank = state().world.rank
        x = normal(1 << 14, 64, seed=rank)
        want = BIG[op](x, method="unfused")
        for _ in range(2):
            torch.testing.assert_close(BIG[op](x), want, rtol=1e-4, atol=1e-4)
        if op != "gemm_ar":                                      # its ring is made of ops that fall back
            with pytest.raises(OutOfHeap, match=r"bytes needed.*TRITON_DIST_HEAP_SIZE \(to \d+M\)"):
                BIG[op](x, method=ASKED.get(op, "push"))
        torch.testing.assert_close(BIG[op](x), want, rtol=1e-4, atol=1e-4)
        assert all_reduce(torch.ones(8)).tolist() == [WORLD] * 8                 # what fits is served as ever
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run_ranks(ranks, WORLD)
    texts = [str(warning.message) for warning in told if issubclass(warning.category, RuntimeWarning)]
    assert texts and all(texts.count(text) == WORLD for text in texts), texts            # once on each rank
    assert op == "gemm_ar" or any(text.startswith(f"triton_dist.{op} runs by") for text in texts), texts
    assert all("bytes needed" in text and "TRITON_DIST_HEAP_SIZE (to " in text for text in texts), texts


# -- groups and reset --------------------------------------------------------------------------------------
def test_reset_frees_what_calls_on_a_group_have_left_and_heals_a_poisoned_workspace():
    def ranks(group):
        x = torch.ones(8, 32)
        all_reduce(x)
        kept, before = used(), dict(state().workspaces)
        for _ in range(2):
            ag_gemm(x, torch.eye(32), group=group)
            all_reduce(x, group=group)
            key = resolve(group).key
            workspace(resolve(group), "ag_gemm").failed(ValueError("a test"))
            with pytest.raises(WorkspacePoisoned, match="ValueError: a test"):
                ag_gemm(x, torch.eye(32), group=group)
            assert used() > kept
            triton_dist.reset(group)
            assert used() == kept and dict(state().workspaces) == before
            assert all(record.group.key != key for record in state().all_records()) and key not in state().teams
        assert torch.equal(ag_gemm(x, torch.eye(32), group=group), torch.ones(16, 32))
        assert all_reduce(x).sum() == 4 * x.numel()
    run_ranks(ranks, 4, groups=[[0, 1], [2, 3]], num_sms=2)


def test_groups_of_torch_that_are_destroyed_are_forgotten():
    """Processes would be needed for torch's own groups; here one that says of itself that it has been destroyed."""
    def ranks(group):
        x = torch.ones(8)
        members = resolve(group)
        all_reduce(x, group=group)
        state().groups[id(group)] = (group, members)
        gone = type("Destroyed", (type(members),), {"usable_in": lambda self, world: False})
        members.__class__ = gone
        from triton_dist.runtime.groups import _sweep
        _sweep()
        assert id(group) not in state().groups and all(key != members.key for key, _ in state().workspaces)
        assert members.key not in state().teams
        gc.collect()
        before = used()
        triton_dist.create_symm_tensor((64,), torch.float32)
        assert used() < before                               # its buffers, dropped by all of its members, have gone
    run_ranks(ranks, 4, groups=[[0, 1], [2, 3]])


def test_graphs_that_end_let_go_of_buffers_they_used(monkeypatch):
    """A captured call keeps a buffer that has been outgrown for as long as its graph lives."""
    from triton_dist.backends.emulator.backend import EmulatorBackend

    class Graph:
        pass

    def ranks():
        graph, x = Graph(), torch.ones(8)
        all_reduce(x)
        space = workspace(resolve(), "self-flagged")
        with monkeypatch.context() as patch:
            patch.setattr(EmulatorBackend, "capturing_graph", lambda self: graph)      # noqa: F821 - deleted below
            space._note_capture()
        outgrown = space.data.tdist_allocation
        all_reduce(torch.ones(1 << 15), method="one_shot")
        assert outgrown.live
        del graph
        all_reduce(torch.ones(1 << 16), method="one_shot")
        all_reduce(torch.ones(1 << 17), method="one_shot")
        gc.collect()
        heap().collect(resolve())
        assert not outgrown.live
        assert all_reduce(x).tolist() == [2.0] * 8
    run_ranks(ranks, WORLD)


def test_memory_summary_tells_all_that_the_heap_holds():
    def ranks():
        with pytest.raises(Exception, match="initialize_distributed"):
            run_ranks(triton_dist.memory_summary, 1, heap=False)
        table = triton_dist.create_symm_tensor((1 << 20,), torch.float32, name="my table")
        all_reduce(torch.ones(8))
        lines = triton_dist.memory_summary().splitlines()
        assert lines[0].startswith(f"symmetric heap of rank {state().world.rank}: 1 GiB, ")
        assert "my table" in lines[1] and "4 MiB" in lines[1] and "ranks [0, 1]" in lines[1]
        assert any("self-flagged halves" in line for line in lines) and len(lines) == len(heap().allocations()) + 2
        assert lines[-1] == "outside the heap: 1 KiB of 1 workspaces" and table.numel()
    run_ranks(ranks, WORLD)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""torch.distributed on virtual ranks: the process-group backend "emulator"."""
import os
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import triton.language as tl
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import triton_dist
import triton_dist.language as dl
from triton_dist import ops
from triton_dist.backends.emulator import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.runtime.errors import CollectiveMismatch, HangError, InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state

W = 4

def parts(*shape, dtype=torch.float32):
    """What each rank brings, known to all."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(-8, 8, shape, generator=generator).to(dtype) for _ in range(W)]


all_gather = getattr(funcol, "all_gather_single", funcol.all_gather_tensor)              # torch 2.13's names
reduce_scatter = getattr(funcol, "reduce_scatter_single", funcol.reduce_scatter_tensor)


def on_each_rank(fn, world=W, **options):
    return run_ranks(fn, world, **options)


# -- collectives -------------------------------------------------------------------------------------------------------
SUMS = {"SUM": lambda t: t.sum(0), "AVG": lambda t: t.mean(0), "PRODUCT": lambda t: t.prod(0), "MIN": lambda t: t.amin(0),
        "MAX": lambda t: t.amax(0)}
BITS = {"BAND": lambda a, b: a & b, "BOR": lambda a, b: a | b, "BXOR": lambda a, b: a ^ b}


@pytest.mark.parametrize("mode", ["eager", "random"])
def test_reductions(mode):
    xs, bits = parts(3, 5), parts(7, dtype=torch.int32)

    def rank():
        r = dist.get_rank()
        for name, expected in SUMS.items():
            op = getattr(dist.ReduceOp, name)
            t = xs[r].clone()
            dist.all_reduce(t, op)
            assert torch.equal(t, expected(torch.stack(xs))), name
            t = xs[r].clone()
            dist.reduce(t, 2, op)
            assert torch.equal(t, expected(torch.stack(xs)) if r == 2 else xs[r]), name
        for name, fn in BITS.items():
            t, expected = bits[r].clone(), bits[0]
            dist.all_reduce(t, getattr(dist.ReduceOp, name))
            for other in bits[1:]:
                expected = fn(expected, other)
            assert torch.equal(t, expected), name
        half = torch.full((2,), 2.0**-9 if r else 1.0, dtype=torch.bfloat16)         # each step in bf16 would lose them
        dist.all_reduce(half)
        assert half.tolist() == [float(torch.tensor(1 + 3 * 2.0**-9).bfloat16())] * 2
        rows = [torch.stack(xs)[i] for i in range(W)]
        out = torch.full((3, 5), float("nan"))
        dist.reduce_scatter(out, [row + r for row in rows])
        assert torch.equal(out, W * xs[r] + 6)
        getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(out, torch.cat(rows) + r, dist.ReduceOp.MAX)
        assert torch.equal(out, xs[r] + W - 1)
    on_each_rank(rank, mode=mode)


def test_what_goes_round_unchanged():
    xs = parts(2, 3)

    def rank():
        r, nan = dist.get_rank(), float("nan")
        t = xs[r].clone()
        work = dist.broadcast(t, 1, async_op=True)
        work.wait()
        assert torch.equal(t, xs[1])
        outs = [torch.full((2, 3), nan) for _ in range(W)]
        dist.all_gather(outs, xs[r])
        assert all(torch.equal(a, b) for a, b in zip(outs, xs, strict=True))
        out = torch.full((2 * W, 3), nan)
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(out, xs[r])
        assert torch.equal(out, torch.cat(xs))
        outs = [torch.full((2, 3), nan) for _ in range(W)] if r == 3 else None
        dist.gather(xs[r], outs, dst=3)
        assert r != 3 or all(torch.equal(a, b) for a, b in zip(outs, xs, strict=True))
        t = torch.full((2, 3), nan)
        dist.scatter(t, xs if r == 0 else None, src=0)
        assert torch.equal(t, xs[r])
        outs = [torch.full((2, 3), nan) for _ in range(W)]
        dist.all_to_all(outs, [x + 10 * r for x in xs])
        assert all(torch.equal(out, xs[r] + 10 * source) for source, out in enumerate(outs))
        sends = [(r + to) % 3 for to in range(W)]                # ragged, with empty ones
        takes = [(source + r) % 3 for source in range(W)]
        out = torch.full((sum(takes),), -1.0)
        dist.all_to_all_single(out, torch.arange(sum(sends)) + 100.0 * r, takes, sends)
        expected = [100.0 * source + sum((source + to) % 3 for to in range(r)) + i for source in range(W)
                    for i in range((source + r) % 3)]
        assert out.tolist() == expected
        dist.barrier()
    on_each_rank(rank)


def test_objects():
    def rank():
        r, everything = dist.get_rank(), [None] * W
        dist.all_gather_object(everything, {"rank": r, "text": "x" * r})
        assert everything == [{"rank": i, "text": "x" * i} for i in range(W)]
        box = [f"from {r}"]
        dist.broadcast_object_list(box, src=2)
        assert box == ["from 2"]
        found = [None] * W if r == 1 else None
        dist.gather_object(r * r, found, dst=1)
        assert found == ([0, 1, 4, 9] if r == 1 else None)
        box = [None]
        dist.scatter_object_list(box, [[i] for i in range(W)] if r == 0 else None, src=0)
        assert box == [[r]]
    on_each_rank(rank)


@pytest.mark.parametrize("mode", ["eager", "random", "late"])
def test_between_two_ranks(mode):
    def rank():
        r = dist.get_rank()
        after, before = (r + 1) % W, (r - 1) % W
        takes = [torch.zeros(2) for _ in range(3)]
        works = [dist.irecv(t, before, tag=0) for t in takes[:2]] + [dist.irecv(takes[2], before, tag=7)]
        for value, tag in ((1.0, 7), (2.0, 0), (3.0, 0)):
            dist.send(torch.full((2,), 10 * r + value), after, tag=tag)
        for work in reversed(works):                             # each takes what it asked for, whoever waits first
            work.wait()
        assert [t[0].item() - 10 * before for t in takes] == [2.0, 3.0, 1.0]
        give, take = torch.full((2,), float(r)), torch.zeros(2)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, take, before), dist.P2POp(dist.isend, give, after)]):
            work.wait()
        assert take.tolist() == [before] * 2
        if r:
            dist.send(torch.full((1,), float(r)), 0)
            return None
        sources = [(dist.recv(t := torch.zeros(1)), int(t)) for _ in range(W - 1)]
        assert all(source == value for source, value in sources) and sorted(s for s, _ in sources) == [1, 2, 3]
    on_each_rank(rank, mode=mode)


def test_collectives_that_are_waited_for_later():
    """Two groups, whose collectives two ranks start in different order; and results are there after wait() only."""
    def rank():
        r = dist.get_rank()
        one, two = dist.new_group([0, 1]), dist.new_group([1, 0])
        if r > 1:
            return
        a, b = torch.full((2,), float(r)), torch.full((2,), 10.0 * r)
        started = [dist.all_reduce(t, group=g, async_op=True) for t, g in ([(a, one), (b, two)][::1 if r else -1])]
        for work in started:
            work.wait()
        assert a.tolist() == [1.0, 1.0] and b.tolist() == [10.0, 10.0]
        assert work.get_future().done() and work.is_completed()
    on_each_rank(rank)


# -- groups ------------------------------------------------------------------------------------------------------------
def test_groups_are_torchs_and_ours():
    def rank():
        r = dist.get_rank()
        assert (dist.get_world_size(), dist.get_backend(), dist.is_initialized()) == (W, "emulator", True)
        assert resolve(dist.group.WORLD) is state().world is resolve(None)
        pair = dist.new_group([1, 3], backend="gloo")            # whatever backend is asked for
        if r not in (1, 3):
            assert pair is dist.GroupMember.NON_GROUP_MEMBER
            with pytest.raises(InvalidArgument, match="not a member"):
                resolve(pair)
            return
        assert dist.get_process_group_ranks(pair) == [1, 3] and pair.size() == 2
        x = torch.full((2, 8), float(r))
        for group in (pair, pair.group_name):
            assert resolve(group) is resolve(pair)
            assert ops.all_gather(x, group=group)[:, 0].tolist() == [1, 1, 3, 3]
        dist.destroy_process_group(pair)
        with pytest.raises(InvalidArgument, match="destroyed"):
            resolve(pair)
    on_each_rank(rank)


def test_a_script_makes_the_world_as_it_does_on_gpus():
    def rank():
        assert not dist.is_initialized()
        dist.init_process_group("nccl", init_method="env://")
        with pytest.raises(ValueError, match="twice"):
            dist.init_process_group("nccl")
        group = triton_dist.initialize_distributed()
        assert group is dist.group.WORLD
        x = torch.full((2, 8), 1.0)
        assert ops.all_reduce(x).unique().tolist() == [W]
        triton_dist.finalize_distributed()
        assert dist.is_initialized()                             # it belongs to the script
        dist.destroy_process_group()
        assert not dist.is_initialized()
    on_each_rank(rank, heap=False)

    def joined_by_us():
        triton_dist.initialize_distributed()
        dist.barrier()
        triton_dist.finalize_distributed()
        assert not dist.is_initialized()
    on_each_rank(joined_by_us, heap=False)


def test_nothing_is_left_behind():
    import sys
    before = dist.init_process_group, dist.distributed_c10d._world, sys.excepthook, threading.active_count()

    def rank(fails):
        dist.new_group([0, 1])
        if fails and dist.get_rank() == 1:
            raise KeyError("on one rank")
        dist.barrier()
        return run_ranks(lambda: dist.get_world_size(), 2), dist.get_world_size()        # a world inside of a world
    assert run_ranks(rank, 3, False) == [([2, 2], 3)] * 3
    with pytest.raises(KeyError):
        run_ranks(rank, 3, True)
    assert not dist.is_initialized()
    assert before == (dist.init_process_group, dist.distributed_c10d._world, sys.excepthook, threading.active_count())
    with pytest.raises(UnsupportedFeature, match="virtual ranks"):
        dist.init_process_group("emulator", store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized()


# -- what torch builds on groups ---------------------------------------------------------------------------------------
def test_meshes_functional_collectives_and_dtensor():
    full = torch.arange(64.0).view(16, 4)

    def rank():
        r = dist.get_rank()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert list(mesh.get_coordinate()) == [r // 2, r % 2]
        gathered = all_gather(torch.full((1, 2), float(r)), 0, mesh["dp"])
        assert gathered.tolist() == [[float(r % 2)] * 2, [float(r % 2 + 2)] * 2]
        summed = funcol.all_reduce(torch.full((2,), float(r)), "sum", mesh["tp"])
        assert summed.tolist() == [4.0 * (r // 2) + 1] * 2
        scattered = reduce_scatter(torch.arange(4.0) + r, "sum", 0, dist.group.WORLD)
        assert scattered.tolist() == [4.0 * r + 6]
        swapped = funcol.all_to_all_single(torch.arange(4.0) + 10 * r, None, None, dist.group.WORLD)
        assert swapped.tolist() == [10.0 * source + r for source in range(W)]
        one = distribute_tensor(full, mesh["tp"], [Shard(0)])
        assert one.to_local().shape == (8, 4) and torch.equal(one.full_tensor(), full)
        two = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
        assert torch.equal(two.redistribute(mesh, [Shard(1), Replicate()]).full_tensor(), full)
        product = two @ distribute_tensor(full.t().contiguous(), mesh, [Replicate(), Shard(0)])
        assert Partial() in product.placements and torch.equal(product.full_tensor(), full @ full.t())
        first = r - r % 2
        ours = ops.all_gather(torch.full((2, 8), float(r)), group=mesh["tp"])
        assert ours[:, 0].tolist() == [first, first, first + 1, first + 1]
    on_each_rank(rank)


def test_data_parallel_gradients_are_means():
    xs = parts(3, 4)

    def rank():
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
        model(xs[dist.get_rank()]).sum().backward()
        return model.module.weight.grad
    expected = torch.stack(xs).sum(1).mean(0).expand(2, 4)
    for grad in on_each_rank(rank):
        torch.testing.assert_close(grad, expected)


# -- failures ----------------------------------------------------------------------------------------------------------
def test_a_hang_in_a_collective_is_explained():
    def missing():
        if dist.get_rank() != 2:
            dist.all_reduce(torch.ones(2))
    with pytest.raises(HangError) as hang:
        on_each_rank(missing)
    assert "all_reduce, which rank 2 did not call" in str(hang.value) and "test_process_group.py" in str(hang.value)

    def nobody_sends():
        if dist.get_rank() == 1:
            dist.recv(torch.ones(2), 3)
    with pytest.raises(HangError, match="recv, for which rank 3 did not call send"):
        on_each_rank(nobody_sends)


def test_different_collectives_and_shapes_are_refused():
    def different():
        if dist.get_rank() == 1:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(2))
    with pytest.raises(CollectiveMismatch, match=r"rank \d called (barrier|all_reduce), rank \d called"):
        on_each_rank(different)

    def uneven():
        dist.all_reduce(torch.ones(2 + (dist.get_rank() == 3)))
    with pytest.raises(CollectiveMismatch, match=r"rank 0 has \[\(\[2\], torch.float32\)\], rank 3 has \[\(\[3\]"):
        on_each_rank(uneven)


# -- what the checker knows of them ------------------------------------------------------------------------------------
@triton_dist.jit
def put(x, buffer, peer):
    i = tl.arange(0, 16)
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i))


@triton_dist.jit
def take(buffer, out):
    i = tl.arange(0, 16)
    tl.store(out + i, tl.load(buffer + i))


def exchange(source, reader, between):
    """Rank `source` puts into the buffer of `reader`, which takes it after `between()`, without a signal."""
    def host(rank):
        buffer = triton_dist.create_symm_tensor((16,), torch.float32)
        buffer.zero_()
        dist.barrier()
        if rank == source:
            put[(1,)](torch.full((16,), 3.0), buffer, reader)
        between(rank)
        if rank == reader:
            take[(1,)](buffer, torch.zeros(16))
        dist.barrier()
    return host


def barrier(_):
    dist.barrier()


def broadcast_from(root):
    return lambda rank: dist.broadcast(torch.zeros(2), root)


def reduce_to(root):
    return lambda rank: dist.reduce(torch.zeros(2), root)


def message(source, to):
    def between(rank):
        if rank == source:
            dist.send(torch.zeros(1), to)
        if rank == to:
            dist.recv(torch.zeros(1), source)
    return between


def mesh_sum(_):
    funcol.all_reduce(torch.zeros(2), "sum", dist.group.WORLD).sum().item()


@pytest.mark.parametrize("between, clean", [
    (lambda _: None, False), (barrier, True), (mesh_sum, True), (broadcast_from(1), True), (broadcast_from(2), False),
    (reduce_to(2), True), (reduce_to(0), False), (message(1, 2), True), (message(2, 1), False), (message(0, 2), False)],
    ids=["nothing", "barrier", "functional", "broadcast from writer", "broadcast from reader", "reduce to reader",
         "reduce to another", "message", "message the wrong way", "message of another"])
def test_the_checker_knows_what_a_collective_orders(between, clean):
    """Rank 1 writes, rank 2 reads: only what leads from 1 to 2 puts the read after the write."""
    report = check_kernel(exchange(1, 2, between), 3, 8, modes=("late", "random", "skew"))
    assert report.clean == clean, str(report)
    assert clean or {fault.kind for fault in report.faults} == {"race"}


def test_dtensor_under_check():
    def host(rank):
        mesh = init_device_mesh("cpu", (2,))
        full = torch.arange(16.0).view(4, 4)
        x = distribute_tensor(full, mesh, [Shard(0)])
        out = ops.all_gather(x.to_local())
        assert torch.equal(out, full) and torch.equal((x * 2).full_tensor(), full * 2)
    report = check_kernel(host, 2, 3)
    assert report.clean and report.programs, str(report)


def test_a_checked_script_has_torchruns_variables(tmp_path):
    from triton_dist.checker.schedules import schedules
    from triton_dist.checker.script import check_script
    path = tmp_path / "script.py"
    path.write_bytes(b"# coding: latin-1\n# \xe9\n" + (
                    "import os, torch, torch.distributed as dist\n"
                    "dist.init_process_group('nccl')\n"
                    "assert (int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])) == (dist.get_rank(), 3)\n"
                    "assert dist.get_node_local_rank() == dist.get_rank() and dist.is_torchelastic_launched()\n"
                    "t = torch.ones(1)\ndist.all_reduce(t)\nassert t.item() == 3\n"
                    "dist.destroy_process_group()\n").encode())
    before = dict(os.environ)
    report = check_script(path, [], schedules(3, 0, 3, 8, None))
    assert report.clean and report.schedules == 3, str(report)
    assert dict(os.environ) == before

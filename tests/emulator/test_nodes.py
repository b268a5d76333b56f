# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ranks in nodes: what passes between nodes, what does not and what is said then, and what a group knows of its nodes."""
import os
import subprocess
import sys

import pytest
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.checker import check_kernel
from triton_dist.cli import launch as launcher
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.runtime.errors import DeviceFault, HangError, InvalidArgument, NotInitialized
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import peer_tensor

N = 64


def symmetric():
    return (triton_dist.create_symm_tensor((N,), torch.float32, name="words"),
            triton_dist.create_symm_tensor((1,), torch.int64, name="flag"))


# -- what a group knows ------------------------------------------------------------------------------------------------
def test_a_group_knows_its_nodes():
    def script():
        group = resolve()
        odd, pair = group.new_group([1, 3]), group.new_group([0, 1])
        uneven, across = group.new_group([0, 1, 2]), group.new_group([2, 0, 3, 1])
        return [(g.nodes, g.node, g.local_rank, g.ranks_per_node) for g in (group, odd, pair, uneven, across) if g is not None]
    four = ((0, 1), (2, 3))
    found = run_ranks(script, 4, nodes=2)
    assert [rank[0] for rank in found] == [(four, 0, 0, 2), (four, 0, 1, 2), (four, 1, 0, 2), (four, 1, 1, 2)]
    assert found[3][1:] == [(((0,), (1,)), 1, 0, 1), (((0, 2), (1, 3)), 0, 1, None)]
    assert found[0][1:] == [(((0, 1),), 0, 0, 2), (((0, 1), (2,)), 0, 0, None), (((0, 2), (1, 3)), 1, 0, None)]


def test_without_nodes_the_world_is_one():
    assert run_ranks(lambda: (resolve().nodes, resolve().ranks_per_node), 3) == [(((0, 1, 2),), 3)] * 3


def test_nodes_are_not_known_before_the_heap():
    with pytest.raises(NotInitialized, match="initialize_distributed"):
        run_ranks(lambda: resolve().nodes, 2, heap=False)


@pytest.mark.parametrize("text, told", [("2x3", "expected 4 ranks, as many as the world has, found 6"), ("2", "such as 2x4"),
                                        ("0x4", "such as 2x4"), ("x", "such as 2x4"), ("2x2x1", "such as 2x4")])
def test_a_bad_value_is_refused_on_all_ranks(monkeypatch, text, told):
    monkeypatch.setenv("TRITON_DIST_NODES", text)

    def script():
        with pytest.raises(InvalidArgument, match=f"TRITON_DIST_NODES.*{told}"):
            triton_dist.initialize_distributed()
        return True
    assert all(run_ranks(script, 4, heap=False))


def test_the_variable_groups_virtual_worlds_too(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_NODES", " 2X2 ")
    assert run_ranks(lambda: resolve().node, 4) == [0, 0, 1, 1]
    assert run_ranks(lambda: resolve().node, 4, nodes=1) == [0, 0, 0, 0]


def test_nodes_must_divide_the_ranks():
    with pytest.raises(InvalidArgument, match="nodes: expected a number that divides the 4 ranks, found 3"):
        run_ranks(lambda: None, 4, nodes=3)


# -- what does not pass ------------------------------------------------------------------------------------------------
@triton_dist.jit
def load_kernel(words, flag, peer):
    tl.store(words, tl.load(dl.symm_at(words, peer)))


@triton_dist.jit
def block_kernel(words, flag, peer):
    offsets = tl.arange(0, 64)
    tl.store(dl.symm_at(words, peer) + offsets, tl.zeros((64,), tl.float32))


@triton_dist.jit
def scattered_kernel(words, flag, peer):
    peers = tl.arange(0, 4)
    tl.store(dl.symm_at(words + dl.rank(), peers), 1.0)


@triton_dist.jit
def notify_kernel(words, flag, peer):
    dl.notify(flag, peer, 1)


@triton_dist.jit
def barrier_kernel(words, flag, peer):
    dl.barrier_all()


@pytest.mark.parametrize("kernel", [load_kernel, block_kernel, scattered_kernel, notify_kernel, barrier_kernel])
def test_loads_stores_and_notify_across_nodes_are_refused_with_rank_and_node(kernel):
    def script():
        words, flag = symmetric()
        me = resolve().rank
        there = f"rank {2 if me < 2 else 0} is on node {1 - me // 2}, rank {me} on node {me // 2}"
        with pytest.raises(DeviceFault, match=f"{there}, .*send by libshmem_device .*at (test_nodes|sync)\\.py"):
            kernel[(1,)](words, flag, (me + 2) % 4 // 2 * 2)
            triton_dist.synchronize()
        return True
    assert all(run_ranks(script, 4, nodes=2))


@triton_dist.jit
def guarded_kernel(words, flag, peer):
    far = dl.symm_at(words, peer)
    if peer // 2 == dl.rank() // 2:
        tl.store(far, 7.0)


def test_an_address_that_is_not_used_harms_nobody():
    def script():
        words, flag = symmetric()
        for peer in range(4):
            guarded_kernel[(1,)](words, flag, peer)
        triton_dist.synchronize()
        resolve().barrier()
        return words[0].item()
    assert run_ranks(script, 4, nodes=2) == [7.0] * 4


def test_peer_tensors_of_other_nodes_are_refused():
    def script():
        words, _ = symmetric()
        me = resolve().rank
        assert peer_tensor(words, me ^ 1).shape == words.shape
        with pytest.raises(InvalidArgument, match=f"rank {me ^ 2} is on node {1 - me // 2}, rank {me} on node {me // 2}"):
            peer_tensor(words, me ^ 2)
        return True
    assert all(run_ranks(script, 4, nodes=2))


# -- what passes -------------------------------------------------------------------------------------------------------
@triton_dist.jit
def around_kernel(words, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    """Each rank sends its words to the rank half a world away, or fetches that one's."""
    peer = (shmem.my_pe() + shmem.n_pes() // 2) % shmem.n_pes()
    offsets = tl.arange(0, N)
    if HOW == "get":
        shmem.getmem_block(words + N, words, N * 4, peer)
    else:
        shmem.putmem_signal_nbi_block(words + N, words, N * 4, flag, 1, shmem.NVSHMEM_SIGNAL_SET, peer)
        shmem.signal_wait_until(flag, shmem.NVSHMEM_CMP_EQ, 1)
    tl.store(out + offsets, tl.load(words + N + offsets))


def around(how):
    group = resolve()
    words = triton_dist.create_symm_tensor((2 * N,), torch.float32)
    flag = triton_dist.create_symm_tensor((1,), torch.int64)
    words[:N] = group.rank + 1
    out = torch.full((N,), float("nan"))
    triton_dist.synchronize()
    group.barrier()
    around_kernel[(1,)](words, flag, out, HOW=how, N=N)
    triton_dist.synchronize()
    assert bool((out == (group.rank + group.size // 2) % group.size + 1).all())
    return True


@pytest.mark.parametrize("latency", [0, 50])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["put", "get"])
def test_shmem_calls_pass(how, mode, latency, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_NODE_LATENCY", str(latency))
    for world, nodes in ((4, 2), (4, 4), (6, 3), (8, 4)):
        assert all(run_ranks(lambda: around(how), world, mode=mode, nodes=nodes))


@pytest.mark.parametrize("how", ["put", "get"])
def test_shmem_calls_between_nodes_are_clean(how, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_NODE_LATENCY", "10")
    report = check_kernel(lambda: around(how), 4, nodes=2, schedules=14)
    assert report.clean and report.accesses, str(report)


@triton_dist.jit
def race_kernel(words, flag, out):
    """Puts to a neighbour and to another node at once; out: how many turns of polling each needed."""
    for peer in range(1, 4):
        if shmem.my_pe() == 0:
            shmem.putmem_signal_nbi(words, words, 4, flag, 1, shmem.NVSHMEM_SIGNAL_SET, peer)
    turns = 0
    if shmem.my_pe() > 0:
        while tl.load(flag, volatile=True) == 0:
            turns += 1
    tl.store(out, turns)


def test_latency_holds_up_what_goes_to_another_node_in_eager_mode_too(monkeypatch):
    def script():
        words, flag = symmetric()
        out = torch.zeros(1, dtype=torch.int32)
        race_kernel[(1,)](words, flag, out)
        triton_dist.synchronize()
        return out.item()

    def turns(latency):
        monkeypatch.setenv("TRITON_DIST_NODE_LATENCY", str(latency))
        return run_ranks(script, 4, mode="eager", nodes=2)
    soon, late = turns(0), turns(4000)
    assert late[1] < 100 and min(late[2:]) > max(soon) + 100, (soon, late)


@triton_dist.jit
def teams_kernel(words, flag, out):
    for team in range(6):
        tl.store(out + 3 * team, shmem.team_my_pe(team))
        tl.store(out + 3 * team + 1, shmem.team_n_pes(team))
        tl.store(out + 3 * team + 2, shmem.team_translate_pe(team, 1, 0))
    for peer in range(4):
        reach = shmem.remote_ptr(words, peer).to(tl.int64) != 0
        tl.store(out + 18 + peer, reach.to(tl.int32))
    shmem.barrier(shmem.NVSHMEMX_TEAM_SAME_MYPE_NODE)
    shmem.team_sync_block(shmem.NVSHMEMX_TEAM_NODE)
    shmem.barrier_all()


@pytest.mark.parametrize("mode", ["random", "late", "skew"])
def test_teams_follow_the_nodes(mode):
    def script():
        words, flag = symmetric()
        out = torch.zeros(22, dtype=torch.int32)
        teams_kernel[(1,)](words, flag, out)
        triton_dist.synchronize()
        return out.tolist()
    for rank, out in enumerate(run_ranks(script, 4, mode=mode, nodes=2)):
        node, place = divmod(rank, 2)
        world, mine, across = [rank, 4, 1], [place, 2, 2 * node + 1], [node, 2, 2 + place]
        assert out[:18] == [*world, *mine, *mine, *across, 0, 1, -1, *world]
        assert out[18:] == [int(peer // 2 == node) for peer in range(4)]


@triton_dist.jit
def wait_kernel(words, flag, peer):
    """All ranks wait for what nobody sends."""
    shmem.signal_wait_until(flag, shmem.NVSHMEM_CMP_EQ, 77)


def test_a_signal_that_no_node_sends_is_a_hang():
    def script():
        words, flag = symmetric()
        wait_kernel[(1,)](words, flag, 0)
    with pytest.raises(HangError, match="flag .*of rank 3 .*eq 77"):
        run_ranks(script, 4, nodes=2)


# -- processes ---------------------------------------------------------------------------------------------------------
SCRIPT = """
import sys
import torch
import triton_dist
from triton_dist.runtime.groups import resolve
sys.path.insert(0, {folder!r})
import test_nodes
triton_dist.initialize_distributed()
group = resolve()
for how in ("put", "get"):
    test_nodes.around(how)
print(f"rank {{group.rank}}: node {{group.node}}, local rank {{group.local_rank}} of {{group.ranks_per_node}}", flush=True)
if sys.argv[1:] == ["--load"]:
    words, flag = test_nodes.symmetric()
    test_nodes.load_kernel[(1,)](words, flag, (group.rank + 2) % 4)
triton_dist.finalize_distributed()
"""


def written(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=os.path.dirname(__file__)))
    return script


def variables(**environ):
    return {**os.environ, "PYTHONPATH": str(launcher.ROOT / "python"), "TRITON_DIST_BACKEND": "emulator", "OMP_NUM_THREADS": "1",
            "TRITON_DIST_HEAP_SIZE": "16M", **environ}


def launch(script, options, words=(), **environ):
    """(exit status, what it has said) of launch.sh."""
    from launched import launch_sh              # of the tests: ranks, which import this file too, have no need of it
    done = launch_sh(*options, str(script), *words, environment=variables(**environ))
    return done.returncode, done.stdout + done.stderr


def expected(rank):
    return f"rank {rank}: node {rank // 2}, local rank {rank % 2} of 2"


def test_processes_in_nodes(tmp_path):
    status, out = launch(written(tmp_path), ["--nproc_per_node=4"], TRITON_DIST_NODES="2x2", TRITON_DIST_NODE_LATENCY="30")
    assert status == 0 and all(expected(rank) in out for rank in range(4)), out


@pytest.mark.full
def test_each_of_several_launchers_is_a_node(tmp_path):
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [["--nproc_per_node=2", "--nnodes=2", f"--node_rank={node}", f"--master_port={port}"] for node in range(2)]
    runs = [subprocess.Popen([sys.executable, launcher.__file__, *words, str(written(tmp_path))], env=variables(), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for words in options]
    for node, run in enumerate(runs):
        out = run.communicate(timeout=60)[0]
        assert run.returncode == 0 and expected(2 * node) in out and expected(2 * node + 1) in out, out


def test_a_process_that_loads_across_nodes_is_told(tmp_path):
    status, out = launch(written(tmp_path), ["--nproc_per_node=4"], ["--load"], TRITON_DIST_NODES="2x2")
    assert status == 1 and "and loads and stores do not reach other nodes; send by libshmem_device" in out, out


def test_a_world_that_does_not_fit_ends_at_once(tmp_path):
    status, out = launch(written(tmp_path), ["--nproc_per_node=2"], TRITON_DIST_NODES="2x2")
    assert status == 1 and "TRITON_DIST_NODES=2x2: expected 2 ranks" in out, out


@pytest.mark.one
@pytest.mark.parametrize("script, says", [
    ("test_ag_gemm.py", "Triton and Torch match"), ("test_gemm_rs.py", "Triton and Torch match"),
    ("benchmarks/nodes.py", "\nep_combine  ")])
def test_scripts_run_over_nodes(script, says):
    status, out = launch(script, ["--nproc_per_node=4"], TRITON_DIST_NODES="2x2", TRITON_DIST_EMULATOR_MODE="late")
    assert status == 0 and says in out and "unfused:" not in out and "WRONG" not in out, out

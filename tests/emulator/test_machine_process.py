# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The process executor: real processes over gloo. This file is also the script that they run."""
import glob
import os
import re
import signal
import subprocess
import sys
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "python")


# -- what the ranks do -------------------------------------------------------------------------------------
def ping_pong(rank, size):
    """Rounds of a counter through the heap; a lock-protected counter; two heaps one after the other."""
    import torch
    from machine_helpers import launch, set_flag, step, wait_flag

    import triton_dist
    from triton_dist.backends.emulator.engine import scheduler
    from triton_dist.backends.emulator.memory import memory
    from triton_dist.runtime.heap import create_symm_tensor, peer_tensor
    rounds = 20
    for _ in range(2):
        triton_dist.initialize_distributed()
        flags = create_symm_tensor((4, ), torch.int32, name="ping flags")
        peer, first = peer_tensor(flags, 1 - rank), peer_tensor(flags, 0)

        def kernel(*_):
            for n in range(1, rounds + 1):
                if rank == 0:
                    set_flag(peer.data_ptr(), n)
                    wait_flag(flags.data_ptr(), n)
                else:
                    wait_flag(flags.data_ptr(), n)
                    set_flag(peer.data_ptr(), n)

        def count(*_):
            for _ in range(50):
                memory.active().flag_add(first.data_ptr() + 4, 1, 32)
                step()
        start = time.perf_counter()
        launch(kernel)
        print(f"round trip {(time.perf_counter() - start) / rounds * 1e6:.0f} us", flush=True)
        launch(count, (2, 1, 1))
        triton_dist.synchronize()
        import torch.distributed as dist
        dist.barrier()
        assert first[1] == 200, first
        assert scheduler.active().hosts[rank].rank == rank
        maps = [line for line in open("/proc/self/maps") if "memfd:triton_dist" in line]
        assert len(maps) == 2 * size, maps                   # slabs and control blocks; none of the heap before
        triton_dist.finalize_distributed()


def fallback(rank, size):
    """Heap files in TMPDIR, for systems without memfd."""
    import tempfile

    import torch
    os.memfd_create, keep = None, os.memfd_create
    del os.memfd_create
    import triton_dist
    from triton_dist.runtime.heap import create_symm_tensor, peer_tensor
    triton_dist.initialize_distributed()
    assert not glob.glob(os.path.join(tempfile.gettempdir(), "triton_dist_*"))
    x = create_symm_tensor((4, ), torch.int32)
    peer_tensor(x, 1 - rank).fill_(rank + 5)
    import torch.distributed as dist
    dist.barrier()
    assert x.tolist() == [6 - rank] * 4
    triton_dist.finalize_distributed()
    os.memfd_create = keep


def wait_forever(rank, size):
    """Rank 1 raises a flag, and is killed or waits; rank 0 waits for a second one."""
    import torch
    from machine_helpers import launch, set_flag, wait_flag

    import triton_dist
    from triton_dist.runtime.heap import create_symm_tensor, peer_tensor
    triton_dist.initialize_distributed()
    flags = create_symm_tensor((4, ), torch.int32, name="ready flags")
    if rank:
        launch(lambda *_: set_flag(peer_tensor(flags, 0).data_ptr() + 4, 1), name="raise_flag")
        if os.environ["SCENARIO"] == "killed":
            time.sleep(0.5)
            print(time.time(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        launch(lambda *_: wait_flag(flags.data_ptr() + 8, 3), name="other")
    launch(lambda *_: wait_flag(flags.data_ptr() + 4, 2), name="stuck")


def again(rank, size):
    """Worlds whose process group is the package's own, one after the other, with a group and ops in each.

    At the end of the first, one rank holds CUDA graphs, so its process group goes on in the second. There the ranks make
    different calls at last, after which it can only be left.
    """
    import torch
    import torch.distributed as dist

    import triton_dist
    from triton_dist.ops import all_reduce
    from triton_dist.runtime.backend import backend
    for world in range(3):
        triton_dist.initialize_distributed()
        backend().end_graphs = lambda: world == 0 and rank == 1
        for group in (None, dist.new_group([0, 1])):
            assert all_reduce(torch.full((8,), float(world + rank)), group=group).tolist() == [2 * world + 1] * 8
        if world == 1:
            first = torch.ones(1 + rank, dtype=torch.int32)             # of a family that ranks meet over: one may wait there
            for call in (lambda: all_reduce(first), lambda: all_reduce(torch.ones(2)), triton_dist.reset):
                with pytest.raises(triton_dist.TritonDistError, match="ranks disagree"):
                    call()
        triton_dist.finalize_distributed()
        assert dist.is_initialized() == (world == 0)
    print("three worlds", flush=True)


def apart(rank, size):
    """The ranks wait in collectives of two groups."""
    import torch.distributed as dist

    import triton_dist
    from triton_dist.backends.emulator.worlds.control_block import RUNNING
    from triton_dist.backends.emulator.worlds.process import ProcessScheduler
    from triton_dist.runtime.backend import backend
    triton_dist.initialize_distributed()
    groups = dist.group.WORLD, dist.new_group([0, 1])
    publish = ProcessScheduler._publish

    def said(self, state):
        print("runs" if state == RUNNING else "waits", flush=True)
        publish(self, state)
    ProcessScheduler._publish = said
    backend().blocking(lambda: dist.barrier(groups[rank]))


# -- starting them -----------------------------------------------------------------------------------------
def variables(scenario, directory, size=2, **environment):
    return dict(os.environ, PYTHONPATH=os.pathsep.join([PACKAGE, HERE, os.environ.get("PYTHONPATH", "")]),
                TRITON_DIST_BACKEND="emulator", TRITON_DIST_HEAP_SIZE="4M", OMP_NUM_THREADS="1", SCENARIO=scenario,
                STORE=str(directory / "store"), WORLD_SIZE=str(size), **environment)


def start(scenario, directory, size=2, **environment):
    env = variables(scenario, directory, size, **environment)
    return [subprocess.Popen([sys.executable, __file__, scenario], env=dict(env, RANK=str(rank), LOCAL_RANK=str(rank)),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(size)]


def forked(scenario, directory, seconds, size=2, **environment):
    """`finish(start(...))`, where the processes are forks of one that has imported what they need."""
    from launched import python                         # of the tests: ranks, which run this file too, have no need of it
    done = python(__file__, "forks", scenario, environment=variables(scenario, directory, size, **environment), seconds=seconds)
    assert done.returncode == 0, done.stderr
    return [(int((directory / f"{rank}.code").read_text()), (directory / f"{rank}.out").read_text(),
             (directory / f"{rank}.err").read_text()) for rank in range(size)]


def fork_ranks(folder, size):
    """In a rank it returns, with its output in files; else it waits for all ranks and ends."""
    ranks = {}
    for rank in range(size):
        pid = os.fork()
        if not pid:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{folder}/{rank}.{name}", os.O_CREAT | os.O_WRONLY, 0o600), number)
            return
        ranks[pid] = rank
    for pid, rank in ranks.items():
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with open(f"{folder}/{rank}.code", "w") as file:
            file.write(str(code))
    sys.exit()


def finish(processes, seconds):
    """(exit code, output, errors) of each; all are gone afterwards."""
    try:
        outputs = [p.communicate(timeout=seconds) for p in processes]
    finally:
        for p in processes:
            p.kill()
            p.wait()
    return [(p.returncode, *output) for p, output in zip(processes, outputs)]


def left_over():
    return glob.glob("/dev/shm/*triton_dist*") + glob.glob("/tmp/triton_dist_*")


def test_ping_pong(tmp_path):
    for code, out, err in forked("ping_pong", tmp_path, 60):
        assert code == 0, err
        assert out.count("round trip") == 2
    assert not left_over()


@pytest.mark.full
def test_a_world_after_another():
    """Under torchrun, whose store outlives a world and keeps what its ranks have left there."""
    from triton_dist.cli import launch
    run = subprocess.run([sys.executable, launch.__file__, "--nproc_per_node=2", __file__, "again"], text=True, timeout=100,
                         capture_output=True, env=dict(os.environ, TRITON_DIST_BACKEND="emulator", TRITON_DIST_HEAP_SIZE="4M"))
    assert run.returncode == 0 and run.stdout.count("three worlds") == 2, run.stderr


@pytest.mark.full
def test_heap_files_without_memfd(tmp_path):
    for code, _, err in finish(start("fallback", tmp_path, TMPDIR=str(tmp_path)), 60):
        assert code == 0, err


def told_once(results, error):
    """The one table that was told, header first; every rank ends in one line, without a traceback."""
    tables = []
    for rank, (code, _, err) in enumerate(results):
        assert code == 1 and "Traceback" not in err, err
        assert err.splitlines()[-1] == f"rank {rank} ends by this {error}", err
        tables += [err.splitlines()[:-1]] if len(err.splitlines()) > 1 else []
    assert len(tables) == 1, tables
    return tables[0]


def test_hang_report_of_all_ranks(tmp_path):
    head, header, first, second, hint = told_once(forked("hung", tmp_path, 60, TRITON_DIST_HANG_SECONDS="1"), "HangError")
    assert head == "hang: all ranks wait, or have left, and none has moved for 1 seconds:" and "check SCRIPT" in hint
    assert re.split("  +", header) == ["rank", "kernel", "program", "at", "waits for", "wanted", "seen", "last writer"]
    assert re.split("  +", first) == ["0", "stuck", "(0, 0, 0)", "kernel.py:1 (wait)", "flag ready flags + 4, of rank 0",
                                      "ge 2", "1", "rank 1 raise_flag(0, 0, 0)"]
    assert re.split("  +", second) == ["1", "other", "(0, 0, 0)", "kernel.py:1 (wait)", "flag ready flags + 8, of rank 1",
                                       "ge 3", "0", "never written"]


def test_hang_in_collectives_says_how_long_it_took(tmp_path):
    results = forked("apart", tmp_path, 60, TRITON_DIST_HANG_SECONDS="0.25")
    for _, out, _ in results:
        assert "waits" in out and out.count("runs") <= 1, out        # one of a collective before; a peer would look for longer
    table = told_once(results, "HangError")
    assert table[0].endswith("none has moved for 2 seconds:")              # all in collectives: eight times as patient
    line = next(number for number, text in enumerate(open(__file__), 1) if "dist.barrier(groups[rank])" in text)
    assert [re.split("  +", row) for row in table[2:]] == [
        [rank, "(host)", f"test_machine_process.py:{line} (apart)", "a collective of torch.distributed"] for rank in "01"]


def test_killed_rank(tmp_path):
    (code, _, err), (killed, said, _) = forked("killed", tmp_path, 60)
    assert killed == -signal.SIGKILL and time.time() - float(said) < 15
    assert code == 1 and err.startswith("rank 1 died, and others wait for 3 seconds:") and "Traceback" not in err, err
    assert "is dead" in err and "ge 2" in err and "stuck" in err and "rank 1 raise_flag(0, 0, 0)" in err
    assert err.endswith("rank 0 ends by this HangError\n")
    assert not left_over()


@pytest.mark.full
def test_bounded_wait(tmp_path):
    begin = time.monotonic()
    results = finish(start("hung", tmp_path, TRITON_DIST_WAIT_TIMEOUT="0.3", TRITON_DIST_HANG_SECONDS="20"), 15)
    assert time.monotonic() - begin < 10
    lines = [line for _, _, err in results for line in err.splitlines()]
    assert all(code == 1 and "Traceback" not in err for code, _, err in results), lines
    assert sum("TRITON_DIST_WAIT_TIMEOUT=0.3" in line for line in lines) == 1
    assert [line for line in lines if line.startswith("rank 0 ends by this ")], lines
    assert [line for line in lines if line.startswith("rank 1 ends by this ")], lines


if __name__ == "__main__":
    import torch.distributed as dist
    if sys.argv[1] == "forks":
        fork_ranks(os.path.dirname(os.environ["STORE"]), int(os.environ["WORLD_SIZE"]))
        del sys.argv[1]
    my_rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if sys.argv[1] != "again":
        dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=my_rank, world_size=world_size)
    scenario = {"killed": wait_forever, "hung": wait_forever, "ping_pong": ping_pong, "fallback": fallback,
                "again": again, "apart": apart}[sys.argv[1]]
    scenario(my_rank, world_size)
    if dist.is_initialized():
        dist.destroy_process_group()
else:
    pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads /proc")


def test_a_call_that_is_being_noted_differs_from_none(monkeypatch):
    """A peer in another process may look between any two of the writes."""
    from triton_dist.backends.emulator.worlds import ledger
    blocks = [bytearray(ledger.SIZE) for _ in range(2)]
    mine, peer = ledger.Ledger(blocks), ledger.Ledger(blocks)
    looked = []

    class Watched:
        def __init__(self, real):
            self.real, self.size, self.unpack_from = real, real.size, real.unpack_from

        def pack_into(self, *args):
            self.real.pack_into(*args)
            looked.append(peer.conflict(1))
    for number in (1, 33):                              # the second one in the slot of the first
        peer.post(1, (0, 1), number, "a call", False)
        with monkeypatch.context() as patch:
            for name in ("_HEAD", "_BODY"):
                patch.setattr(ledger, name, Watched(getattr(ledger, name)))
            assert mine.post(0, (0, 1), number, "a call", False) == []
    assert looked == [None] * 6
    assert mine.post(0, (0, 1), 34, "a call", False) == [] and peer.post(1, (0, 1), 34, "another", False) == [0]

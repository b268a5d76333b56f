# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Threads that call ops, forks, and exceptions in flight, with real processes. This file is also the script that they run."""
import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import triton_dist
from triton_dist.backends.emulator.backend import machine
from triton_dist.ops import ag_gemm, all_reduce
from triton_dist.runtime.errors import NotInitialized, UnsupportedFeature
from triton_dist.runtime.state import state

import remembered

ROOT = Path(__file__).resolve().parents[2]


# -- what the ranks do -------------------------------------------------------------------------------------
def expected(x: torch.Tensor) -> torch.Tensor:
    """The sum over ranks, each of which has `x` times its rank + 1."""
    size = dist.get_world_size()
    return x * (size * (size + 1) / 2)


def hand_over(first: str) -> None:
    """One thread after another calls ops: the main one, two workers, the main one."""
    x = torch.arange(64.0)
    mine = x * (dist.get_rank() + 1)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        turns = [lambda: all_reduce(mine), lambda: one.submit(all_reduce, mine).result(),
                 lambda: other.submit(all_reduce, mine).result(), lambda: one.submit(all_reduce, mine).result()]
        for turn in (turns if first == "main" else turns[1:]) + turns[:2]:
            assert torch.equal(turn(), expected(x))
    print("handed over", flush=True)


def at_once() -> None:
    """While one thread is inside of an op, another calls one. A rank waits there until its peer comes."""
    x = torch.ones(8)
    all_reduce(x)
    if dist.get_rank() == 0:
        with ThreadPoolExecutor(1) as pool:
            inside = pool.submit(all_reduce, x)
            time.sleep(0.5)                     # it waits for its peer by then
            assert not inside.done()
            told = []
            for call in (lambda: all_reduce(x), lambda: ag_gemm(x.view(2, 4), torch.eye(4)),
                         lambda: triton_dist.create_symm_tensor((4,), torch.float32)):
                try:
                    call()
                except UnsupportedFeature as error:
                    told.append(str(error))
            Path(os.environ["MEET"]).touch()
            assert len(told) == 3 and all("two threads" in text and "at a time" in text for text in told), told
            assert torch.equal(inside.result(), torch.full((8,), 2.0))
    else:
        while not Path(os.environ["MEET"]).exists():
            time.sleep(1e-2)
        all_reduce(x)
    assert torch.equal(all_reduce(x), torch.full((8,), 2.0))
    print("refused at once", flush=True)


def fork() -> None:
    """A forked child cannot call ops nor join a world; it harms neither its parent nor the parent's peers."""
    x = torch.ones(4)
    all_reduce(x)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child() -> None:
        for call in (lambda: all_reduce(x), triton_dist.initialize_distributed,
                     lambda: triton_dist.create_symm_tensor((4,), torch.float32)):
            try:
                call()
                queue.put("nothing was raised")
            except NotInitialized as error:
                queue.put(str(error))
    process = context.Process(target=child)
    process.start()
    told = [queue.get() for _ in range(3)]
    process.join()
    assert process.exitcode == 0 and all("forked" in text and "spawn" in text for text in told), told
    with machine().scheduler._left._cond:         # as its watching thread may have it at the time of a fork
        if (pid := os.fork()) == 0:
            signal.alarm(20)            # instead of a hang
            sys.exit(0)                 # the ways of an interpreter that ends, handlers included
    assert os.waitpid(pid, 0)[1] == 0
    assert torch.equal(all_reduce(x), torch.full((4,), 2.0))
    print("forked", flush=True)


def error_in_flight(where: str) -> None:
    """One rank fails while its peer waits for it, in an op or in a collective of torch; both finalize in `finally`."""
    all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        Path(os.environ["RAISED"]).touch()
        raise KeyError("no such layer")
    if where == "op":
        all_reduce(torch.ones(8))
    else:
        dist.barrier()


def main() -> None:
    what, *args = sys.argv[1:]
    triton_dist.initialize_distributed()
    try:
        {"hand_over": hand_over, "at_once": at_once, "fork": fork, "error": error_in_flight}[what](*args)
    finally:
        triton_dist.finalize_distributed()


# -- tests -------------------------------------------------------------------------------------------------
def run(*args, size=2, **variables):
    from launched import launch_sh              # of the tests: ranks, which run this file too, have no need of it
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", OMP_NUM_THREADS="1", **variables)
    return launch_sh("--nproc_per_node", str(size), __file__, *args, environment=environment)


@pytest.mark.parametrize("first", ["main", pytest.param("worker", marks=pytest.mark.full)])
def test_any_thread_may_call_ops_one_at_a_time(first):
    done = run("hand_over", first)
    assert done.returncode == 0 and done.stdout.count("handed over") == 2, done.stderr


def test_two_threads_at_once_are_refused_and_nothing_is_lost(tmp_path):
    done = run("at_once", MEET=str(tmp_path / "met"))
    assert done.returncode == 0 and done.stdout.count("refused at once") == 2, done.stderr


def test_a_fork_of_a_world_is_told_to_use_spawn_and_harms_nobody():
    done = run("fork")
    assert done.returncode == 0 and done.stdout.count("forked") == 2, done.stderr


@pytest.mark.parametrize("where", ["op", pytest.param("torch", marks=pytest.mark.full)])
def test_an_error_in_flight_is_shown_first_and_nobody_waits_for_long(where, tmp_path):
    raised = tmp_path / "raised"
    done = run("error", where, RAISED=str(raised))
    assert done.returncode == 1 and time.time() - raised.stat().st_mtime < 15
    lines = done.stderr.splitlines()
    assert lines[0] == "rank 1 leaves the world by KeyError: 'no such layer'", done.stderr
    assert any("in error_in_flight" in line for line in lines) and any("KeyError: 'no such layer'" in line for line in lines[1:])
    assert "terminate called" not in done.stderr


def test_a_fork_of_a_world_of_one(tmp_path):
    """No launcher: the state of the parent is not taken for the child's."""
    script = tmp_path / "script.py"
    script.write_text("""
import os, torch, triton_dist
from triton_dist.ops import all_reduce
from triton_dist.runtime.errors import NotInitialized
if (pid := os.fork()) == 0:                     # before the world: the child makes its own
    triton_dist.initialize_distributed()
    os._exit(int(all_reduce(torch.ones(1)).item()) + 6)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
triton_dist.initialize_distributed()
all_reduce(torch.ones(1))
if (pid := os.fork()) == 0:
    os.environ.update(RANK="0", WORLD_SIZE="2")
    try:
        triton_dist.initialize_distributed()
    except NotInitialized as error:
        os._exit(9 if "spawn" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
assert all_reduce(torch.ones(1)).item() == 1
""")
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", PYTHONPATH=str(ROOT / "python"))
    environment.pop("RANK", None)
    from launched import python
    done = python(str(script), environment=environment)
    assert done.returncode == 0, done.stderr


def test_a_failure_before_a_call_begins_is_no_end_of_the_world(monkeypatch):
    """A rank has no memory for its output, or for a copy: both ranks fail alike, and the next calls are right."""
    from triton_dist.backends.emulator.worlds.virtual import run_ranks
    from triton_dist.ops.calls import plans, record

    def script():
        x = torch.arange(8.0).view(2, 4)
        gap = torch.arange(16.0).view(4, 4)[::2]
        want = [all_reduce(x), all_reduce(gap)]
        state().world.barrier()
        for target, name in ((record.Known, "new_out"), (plans.OnWorkspace, "args")):
            with monkeypatch.context() as patch:
                def fail(*_):
                    raise torch.OutOfMemoryError("no memory")
                if name == "new_out":
                    patch.setattr(record.Known, "_new_out", property(lambda self: fail))
                else:
                    for cls in {type(known.plan) for known in remembered.known()}:
                        patch.setattr(cls, "args", fail)
                with pytest.raises(torch.OutOfMemoryError):
                    all_reduce(x if name == "new_out" else gap)
                state().world.barrier()
            state().world.barrier()
            assert [torch.equal(all_reduce(t), w) for t, w in zip((x, gap), want)] == [True, True]
    run_ranks(script, 1 + 1)


if __name__ == "__main__":
    main()

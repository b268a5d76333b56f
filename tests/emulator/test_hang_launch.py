# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A hang under launch.sh: one table, a line for each rank, and an exit code. This file is also the script that hangs."""
import os
import re
import sys
import time
from pathlib import Path

import pytest
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.ops import ag_gemm, all_reduce
from triton_dist.runtime.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[2]


@triton_dist.jit
def handshake(flag, rounds, STEPS: tl.constexpr):
    successor = (dl.rank() + 1) % dl.num_ranks()
    for i in range(rounds):
        dl.notify(flag, successor, i + 1)
        dl.wait(flag, 1, "sys", "acquire", i + STEPS)


def hang():
    """Every rank waits for the second signal of its predecessor, which has sent one."""
    triton_dist.initialize_distributed()
    flag = triton_dist.create_symm_tensor((1,), torch.int32, name="turn")
    Path(os.environ["BEGUN"]).touch()
    handshake[(1,)](flag, 2, STEPS=2)


@pytest.mark.parametrize("variable, seconds, says", [("TRITON_DIST_HANG_SECONDS", 1, "hang: all ranks wait, or have left"),
                                                     pytest.param(
                                                         "TRITON_DIST_WAIT_TIMEOUT", 1, "a device wait lasted longer than",
                                                         marks=pytest.mark.full)])
def test_one_table_then_a_line_for_each_rank(variable, seconds, says, tmp_path):
    done = launched("hang", 3, BEGUN=str(tmp_path / "begun"), **{variable: str(seconds)})
    assert time.time() - (tmp_path / "begun").stat().st_mtime < seconds + 10        # without the start of the processes
    assert done.returncode == 1 and not done.stdout
    head, header, *lines = done.stderr.splitlines()
    assert head.startswith(says) and header.startswith("rank  kernel"), done.stderr
    for rank, line in enumerate(lines[:3]):
        cells = re.split("  +", line)
        assert cells[:3] == [str(rank), "handshake", "(0, 0, 0)"] and cells[4:] == [
            f"flag turn + 0, of rank {rank}", "eq 2", "1", f"rank {(rank - 1) % 3} handshake(0, 0, 0)"], done.stderr
        assert re.fullmatch(r"test_hang_launch.py:\d+ \(handshake\)", cells[3])
    if says.startswith("hang"):
        assert "check SCRIPT" in lines.pop(3)
    # On a busy machine a rank may learn of the others' end before its own wait expires, and then ends by a HangError.
    ends = [line.rsplit(" ", 1)[0] for line in sorted(lines[3:6])]
    assert ends == [f"rank {rank} ends by this" for rank in range(3)], done.stderr
    assert len(lines) == 7 and re.fullmatch(r"launch.sh: rank \d failed with exit code 1", lines[6])


def apart():
    """Rank 0 meets a barrier of torch, which the emulator knows nothing of; the others wait for a flag that nobody sets."""
    triton_dist.initialize_distributed()
    flag = triton_dist.create_symm_tensor((1,), torch.int32, name="turn")
    if torch.distributed.get_rank() == 0:
        torch.distributed.barrier()
    handshake[(1,)](flag, 2, STEPS=9)


def differ():
    """Ranks differ in a call, catch the error and go on: no later call may pair with that one."""
    triton_dist.initialize_distributed()
    rank = torch.distributed.get_rank()
    if rank == 1:
        time.sleep(0.5)
    x, eye = [torch.full((8 + extra, 32), rank + 5.0, dtype=torch.float16) for extra in (rank, 0)], torch.eye(32).half()
    for call in x:
        try:
            out = ag_gemm(call, eye, method="portable")
            triton_dist.synchronize()
            print(f"rank {rank}: no error", out[0, 0].item(), out[8, 0].item())
        except InvalidArgument as error:
            print(f"rank {rank}: {type(error).__name__}")


def onwards(kind):
    """Ranks differ in the first call, by dtype or in that one refuses it; call i sends 10**i, so a wrong pair would show."""
    triton_dist.initialize_distributed()
    rank, said = torch.distributed.get_rank(), []
    other = {"other": torch.float16, "refused": torch.int64}[kind]
    for call in range(4):
        dtype = other if rank == 1 and call == 0 else torch.float32
        try:
            said.append(all_reduce(torch.full((48,), 10**call, dtype=dtype))[0].item())
        except InvalidArgument as error:
            said.append(type(error).__name__)
    print(f"rank {rank}: {said}")


def undisturbed():
    """The thread that looks for hosts in collectives of torch looks all the time, and the host's grad mode stays as it is."""
    from triton_dist.backends.emulator.worlds import process
    process._LOOK = 1e-4
    triton_dist.initialize_distributed()
    end, changed = time.monotonic() + 0.5, 0
    with torch.no_grad():
        while time.monotonic() < end:
            torch.autograd.grad_mode._enter_inference_mode(False)       # as torch.compile does; the guard dies at once
            changed += torch.is_grad_enabled()
    triton_dist.finalize_distributed()
    print(f"changed {changed} times", flush=True)


def launched(name, ranks, **variables):
    from launched import launch_sh              # of the tests: ranks, which run this file too, have no need of it
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", OMP_NUM_THREADS="1", **variables)
    return launch_sh("--nproc_per_node", str(ranks), __file__, *name.split(), environment=environment, seconds=60)


def test_a_rank_in_a_collective_of_torch_is_blocked_too():
    done = launched("apart", 2, TRITON_DIST_HANG_SECONDS="1")
    assert done.returncode == 1 and "hang: all ranks wait, or have left" in done.stderr
    place = r"test_hang_launch.py:\d+ \(apart\)"
    assert re.search(rf"^0 +\(host\) +{place} +torch.distributed.barrier", done.stderr, re.M), done.stderr
    assert re.search(r"^1 +handshake .*flag turn \+ 0, of rank 1", done.stderr, re.M), done.stderr


def test_a_rank_that_is_watched_keeps_its_grad_mode():
    done = launched("undisturbed", 2)
    assert done.returncode == 0 and done.stdout.splitlines() == ["changed 0 times"] * 2, done.stdout + done.stderr


def test_a_call_after_one_that_ranks_differed_in_is_told_too():
    done = launched("differ", 2)
    told = done.stdout.splitlines()
    assert "no error" not in done.stdout, done.stdout
    assert {line[:6] for line in told} == {"rank 0", "rank 1"}, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["other", pytest.param("refused", marks=pytest.mark.full)])
def test_ranks_that_differed_are_apart_for_good(kind):
    done = launched(f"onwards {kind}", 3)
    for rank in range(3):
        said = ["CollectiveMismatch"] * 4
        assert f"rank {rank}: {said}" in done.stdout, done.stdout + done.stderr


if __name__ == "__main__":
    scenarios = {"apart": apart, "differ": differ, "undisturbed": undisturbed, "onwards": lambda: onwards(sys.argv[2])}
    scenarios.get((sys.argv + [""])[1], hang)()

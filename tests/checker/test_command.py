# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist check`: scripts run unmodified on virtual ranks, with torch.distributed and torchrun's environment."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from triton_dist.checker.command import main

ROOT = Path(__file__).resolve().parents[2]
RING = '''
import os, sys
import torch, torch.distributed as dist, triton.language as tl
import triton_dist
import triton_dist.language as dl


@triton_dist.jit
def ring(x, buffer, flag, out, WAIT: tl.constexpr):
    i = tl.arange(0, 64)
    successor = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buffer, successor) + i, tl.load(x + i))
    dl.notify(flag, successor, 1)
    if WAIT:
        dl.wait(flag, 1, "sys", "acquire", 1)
    tl.store(out + i, tl.load(buffer + i))  # takes it


if __name__ == "__main__":
    triton_dist.initialize_distributed()
    rank, world = dist.get_rank(), dist.get_world_size()
    assert (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) == (rank, world)
    buffer = triton_dist.create_symm_tensor((64,), torch.float32, name="inbox")
    flag = triton_dist.create_symm_tensor((1,), torch.int32)
    out = torch.empty(64)
    ring[(1,)](torch.full((64,), float(rank)), buffer, flag, out, WAIT="wait" in sys.argv)
    triton_dist.synchronize()
    print(f"rank {rank} got {out[0].item():.0f}")
    total = torch.full((2,), float(rank))
    dist.all_reduce(total)
    assert total.tolist() == [world * (world - 1) / 2] * 2
    gathered = [None] * world
    dist.all_gather_object(gathered, rank)
    assert gathered == list(range(world))
    triton_dist.finalize_distributed()
'''


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "ring.py"
    path.write_text(RING)
    return path


def test_a_script_that_is_right_is_clean(script, capsys):
    assert main(["--schedules", "7", "-n", "3", str(script), "wait"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"clean: 7 schedules, 21 programs, \d+ checked accesses, ", said) and "got" not in said
    assert "  260 bytes on 0->1, 1->2, 2->0" in said


def test_a_race_ends_the_check_and_its_token_replays_it(script, capsys):
    assert main([str(script)]) == 1
    said = capsys.readouterr().out
    line = 1 + RING.splitlines().index("    tl.store(out + i, tl.load(buffer + i))  # takes it")
    assert "race: " in said and f"ring.py:{line} (ring)" in said and "'inbox'" in said and "1 fault: " in said
    token = re.search(r"--replay (\S+)", said).group(1)
    assert main(["--replay", token, str(script)]) == 1
    again = capsys.readouterr().out
    assert said.split("1 fault")[0].split("replay:")[0] == again.split("1 fault")[0].split("replay:")[0]


def test_a_timeline_has_a_track_for_each_stream_and_flows_for_signals(script, tmp_path, capsys):
    trace, picture = tmp_path / "out.json", tmp_path / "out.png"
    words = ["--schedules", "1", "--mode", "late", "-n", "2", "--trace", str(trace), "--plot", str(picture)]
    assert main([*words, str(script), "wait"]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    tracks = {(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {(rank, name) for rank in (0, 1) for name in ("stream default", "program (0, 0, 0)")} <= tracks
    assert [e for e in events if e["ph"] == "X" and e["cat"] == "program"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and any(starts[i]["pid"] != ends[i]["pid"] for i in starts)
    assert all(starts[i]["ts"] <= ends[i]["ts"] for i in starts)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_keep_going_lists_all_and_output_is_shown_on_request(script, capsys):
    assert main(["--keep-going", "--schedules", "7", "--output", "-n", "2", str(script)]) == 1
    said = capsys.readouterr().out
    assert ": 7 schedules, " in said and "rank 1 got" in said


def test_a_hang_in_a_collective_of_torch_is_explained(tmp_path, capsys):
    path = tmp_path / "waits.py"
    path.write_text("import torch, torch.distributed as dist, triton_dist\ntriton_dist.initialize_distributed()\n"
                    "if dist.get_rank() == 1:\n    dist.recv(torch.zeros(1), 0)\ndist.barrier()\n")
    assert main([str(path)]) == 1
    said = capsys.readouterr().out
    assert "recv, for which rank 0 did not call send" in said and "barrier, which rank 1 did not call" in said
    assert "waits.py:4 (<module>)" in said and "waits.py:5 (<module>)" in said


def test_a_script_that_fails_is_a_fault(tmp_path, capsys):
    path = tmp_path / "fails.py"
    path.write_text("import sys\nsys.exit('no such model')\n")
    assert main([str(path)]) == 1
    assert "no such model" in capsys.readouterr().out


@pytest.mark.parametrize("words, said", [
    (["nowhere.py"], "no script 'nowhere.py'"), (["--replay", "x", "test_ag_gemm.py"], "replay token 'x'"),
    (["--schedules", "0", "test_ag_gemm.py"], "at least 1")])
def test_a_wrong_command_line(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2 and said in capsys.readouterr().err


def test_launch_sh_check(script):
    words = ["--check", "--nproc_per_node", "2", "--schedules", "3", str(script), "wait"]
    done = subprocess.run(["bash", str(ROOT / "launch.sh"), *words], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "TRITON_DIST_PYTHON": sys.executable})
    assert done.returncode == 0 and "clean: 3 schedules, 6 programs" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["test_ag_gemm.py", "test_gemm_rs.py"])
def test_the_ops_own_scripts_are_clean(name, capsys):
    assert main(["--schedules", "3", "-n", "3", str(ROOT / "tests/nvidia" / name), "48", "48", "64"]) == 0
    assert "clean: 3 schedules" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("method", ["portable", "ws"])
@pytest.mark.parametrize("name", ["test_ag_gemm.py", "test_gemm_rs.py"])
def test_the_ops_own_scripts_are_clean_at_their_size(name, method, capsys):
    assert main([str(ROOT / "tests/nvidia" / name), "--method", method]) == 0
    assert "clean: 20 schedules" in capsys.readouterr().out

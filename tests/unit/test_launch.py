# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The launcher's command line and environment. test_bad_input_tools.py has what it refuses."""
import pytest

from triton_dist.cli import launch


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    """What the machine has: no test asks the one that it runs on."""
    found = ["nvidia", 8]
    monkeypatch.setattr(launch, "devices", lambda root: tuple(found))
    return found


def planned(*argv, **environ):
    return launch.plan(launch.parse(list(argv), environ), dict(environ, CUDA_VISIBLE_DEVICES=environ.get("gpus", "")))


def test_bare_name_finds_the_vendor_script_and_passes_arguments_on():
    command = launch.parse(["test_ag_gemm.py", "--nproc_per_node", "3", "-x", "8"], {})
    assert command.script == launch.ROOT / "tests/nvidia/test_ag_gemm.py"
    assert command.script_args == ["--nproc_per_node", "3", "-x", "8"]


def test_name_without_suffix_and_path_from_the_root():
    assert launch.parse(["test_gemm_rs"], {}).script.name == "test_gemm_rs.py"
    assert launch.parse(["tests/nvidia/test_gemm_rs.py"], {}).script.parent.name == "nvidia"


@pytest.mark.parametrize("spelling", [["--nproc_per_node", "3"], ["--nproc_per_node=3"], ["--nproc-per-node=3"]])
def test_spellings_of_an_option(spelling):
    argv, _ = planned(*spelling, "test_gemm_rs.py")
    assert "--nproc-per-node=3" in argv


def test_environment_gives_defaults_and_the_option_wins():
    argv, _ = planned("test_gemm_rs.py", NPROC_PER_NODE="5")
    assert "--nproc-per-node=5" in argv
    argv, _ = planned("--nproc_per_node=2", "test_gemm_rs.py", NPROC_PER_NODE="5")
    assert "--nproc-per-node=2" in argv


def test_no_gpu_means_four_emulated_ranks():
    argv, env = planned("test_gemm_rs.py")
    assert "--nproc-per-node=4" in argv and "--standalone" in argv
    assert env["TRITON_DIST_BACKEND"] == "emulator"


def test_gpus_are_used_unless_the_emulator_is_asked_for():
    argv, env = planned("test_gemm_rs.py", gpus="0,1")
    assert "--nproc-per-node=2" in argv and "TRITON_DIST_BACKEND" not in env
    for asked in ({"TRITON_DIST_BACKEND": "emulator"}, {"TRITON_INTERPRET": "1"}):
        argv, env = planned("test_gemm_rs.py", gpus="0,1", **asked)
        assert "--nproc-per-node=4" in argv and env["TRITON_DIST_BACKEND"] == "emulator"


@pytest.mark.parametrize("vendor, environ, gpus", [
    ("nvidia", {}, 8), ("nvidia", {"CUDA_VISIBLE_DEVICES": "1, 3"}, 2), ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 1),
    ("nvidia", {"CUDA_VISIBLE_DEVICES": "6,7,8,9"}, 2), ("nvidia", {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
    ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,1,1"}, 0), ("nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-8a2f,GPU-91b0"}, 2),
    ("nvidia", {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": ""}, 8),
    ("amd", {"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "0,2"}, 2),
    ("amd", {"ROCR_VISIBLE_DEVICES": "4", "HIP_VISIBLE_DEVICES": "0,1"}, 1), ("amd", {"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
    ("amd", {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "0"}, 0), (None, {"CUDA_VISIBLE_DEVICES": "0"}, 0)])
def test_gpus_are_counted_as_their_driver_shows_them(devices, vendor, environ, gpus):
    devices[:] = (vendor, 8) if vendor else ("amd", 0)
    assert launch.count_gpus(environ) == gpus


def test_device_files_are_those_of_the_container(monkeypatch, tmp_path):
    """AMD's driver lists all nodes of the host, and lets a container read its own; WSL has its file for GPUs of any vendor."""
    monkeypatch.undo()
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, text in enumerate(("cpu_cores_count 64\nsimd_count 0\n", "simd_count 1216\n", None)):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").mkdir() if text is None else (nodes / str(number) / "properties").write_text(text)
    assert launch.devices(tmp_path) == ("amd", 1)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch.devices(tmp_path) == ("nvidia", 0)
    (tmp_path / "dev/dxg").rename(tmp_path / "dev/nvidiactl")
    listed = tmp_path / "nvidia-smi"
    listed.write_text("#!/bin/sh\nprintf 'GPU %d: NVIDIA H200\\n' 0 1 2\n")
    listed.chmod(0o755)
    assert launch.devices(tmp_path) == ("nvidia", 3)
    for name in ("nvidia0", "nvidia3", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert launch.devices(tmp_path) == ("nvidia", 2)


def test_a_vendor_is_asked_for_and_no_gpu_is_there():
    with pytest.raises(launch.UsageError, match="TRITON_DIST_BACKEND=nvidia: no GPU is visible; leave it out"):
        planned("test_ag_gemm.py", TRITON_DIST_BACKEND="nvidia")
    assert "--nproc-per-node=2" in planned("--nproc_per_node", "2", "test_ag_gemm.py", TRITON_DIST_BACKEND="nvidia")[0]


def test_user_variables_are_kept():
    _, env = planned("test_gemm_rs.py", OMP_NUM_THREADS="7", PYTHONPATH="/mine", PYTHONUNBUFFERED="0")
    assert env["OMP_NUM_THREADS"] == "7" and env["PYTHONUNBUFFERED"] == "0"
    assert env["PYTHONPATH"].split(":") == [str(launch.ROOT / "python"), "/mine"]


def test_several_nodes():
    argv, _ = planned("--nnodes=2", "--node_rank", "1", "--master_addr=node0", "--master_port=1234", "test_gemm_rs.py")
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=node0", "--master-port=1234"} <= set(argv)
    assert "--standalone" not in argv


def test_unknown_options_before_the_script_go_to_torchrun():
    assert launch.parse(["-r", "3", "-t", "0:1", "test_gemm_rs.py"], {}).torchrun == ["-r", "3", "-t", "0:1"]
    argv, _ = planned("--max_restarts", "0", "--log-dir=logs", "test_gemm_rs.py", "64")
    assert argv[-6:-3] == ["--max_restarts", "0", "--log-dir=logs"] and argv[-3] == "--" and argv[-1] == "64"


@pytest.mark.parametrize("word, meant", [("--nproc", "--nproc_per_node"), ("-n", "--nproc_per_node or --nnodes or --node_rank"),
                                         ("--master=a", "--master_addr or --master_port")])
def test_the_beginning_of_an_option_is_answered_by_its_name(word, meant):
    with pytest.raises(launch.UsageError, match=rf"no option {word.partition('=')[0]}; did you mean {meant}\?"):
        launch.parse([word, "3", "test_gemm_rs.py"], {})
    assert launch.parse(["-m", "test_gemm_rs.py"], {}).torchrun == ["-m"]


def test_one_line_about_the_rank_that_failed_first():
    from triton_dist.cli.torchrun import verdict
    assert verdict(2, 3) == (3, "rank 2 failed with exit code 3")
    assert verdict(0, -9) == (137, "rank 0 was ended by SIGKILL")


@pytest.mark.parametrize("words, remedy", [("address already in use, EADDRINUSE", "name another --master_port"),
                                           ("timed out while trying to connect to (node0, 29500)", "see --master_addr")])
def test_one_line_about_launchers_that_cannot_meet(monkeypatch, words, remedy):
    import torch.distributed.run
    from torch.distributed import DistNetworkError
    from torch.distributed.elastic.rendezvous import RendezvousClosedError

    from triton_dist.cli import torchrun

    def fail():
        raise DistNetworkError(words + "\nand more")
    monkeypatch.setattr(torch.distributed.run, "main", fail)
    monkeypatch.setattr(torchrun.sys, "argv", ["torchrun"])
    monkeypatch.setattr(torchrun.signal, "signal", lambda *_: None)
    status, said = torchrun.run()
    assert status == 1 and said.startswith(f"ranks cannot meet: {words}; {remedy}")
    assert torchrun.cannot_meet(RendezvousClosedError()).startswith("ranks cannot meet: RendezvousClosedError; see")


def test_an_option_of_the_launcher_behind_the_script_is_told(tmp_path):
    script = tmp_path / "ring.py"
    script.write_text("print(1)")
    note = launch.misplaced(launch.parse([str(script), "--check"], {}))
    assert note.startswith("--check stands after ring.py, so it goes to the script") and "before the script" in note
    assert "--nproc_per_node" in launch.misplaced(launch.parse([str(script), "--nproc-per-node=2"], {}))
    assert launch.misplaced(launch.parse(["--check", str(script), "--rounds", "3"], {})) is None
    assert "options of the checker" in launch.astray(script, ["--plot=x.png"], {"plot"}, "the checker")
    script.write_bytes(b"# -*- coding: latin-1 -*-\n# \xe9\nparser.add_argument('--check')")
    assert launch.misplaced(launch.parse([str(script), "--check"], {})) is None

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The first hour with the README and docs/first_steps.md: their commands and code, taken from them and run in a fresh clone."""
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import front_end
import pytest
from launched import launch_sh

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text() + (ROOT / "docs" / "first_steps.md").read_text()

# The newcomer's own kernel. It uses nothing that the README does not show.
BROADCAST = '''
import torch, triton.language as tl
import triton_dist
import triton_dist.language as dl

@triton_dist.jit
def broadcast(x, buffer, flag, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    rank = dl.rank()
    if rank == 0:
        data = tl.load(x + offsets)
    else:
        token = dl.wait(flag, 1, "sys", "acquire", 1)
        data = tl.load(dl.consume_token(buffer, token) + offsets)
    if rank + 1 < dl.num_ranks():
        tl.store(dl.symm_at(buffer, rank + 1) + offsets, data)
        dl.notify(flag, rank + 1, 1)
    tl.store(out + offsets, data)

triton_dist.initialize_distributed()
rank, device = int(torch.distributed.get_rank()), triton_dist.device()
buffer = triton_dist.create_symm_tensor((64,), torch.float32)
flag = triton_dist.create_symm_tensor((1,), torch.int32)
out = torch.empty(64, device=device)
broadcast[(1,)](torch.full((64,), 7.0 + rank, device=device), buffer, flag, out, BLOCK=64)
triton_dist.synchronize()
print(f"rank {rank} got {out.unique().tolist()}")
triton_dist.finalize_distributed()
'''


def blocks(language: str) -> list:
    """The pages' code blocks of a language ('' for none)."""
    return [text for found, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S) if found == language]


def commands() -> dict:
    """Output that the README shows, by command."""
    return {block.splitlines()[0].removeprefix("$ "): block.splitlines()[1:] for block in blocks("console")}


class Machine:
    """A clone, and a folder of the newcomer's own beside it."""

    def __init__(self, folder: Path, python: str | None):
        # Tracked files, as a clone has them, with what is being changed in this checkout.
        self.clone, self.own = folder / "triton_dist", folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file() and not name.startswith("benchmarks/results"):
                (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.clone / name)
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("TRITON", "PYTHON", "PYTEST", "OMP_"))}
        if python:
            self.environment["TRITON_DIST_PYTHON"] = python

    def run(self, command: str, seconds: float = 120) -> subprocess.CompletedProcess:
        """Without --full what launch.sh starts is a fork, which runs this checkout's package (launched.py)."""
        if command.startswith("bash launch.sh ") and front_end.files:
            return launch_sh(*shlex.split(command)[2:], environment=self.environment, cwd=self.clone, seconds=seconds)
        return subprocess.run(["bash", "-c", command], cwd=self.clone, env=self.environment, capture_output=True, text=True,
                              timeout=seconds, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """With the interpreter of these tests, so that nothing need be installed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    return Machine(tmp_path_factory.mktemp("newcomer"), sys.executable)


def follow_the_readme(machine: Machine, seconds: float) -> None:
    """Every command in order, with what it shows; then the kernel with a mistake, then the newcomer's own kernel."""
    first, tests, ring = list(commands())[:3]
    done = machine.run(first, seconds)
    assert done.returncode == 0, done.stderr
    for shown in commands()[first]:         # times and errors differ, everything else is as shown
        pattern = re.sub(r"\d+\\\.\d+", r"[\\d.]+", re.escape(shown)).replace("1.7e\\-03", r"[\d.e-]+")
        pattern = pattern.replace(r"relative\ error\ [\d.]+e\-03", r"relative\ error\ [\d.e-]+")
        assert re.search(pattern, done.stdout), done.stdout
    assert tests == "bash scripts/test.sh" and ring == "bash launch.sh ring.py"

    script, = {block for block in blocks("python") if block.startswith("# ring.py")}       # alike on both pages
    (machine.clone / "ring.py").write_text(script)
    done = machine.run(ring)
    assert done.returncode == 0, done.stderr
    for shown in commands()[ring]:
        assert shown in done.stdout, done.stdout

    notify = re.search(r"^    dl\.notify\(.*\n", script, re.M)[0]
    (machine.clone / "ring.py").write_text(script.replace(notify, ""))
    done = machine.run(ring)
    assert done.returncode != 0
    shown, = [block.splitlines() for block in blocks("") if block.startswith("hang:")]
    rows = [re.sub(r"ring\.py:\d+", "ring.py", line) for line in done.stderr.splitlines()]
    for line in shown[:2] + [line for line in shown if re.match(r"\d ", line)]:
        assert re.sub(r"ring\.py:\d+", "ring.py", line) in rows, done.stderr

    wait = re.search(r"dl\.wait\([^)]*\)", script)[0]
    (machine.clone / "ring.py").write_text(script.replace(wait, "0"))
    shown, = [block.splitlines() for block in blocks("") if "launch.sh --check ring.py" in block]
    done = machine.run(shown[0].removeprefix("$ "))
    assert done.returncode == 1 and done.stdout.splitlines()[:len(shown) - 1] == shown[1:], done.stdout + done.stderr

    (machine.own / "broadcast.py").write_text(BROADCAST)        # "anywhere"
    done = machine.run("bash launch.sh ../broadcast.py")
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert f"rank {rank} got [7.0]" in done.stdout, done.stdout


def test_from_the_first_command_to_a_kernel_of_ones_own(machine):
    follow_the_readme(machine, 120)


def test_tests_run_in_the_clone(machine):
    """The second command, on one file; the whole suite is running this test."""
    done = machine.run("bash scripts/test.sh tests/unit/test_model.py")
    assert done.returncode == 0 and re.search(r"\d+ passed", done.stdout), done.stdout + done.stderr


def test_the_doctor_is_where_the_readme_says(machine):
    """Its command line answers; test_doctor.py runs the examination."""
    command = re.search(r"`(source [^`]*doctor)`", README)[1]
    done = machine.run(f"{command} --help")
    assert done.returncode == 0 and "what is missing" in done.stdout, done.stdout + done.stderr


def test_layers_and_ops_as_shown(tmp_path):
    """The fragment under "A layer", between what it leaves to the reader."""
    fragment, = [block for block in blocks("python") if "AGGemm.from_full" in block]
    (tmp_path / "layers.py").write_text(f'''
import torch, triton_dist
from types import SimpleNamespace
triton_dist.initialize_distributed()
torch.manual_seed(0)
mlp = SimpleNamespace(up=torch.nn.Linear(32, 64), down=torch.nn.Linear(64, 32))
rows = torch.randn(16, 32)
act, (rank, world) = torch.relu, (torch.distributed.get_rank(), torch.distributed.get_world_size())
x = rows[rank * 4:rank * 4 + 4]
{fragment}
triton_dist.synchronize()
assert torch.allclose(y, mlp.down(act(mlp.up(rows)))[rank * 4:rank * 4 + 4], atol=1e-5)
print(f"rank {{rank}} agrees")
triton_dist.finalize_distributed()
''')
    done = launch_sh(str(tmp_path / "layers.py"), environment=dict(os.environ, TRITON_DIST_BACKEND="emulator"))
    assert done.returncode == 0 and all(f"rank {rank} agrees" in done.stdout for rank in range(4)), done.stderr


@pytest.mark.full
def test_on_a_machine_with_nothing_installed(tmp_path):
    """The same path, set-up included: no .venv, no TRITON_DIST_PYTHON."""
    fresh = Machine(tmp_path, None)
    follow_the_readme(fresh, 900)

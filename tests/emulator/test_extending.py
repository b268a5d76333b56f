# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""docs/extending.md: each block of code is a file that works, and the page names every method that a backend must have."""
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.emulator import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.runtime.backend import Backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.workspace import team
from triton_dist.testing import random_tensor

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "extending.md").read_text()
FILES = {re.match(r"# (\w+)\.py", code)[1]: code for code in re.findall(r"```python\n(.*?)```", PAGE, re.S)}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The page's files as modules, by name."""
    for name, code in FILES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module
    for name in FILES:
        sys.modules.pop(name, None)


def test_the_op_is_right_in_groups_and_without_rows(files):
    gather_softmax = files("gather_softmax").gather_softmax

    def host(group):
        if group is torch.distributed.GroupMember.NON_GROUP_MEMBER:
            return
        rank = resolve(group).rank
        for rows in (2, 0, 9):
            shards = [random_tensor(rows, 13, dtype=torch.bfloat16, seed=seed) for seed in range(2)]
            expected = torch.cat(shards).double().softmax(-1)
            out = gather_softmax(shards[rank], group)
            triton_dist.synchronize()
            error = (out.double() - expected).abs()
            assert not rows or bool((error <= expected * 2.0**-8 + 2.0**-20).all())
        with pytest.raises(InvalidArgument, match="contiguous matrix"):
            gather_softmax(torch.randn(4), group)

    run_ranks(host, 3, groups=[[0, 2]])


def test_the_op_is_clean_and_its_mutant_is_not(files, tmp_path):
    report = files("check_gather_softmax").report
    assert report.clean and report.accesses, str(report)
    code = FILES["gather_softmax"]
    assert code.count("dl.consume_token(slots, token)") == 1 and code.count("space.halves()[epoch & 1]") == 1
    (tmp_path / "one_half.py").write_text(code.replace("space.halves()[epoch & 1]", "space.halves()[0]"))
    mutant = files("one_half").gather_softmax

    def host(rank):
        for _ in range(3):
            mutant(torch.ones(4, 20))

    assert not check_kernel(host, world_size=3, schedules=14).clean


def test_the_op_is_an_operator_of_torch(files):
    files("gather_softmax_operator")
    operator = torch.ops.triton_dist.gather_softmax

    def host():
        rank, x = resolve().rank, torch.arange(6, dtype=torch.float32).view(2, 3)
        out = operator(x + rank)
        triton_dist.synchronize()
        torch.testing.assert_close(out, torch.cat([x, x]).softmax(-1))      # adding a number changes no softmax
        with FakeTensorMode() as mode:
            assert operator(mode.from_tensor(x)).shape == (4, 3)

    run_ranks(host, 2)


def test_the_device_function_tells_every_member(files):
    notify_all = files("fetch").notify_all

    def host():
        flag = triton_dist.create_symm_tensor((1,), torch.int32)
        _tell[(1,)](flag, team(resolve()), notify_all)
        triton_dist.synchronize()
        return int(flag)

    assert run_ranks(host, 3) == [7] * 3


@triton_dist.jit
def _tell(flag, team, notify_all: triton.language.constexpr):
    notify_all(flag, team, 7)
    dl.wait(flag, 1, "sys", "acquire", waitValue=7)


def test_the_backend_is_found_by_its_name(tmp_path):
    """By the entry point of an installed distribution."""
    (tmp_path / "counting_backend.py").write_text(FILES["counting_backend"])
    installed = tmp_path / "counting-1.0.dist-info"
    installed.mkdir()
    group, line = re.search(r'entry-points."([\w.]+)"\]\n(\w+ = "\w+")', PAGE).groups()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")
    script = ("import torch, triton_dist\n"
              "from triton_dist.runtime.backend import backend\n"
              "from triton_dist.ops import all_reduce\n"
              "assert backend().name == 'counting', backend().name\n"
              "triton_dist.initialize_distributed()\n"
              "out = all_reduce(torch.ones(64))\n"
              "triton_dist.synchronize()\n"
              "print('sum', out.sum().item())\n")
    environment = dict(os.environ, TRITON_DIST_BACKEND="counting",
                       PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0 and "sum 64.0" in done.stdout, done.stderr


def test_the_page_names_what_a_backend_must_have():
    table = PAGE[PAGE.index("| of `Device` |"):PAGE.index("`gemm_config` of")]
    assert {*re.findall(r"`(\w+)`", table)} - {"Device"} == set(Backend.__abstractmethods__) - {"gemm_config"}


@pytest.mark.parametrize("used", [True, False])
def test_the_rule_finds_what_it_is_about(files, used):
    def host():
        flag = triton_dist.create_symm_tensor((1,), torch.int32)
        _wait[(1,)](flag, torch.zeros(1), used)

    report = check_kernel(host, world_size=2, schedules=3, detector=files("tokens").EveryToken)
    assert report.clean is used
    assert used or report.faults[0].kind == "unused-token"


@triton_dist.jit
def _wait(flag, out, USED: triton.language.constexpr):
    dl.notify(flag, dl.rank())
    token = dl.wait(flag, 1, "sys", "acquire")
    if USED:
        triton.language.store(dl.consume_token(out, token), 1.0)

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
from launched import python
from torch._subclasses.fake_tensor import FakeTensorMode

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.emulator import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.ops import explain
from triton_dist.runtime.backend import Backend
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.workspace import team
from triton_dist.testing import poisoned, random_tensor

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


@pytest.fixture
def gather_softmax(files):
    return files("gather_softmax").gather_softmax


def expected(rows, n, world, dtype=torch.float32):
    """This op's result for x of `shard`."""
    return torch.cat([shard(rows, n, rank, dtype) for rank in range(world)]).double().softmax(-1)


def shard(rows, n, rank, dtype=torch.float32):
    return random_tensor(rows, n, dtype=dtype, seed=rank)


def close(found, wanted):
    """Within a rounding to the dtype of the result."""
    unit = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-20}[found.dtype]
    return found.shape == wanted.shape and bool(((found.double() - wanted).abs() <= wanted * unit + 2.0**-20).all())


@pytest.mark.parametrize("method", ["auto", "fused", "unfused"])
def test_the_op_is_right_in_groups_and_without_rows(gather_softmax, method):
    def host(group):
        if group is torch.distributed.GroupMember.NON_GROUP_MEMBER:
            return
        rank = resolve(group).rank
        for rows in (2, 0, 9, 2):
            for out in (None, poisoned(2 * rows, 13, dtype=torch.bfloat16)):
                found = gather_softmax(shard(rows, 13, rank, torch.bfloat16), group=group, out=out, method=method)
                triton_dist.synchronize()
                assert close(found, expected(rows, 13, 2, torch.bfloat16)) and (out is None or found is out)
        with pytest.raises(InvalidArgument, match="x: expected 2 dimensions"):
            gather_softmax(torch.randn(4), group=group)
        with pytest.raises(InvalidArgument, match="method: expected one of auto, fused, unfused, found 'ring'"):
            gather_softmax(torch.randn(4, 4), group=group, method="ring")

    run_ranks(host, 3, groups=[[0, 2]])


def test_ranks_that_differ_in_the_op_are_told(gather_softmax):
    def host():
        with pytest.raises(CollectiveMismatch, match="m=4.*m=5"):
            gather_softmax(torch.ones(4 + resolve().rank, 8))
            resolve().barrier()

    run_ranks(host, 2)


def test_the_op_is_clean_and_its_mutant_is_not(files, tmp_path):
    report = files("check_gather_softmax").report
    assert report.clean and report.accesses, str(report)
    code = FILES["gather_softmax"]
    assert code.count("dl.consume_token(slots, token)") == 1 and code.count("self.space.halves(self.dtype)[epoch & 1]") == 1
    mutated = code.replace("self.space.halves(self.dtype)[epoch & 1]", "self.space.halves(self.dtype)[0]")
    (tmp_path / "one_half.py").write_text(mutated.replace('name = "gather_softmax"', 'name = "one_half"'))
    mutant = files("one_half").gather_softmax

    def host(rank):
        for _ in range(3):
            mutant(torch.ones(4, 20))

    assert not check_kernel(host, world_size=3, schedules=14).clean


def test_the_checker_counts_what_the_op_says_it_moves(gather_softmax):
    def host(rank):
        gather_softmax(torch.ones(4, 32))

    report = check_kernel(host, world_size=3, schedules=1)
    links = {(a, b) for a in range(3) for b in range(3) if a != b}
    assert report.formula == dict.fromkeys(links, 4 * 32 * 4)
    assert report.links == dict.fromkeys(links, 4 * 32 * 4 + 4 * 4)              # and a flag for each row


def test_a_repeated_call_of_the_op_is_known(gather_softmax, long_ways):
    def host():
        x = shard(4, 8, resolve().rank)
        for _ in range(3):
            assert close(gather_softmax(x), expected(4, 8, 2))

    run_ranks(host, 2)
    assert long_ways == ["gather_softmax"] * 2, "the first call on each rank"


def test_the_op_is_explained_and_every_decision_is_logged(gather_softmax, caplog):
    def host():
        gather_softmax(torch.ones(4, 8))
        return explain("gather_softmax", 8, 8, dtype=torch.float32)

    with caplog.at_level("INFO", "triton_dist.plans"):
        found, _ = run_ranks(host, 2)
        over_nodes = run_ranks(host, 4, nodes=2)[0]
    assert found.chosen == "fused" and found.reason in str(found)
    assert over_nodes.chosen == "unfused" and "can load and store each other's memory" in over_nodes.reason
    lines = [record.getMessage() for record in caplog.records]
    assert sum("gather_softmax" in line and "m=4, n=8 runs by fused, because" in line for line in lines) == 2
    assert sum("gather_softmax" in line and "m=4, n=8 runs by unfused, because not all of ranks" in line for line in lines) == 4


def test_the_op_is_tuned(gather_softmax, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "1")
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", str(tmp_path))

    def host():
        assert close(gather_softmax(shard(4, 8, resolve().rank)), expected(4, 8, 2))
        return explain("gather_softmax", 8, 8, dtype=torch.float32)

    for found in run_ranks(host, 2):
        assert "of 2 measured it was the fastest" in found.reason
        assert {row.choice.method for row in found.candidates if row.measured} == {"fused", "unfused"}
    assert '"gather_softmax"' in (tmp_path / "tuned.json").read_text()


def test_the_op_is_an_operator_of_torch_and_has_a_gradient(gather_softmax):
    def host():
        rank, operator = resolve().rank, torch.ops.triton_dist.gather_softmax
        assert close(operator(shard(2, 3, rank), "@2", "auto"), expected(2, 3, 2))
        with FakeTensorMode() as mode:
            assert operator(mode.from_tensor(torch.ones(2, 3)), "@2", "auto").shape == (4, 3)
        compiled = torch.compile(lambda x: gather_softmax(x * 1) + 0, fullgraph=True, backend="aot_eager")
        for call in (gather_softmax, compiled):
            x = shard(2, 3, rank).requires_grad_()
            weights = random_tensor(4, 3, dtype=torch.float32, seed=9)
            (call(x) * weights).sum().backward()
            wide = shard(2, 3, rank).double().requires_grad_()
            (wide.softmax(-1) * weights[2 * rank:2 * rank + 2]).sum().backward()
            torch.testing.assert_close(x.grad.double(), 2 * wide.grad, rtol=1e-5, atol=1e-6)      # of both ranks' losses

    torch._dynamo.reset()
    run_ranks(host, 2)


@pytest.mark.full
def test_the_op_has_rows_of_a_benchmark_and_a_tuned_table(files, tmp_path):
    """By the command line, started where the op's file is."""
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", OMP_NUM_THREADS="1", TRITON_DIST_CACHE_DIR=str(tmp_path),
                       PYTHONPATH=os.pathsep.join(filter(None, sys.path)))

    def command(*words):
        return subprocess.run([sys.executable, "-m", "triton_dist", *words, "--nproc_per_node", "2"], env=environment,
                              cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    timed = command("bench", "gather_softmax:gather_softmax", "--shapes", "32,64,1", "tiny")
    assert timed.returncode == 0, timed.stderr
    rows = re.findall(r"^ *(\S+) +\d+ +\d+ +\d+ +bfloat16 +fused +\d+ +\d+ +\d+", timed.stdout, re.M)
    assert rows == ["32,64,1", "tiny", "tiny-ragged"] and "fused us  unfused us" in timed.stdout
    tuned = command("tune", "gather_softmax:GATHER_SOFTMAX", "--shapes", "32,64,1", "--out", "table.json")
    assert tuned.returncode == 0 and "written: 1 shapes" in tuned.stdout, tuned.stderr
    assert (tmp_path / "table.json").read_text().count('"method": "fused"') == 1
    wrong = command("bench", "gather_softmax:nothing")
    assert wrong.returncode == 2 and "expected an op" in wrong.stderr


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
    script = tmp_path / "script.py"
    script.write_text("import torch, triton_dist\n"
                      "from triton_dist.runtime.backend import backend\n"
                      "from triton_dist.ops import all_reduce\n"
                      "assert backend().name == 'counting', backend().name\n"
                      "triton_dist.initialize_distributed()\n"
                      "out = all_reduce(torch.ones(64))\n"
                      "triton_dist.synchronize()\n"
                      "print('sum', out.sum().item())\n")
    done = python(str(script), environment=dict(os.environ, TRITON_DIST_BACKEND="counting"))
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

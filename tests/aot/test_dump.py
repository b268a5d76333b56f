# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist dump`: every stage for every target, of our kernels and of a user's, and what is refused."""

import re

import pytest

from triton_dist.aot import dump
from triton_dist.aot.targets import parse_targets
from triton_dist.cli.main import TOOLS
from triton_dist.ops.registry import OPS

USERS = """import triton
import triton.language as tl
import triton_dist
import triton_dist.language as dl


@triton.autotune([triton.Config(dict(BLOCK=64)), triton.Config(dict(BLOCK=128))], key=["n"])
@triton_dist.jit
def add(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + dl.rank(), mask=i < n)


@triton.jit
def wrong(x, BLOCK: tl.constexpr):
    tl.store(x, undefined + BLOCK)


no_kernel = 7
"""
SIGNATURE = "*fp32:16, *fp32:16, i32, %BLOCK"
MARKS = {
    "ttir": "tt.func",
    "ttgir": "ttg.num-warps",
    "llir": "define ",
    "ptx": ".visible .entry",
    "amdgcn": "s_endpgm",
    "cubin": b"\x7fELF",
    "hsaco": b"\x7fELF",
}


@pytest.fixture
def users(tmp_path) -> str:
    (tmp_path / "users.py").write_text(USERS)
    return f"{tmp_path / 'users.py'}"


@pytest.mark.parametrize("target", dump.EVERY_TARGET.split(","))
def test_every_stage_of_a_users_kernel(users, target, tmp_path, capsys):
    out = tmp_path / "out"
    words = [f"{users}:add", "BLOCK=256", "num_warps=8", "--signature", SIGNATURE, "--target", target, "--out", str(out)]
    assert dump.main(words) == 0
    stages = [stage for stage in dump.STAGES["cuda" if target.startswith("sm") else "hip"] if stage != "sass"]
    assert sorted(path.name for path in out.iterdir()) == sorted(f"add.{target}.{stage}" for stage in stages)
    assert capsys.readouterr().out.splitlines() == [str(out / f"add.{target}.{stage}") for stage in stages]
    for stage in stages:
        code = (out / f"add.{target}.{stage}").read_bytes()
        mark = MARKS[stage]
        assert (mark if isinstance(mark, bytes) else mark.encode()) in code
    llir = (out / f"add.{target}.ttgir").read_text()
    assert '"ttg.num-warps" = 8' in llir and "tensor<256x" in llir and "users.py" in llir
    assert target.removeprefix("sm_") in (out / f"add.{target}.{'ptx' if target.startswith('sm') else 'amdgcn'}").read_text()


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_one_stage_is_printed_and_a_stage_of_the_other_vendor_is_its_like(users, target, capsys):
    words = [f"{users}:add", "--stage", "ptx", "--target", target, "--no-lines", "BLOCK=64", "--signature", SIGNATURE]
    assert dump.main(words) == 0
    text = capsys.readouterr().out
    assert (".visible .entry add" if target == "sm_90" else "amdhsa_kernel add") in text and "users.py" not in text
    assert "tdist_ctx" in text, "the device runtime is linked"


def test_a_constexpr_of_ours_may_be_set(capsys):
    sent = {}
    for world in (2, 4):
        words = ["all_reduce_rmsnorm", f"WORLD={world}", "--stage", "ptx", "--target", "sm_90", "--no-lines"]
        assert dump.main(words) == 0
        sent[world] = len(re.findall(r"ld\.relaxed\.sys\.global\.v4", capsys.readouterr().out))
    assert sent == {2: 1, 4: 4}, "of two ranks a program polls the other's words alone, of more it has a poll for each"


@pytest.mark.full
@pytest.mark.parametrize("target", dump.EVERY_TARGET.split(","))
@pytest.mark.parametrize("name", sorted(dump.ours()))
def test_our_kernels_compile_for_every_target_that_they_are_for(name, target, tmp_path, capsys):
    code = dump.main([name, "--target", target, "--out", str(tmp_path)])
    words = capsys.readouterr()
    vendor = "cuda" if target.startswith("sm") else "hip"
    allowed = {word for space in dump.spaces_of(dump.ours()[name]) for info in space.infos
               for word in info.get("targets", space.targets)}
    fits = not allowed or any(str(parse_targets(target)[0]).startswith(word) for word in allowed)
    assert code == (0 if fits else 2), words.err
    if fits:
        assert {path.suffix[1:] for path in tmp_path.iterdir()} >= {*dump.STAGES[vendor][1:-1]} - {"sass"}
    else:
        assert f"{name}: it is not made for {target}" in words.err


def test_the_list_has_every_op(capsys):
    assert dump.main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert len(listed) == len({*listed}) > 15
    lacking = {op for op, made in OPS.items() if type(made).__module__.startswith("triton_dist.ops.")
               and not any(name.startswith(op) for name in listed)}
    assert lacking <= {"all_to_all_single", "all_gather_2d", "reduce_scatter_2d"}, "by copies alone, and over SHMEM's bitcode"


@pytest.mark.parametrize("words, code, said", [
    ([], 2, "expected a kernel, or --list"),
    (["nothing"], 2, "expected module:name, path.py:name or one of ag_gemm,"),
    (["{users}:add"], 2, "several stages or targets need --out FOLDER"),
    (["{users}:add", "--stage", "ptx", "--target", "sm_90"], 2, "it needs a --signature: a type for each of x, y, n, BLOCK"),
    (["{users}:no_kernel", "--stage", "ptx", "--target", "sm_90"], 2, "there is no jit function of that name"),
    (["{users}:add", "--signature", "*fp32", "--stage", "ptx", "--target", "sm_90"], 2, "expected 4 entries"),
    (["gemm_ar", "--stage", "cutlass", "--target", "sm_90"], 2, "stage: expected one of ttir, ttgir, llir, ptx, cubin, sass"),
    (["gemm_ar", "--stage", "sass", "--target", "gfx942"], 2, "stage: expected one of ttir, ttgir, llir, amdgcn, hsaco"),
    (["gemm_ar", "m=4", "--stage", "ptx", "--target", "sm_90"], 2, "gemm_ar: m: no constexpr of it"),
    (["gemm_ar", "m", "--stage", "ptx", "--target", "sm_90"], 2, "expected NAME=VALUE, found 'm'"),
    (["ag_gemm", "--stage", "ptx", "--target", "gfx942"], 2, "ag_gemm: it is not made for gfx942"),
    (["ag_gemm", "--stage", "ttir", "--target", "sm_90"], 2, "a Gluon kernel has no ttir"),
    (["gemm_ar", "--stage", "ptx", "--target", "h100"], 2, "found 'h100'"),
    (["{users}:wrong", "BLOCK=1", "--signature", "*i32, %BLOCK", "--stage", "ttir", "--target", "sm_90"], 1, "undefined"),
])
def test_what_is_wrong_is_said(users, words, code, said, capsys):
    assert dump.main([word.replace("{users}", users) for word in words]) == code
    assert said in capsys.readouterr().err


def test_the_command_knows_it():
    assert {"dump", "env"} <= set(TOOLS)

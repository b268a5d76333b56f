# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""print_if and breakpoint_if emulated: who prints, what the debugger shows, and ranks that wait for one that is stopped."""
import io
import re
import sys

import pytest
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.twins import debug
from triton_dist.runtime.errors import InvalidArgument


@triton_dist.jit
def prints(x, RULE: tl.constexpr):
    a = tl.load(x + tl.program_id(0) + tl.program_id(1))
    dl.print_if(RULE, "saw", a, dl.rank())
    dl.print_if(a == 3, "three")


@triton_dist.jit
def stops(x, flag, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    dl.breakpoint_if(dl.rank() == 1, tl.max(a))
    doubled = a * 2
    dl.notify(flag, 1 - dl.rank())
    token = dl.wait(flag, 1, "sys", "acquire", 1)
    tl.store(dl.consume_token(out, token) + i, doubled)


@pytest.mark.parametrize("rule, programs", [
    ("=1", {(1, 0), (1, 1)}), (">0,=0", {(1, 0), (2, 0)}), ("!=1, <=0", {(0, 0), (2, 0)}),
    ("", {(i, j) for i in range(3) for j in range(2)}), (",>=1,<1", {(0, 1), (1, 1), (2, 1)})])
def test_programs_that_a_rule_means_print(rule, programs, capsys):
    def rank():
        prints[(3, 2)](torch.arange(10), RULE=rule)
        triton_dist.synchronize()
    run_ranks(rank, 1)
    lines = capsys.readouterr().out.splitlines()
    found = {tuple(map(int, re.findall(r"\d+", line)[:2])) for line in lines if "saw" in line}
    assert found == programs
    assert all(line.endswith(f"saw {sum(map(int, re.findall(r'[0-9]+', line)[:2]))} 0") for line in lines if "saw" in line)
    assert sum("three" in line for line in lines) == 1, "program (2, 1) alone has 3"


def test_the_debugger_opens_in_the_kernel_and_the_other_rank_waits(monkeypatch, capsys):
    monkeypatch.setattr(debug, "_terminal", lambda: io.StringIO("p a\nn\np doubled\np flag\nc\n"))
    monkeypatch.setenv("TRITON_DIST_HANG_SECONDS", "0.01")

    def rank():
        flag = triton_dist.create_symm_tensor((1, ), torch.int32).zero_()
        out = torch.zeros(4)
        stops[(1, )](torch.arange(4.0), flag, out, BLOCK=4)
        triton_dist.synchronize()
        return out
    before = sys.gettrace()
    assert all(torch.equal(out, torch.arange(4.0) * 2) for out in run_ranks(rank, 2))
    sys.settrace(before)
    text = capsys.readouterr().out
    assert text.count("breakpoint_if: rank 1, program (0, 0, 0) of stops, at test_debug.py:") == 1
    assert "-> doubled = a * 2" in text and "tensor<4xfp32> tensor([0., 1., 2., 3.])" in text
    assert "-> dl.notify(flag, 1 - dl.rank())" in text and "tensor([0., 2., 4., 6.])" in text


@pytest.mark.parametrize("tensor, said", [
    (torch.zeros(4, 6).t(), r"x: expected a contiguous tensor, found strides \(1, 6\) for shape \(6, 4\); pass .contiguous\(\)"),
    (torch.zeros(2, device="meta"), "x: expected a tensor on cpu, found one on meta; move it by"),
    ([1, 2], "x: expected a tensor, found list"),
])
def test_tensors_that_are_not_ready_are_told(tensor, said):
    triton_dist.check_tensors_gpu_ready(torch.zeros(3), y=torch.zeros(2, 2)[1])
    with pytest.raises(InvalidArgument, match=said):
        triton_dist.check_tensors_gpu_ready(torch.zeros(3), x=tensor)
    with pytest.raises(InvalidArgument, match=said.replace("x: ", "tensor 1: ", 1)):
        triton_dist.check_tensors_gpu_ready(torch.zeros(3), tensor)

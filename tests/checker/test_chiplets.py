# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The checker for GPUs whose barriers leave stores under way: three faults and their right twins.

That our own ops are clean there is in test_ops.py.
"""
import pytest
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.checker import check_kernel
from triton_dist.checker.chiplets import ChipletDetector


@triton_dist.jit
def hand_over(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    i, two = tl.arange(0, N), tl.arange(0, 2)
    if dl.rank() == 0:
        tl.store(dl.symm_at(buffer, 1) + i, tl.load(x + i))
        if HOW == "stock release":
            tl.debug_barrier()
            tl.atomic_xchg(dl.symm_at(flag, 1), 1, sem="release", scope="sys")
        elif HOW == "gpu scope":
            dl.notify(flag, 1, comm_scope="gpu")
        elif HOW == "no write-back":
            tl.debug_barrier()
            tl.atomic_xchg(dl.symm_at(flag, 1), 1, sem="relaxed", scope="sys")
        elif HOW == "notify":
            dl.notify(flag, 1, comm_scope="intra_node")
        elif HOW == "notify_each":
            dl.notify_each(dl.symm_at(flag, 1) + two, 1, two < 1)
        elif HOW == "barrier_all":
            dl.barrier_all()
    else:
        if HOW == "barrier_all":
            dl.barrier_all()
        else:
            dl.wait(flag, 1, "sys", "acquire")
        tl.store(out + i, tl.load(buffer + i))


def script(how: str):
    def run(rank: int) -> None:
        buffer, flag = triton_dist.create_symm_tensor((64,), torch.float32), triton_dist.create_symm_tensor((2,), torch.int32)
        x, out = torch.full((64,), 3.0), torch.zeros(64)
        hand_over[(1,)](x, buffer, flag, out, HOW=how, N=64)
        triton_dist.synchronize()
    return run


@pytest.mark.parametrize("how", ["stock release", "gpu scope", "no write-back"])
def test_faults_are_found(how):
    report = check_kernel(script(how), 2, 4, detector=ChipletDetector)
    assert [fault.kind for fault in report.faults] == ["race"], str(report)


def test_a_stock_release_is_right_where_barriers_wait_for_stores():
    assert check_kernel(script("stock release"), 2, 4).clean


@pytest.mark.parametrize("how", ["notify", "notify_each", "barrier_all"])
def test_right_twins_are_clean(how):
    for options in ({}, {"detector": ChipletDetector}):
        report = check_kernel(script(how), 2, 4, **options)
        assert report.clean and report.accesses, str(report)


def test_the_command_takes_the_detector_and_refuses_what_it_cannot_draw(tmp_path, capsys):
    from triton_dist.checker.command import main
    target = tmp_path / "script.py"
    target.write_text("""
import torch, triton_dist, triton.language as tl, triton_dist.language as dl

@triton_dist.jit
def kernel(buffer, flag, out):
    i = tl.arange(0, 64)
    if dl.rank() == 0:
        tl.store(dl.symm_at(buffer, 1) + i, 1.0)
        tl.debug_barrier()
        tl.atomic_xchg(dl.symm_at(flag, 1), 1, sem="release", scope="sys")
    else:
        dl.wait(flag, 1, "sys", "acquire")
        tl.store(out + i, tl.load(buffer + i))

triton_dist.initialize_distributed()
symm = triton_dist.create_symm_tensor
kernel[(1,)](symm((64,), torch.float32), symm((1,), torch.int32), torch.zeros(64))
triton_dist.synchronize()
triton_dist.finalize_distributed()
""")
    usual = ["-n", "2", "--schedules", "2", str(target)]
    assert main(usual) == 0 and main(["--chiplets", *usual]) == 1
    with pytest.raises(SystemExit):
        main(["--chiplets", "--plot", str(tmp_path / "a.png"), *usual])
    assert "--chiplets draws nothing" in capsys.readouterr().err

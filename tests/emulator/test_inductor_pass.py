# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Models that DTensor has made parallel, compiled with our pass: the same results, by our ops. Also the script of the ranks."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               parallelize_module)

import triton_dist
from triton_dist.integrations import inductor
from triton_dist.runtime.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[2]
WIDTH, LENGTH = 32, 8


class Block(nn.Module):
    """Two halves of a decoder's layer, with several products behind one gather, with and without bias."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.one(x)
        x = x + self.o(self.q(h) + self.k(h))
        return x + self.down(torch.relu(self.up(self.two(x))))


def parallel(sequence: bool) -> nn.Module:
    torch.manual_seed(0)
    if sequence:
        columns = {"input_layouts": Shard(1)}
        rows = {"output_layouts": Shard(1), "use_local_output": False}
        plan = {"": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1)), "one": SequenceParallel(),
                "two": SequenceParallel()}
    else:
        columns, rows, plan = {}, {}, {}
    plan |= {name: ColwiseParallel(**columns) for name in ("q", "k", "up")}
    plan |= {name: RowwiseParallel(**rows) for name in ("o", "down")}
    return parallelize_module(Block(), init_device_mesh("cpu", (torch.distributed.get_world_size(),)), plan)


def results(model: nn.Module, call, x: torch.Tensor, train: bool) -> list:
    """The output; in training also the gradients of input and parameters."""
    model.zero_grad()
    x = x.clone().requires_grad_(train)
    with torch.set_grad_enabled(train):
        out = call(x)
        out = out.to_local() if isinstance(out, DTensor) else out
        if not train:
            return [out]
        (out * torch.arange(out.numel()).view_as(out)).sum().backward()
    grads = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
    return [out.detach(), x.grad, *grads]


def models(sequence: bool, batch: int, train: bool) -> None:
    model, world = parallel(sequence), torch.distributed.get_world_size()
    x = torch.randn(batch, LENGTH // world if sequence else LENGTH, WIDTH, generator=torch.Generator().manual_seed(5))
    want = results(model, model, x, train)
    report = inductor.enable()
    got = results(model, torch.compile(model), x, train)
    inductor.disable()
    for found, expected in zip(got, want, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not report.kept, report
    forward = ["ag_gemm", "gemm_rs"] * 2 if sequence else ["gemm_ar"] * 2
    assert [line.split()[0] for line in report.replaced][:len(forward)] == forward
    assert len(report.replaced) > len(forward) if train else len(report.replaced) == len(forward)
    print("as expected", flush=True)


def kept() -> None:
    """What has no op of ours stays as it is, with a reason."""
    def sums(x, weight):
        largest = functional.all_reduce(x @ weight, "max", torch.distributed.group.WORLD)
        alone = functional.all_reduce(x, "sum", torch.distributed.group.WORLD)
        product = x @ weight
        twice = functional.all_reduce(product, "sum", torch.distributed.group.WORLD) + product
        return largest, alone, twice

    x, weight = torch.ones(8, 8), torch.ones(8, 8) * (torch.distributed.get_rank() + 1)
    report = inductor.enable()
    again = inductor.enable()
    with torch.no_grad():
        got, want = torch.compile(sums)(x, weight), sums(x, weight)
    inductor.disable()
    for found, expected in zip(got, want, strict=True):
        torch.testing.assert_close(found, expected)
    assert not report.kept and not again.replaced and len(again.kept) == 3, again
    assert sorted(line.partition(": ")[2] for line in again.kept) == [
        "it does not follow a product", "its op is 'max', expected 'sum'", "the product before it is used elsewhere too"]
    print("as expected", flush=True)


def main() -> None:
    triton_dist.initialize_distributed()
    if sys.argv[1] == "kept":
        kept()
    else:
        models(sys.argv[1] == "sequence", int(sys.argv[2]), sys.argv[3] == "train")
    triton_dist.finalize_distributed()


def run(*args) -> None:
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", TRITON_DIST_PYTHON=sys.executable, OMP_NUM_THREADS="1",
                       TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")             # a graph from the disk meets no pass
    done = subprocess.run(["bash", "launch.sh", "--nproc_per_node", "2", __file__, *args], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and done.stdout.count("as expected") == 2, done.stderr


@pytest.mark.parametrize("layout, batch, phase", [
    ("sequence", 2, "infer"),
    *(pytest.param(*case, marks=pytest.mark.full) for case in (
        ("whole", 1, "infer"), ("whole", 2, "train"), ("sequence", 1, "train"), ("sequence", 1, "infer"),
        ("sequence", 2, "train")))])
def test_collectives_beside_products_become_our_ops_and_results_stay(layout, batch, phase):
    run(layout, str(batch), phase)


def test_what_cannot_be_replaced_stays_with_a_reason():
    run("kept")


def test_another_pass_runs_first_or_is_refused(monkeypatch):
    from torch._inductor import config
    monkeypatch.setattr(config, "force_disable_caches", True)
    seen = []

    class Other(inductor.CustomGraphPass):
        def __call__(self, graph):
            seen.append(len(graph.nodes))

        def uuid(self):
            return "other"
    other = Other()
    monkeypatch.setattr(config, "post_grad_custom_pre_pass", other)
    report = inductor.enable()
    assert torch.compile(lambda x: x + 1)(torch.ones(3)).tolist() == [2, 2, 2] and len(seen) == 1
    assert not report.replaced and config.post_grad_custom_pre_pass.uuid()[1] == "other"
    inductor.disable()
    assert config.post_grad_custom_pre_pass is other
    monkeypatch.setattr(config, "post_grad_custom_pre_pass", lambda graph: None)
    with pytest.raises(InvalidArgument, match="expected None or a CustomGraphPass, found function"):
        inductor.enable()


if __name__ == "__main__":
    main()

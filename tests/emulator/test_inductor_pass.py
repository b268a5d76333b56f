# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Models that DTensor has made parallel, compiled with our pass: the same results, by our ops. Also the script of the ranks."""
import os
import sys

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               parallelize_module)

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.integrations import inductor
from triton_dist.runtime.errors import InvalidArgument

from functorch.compile import make_boxed_func

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


def of_graphs(*reports: inductor.Report):
    """A backend that runs the graph that our pass leaves. What Inductor makes of it takes ten times as long."""
    def by_our_pass(module, inputs):
        for report in reports:
            inductor.Overlap(report)(module.graph)
        module.recompile()
        return make_boxed_func(module)
    return aot_autograd(fw_compiler=by_our_pass, decompositions=select_decomp_table())


def models(sequence: bool, batch: int, train: bool, whole: bool) -> None:
    model, world = parallel(sequence), torch.distributed.get_world_size()
    x = torch.randn(batch, LENGTH // world if sequence else LENGTH, WIDTH, generator=torch.Generator().manual_seed(5))
    want = results(model, model, x, train)
    report = inductor.enable() if whole else inductor.Report()
    got = results(model, torch.compile(model, backend="inductor" if whole else of_graphs(report)), x, train)
    inductor.disable()
    for found, expected in zip(got, want, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not report.kept, report
    normed = "gemm_ar_rmsnorm" if batch * LENGTH <= 8 else "all_reduce_rmsnorm"
    forward = ["ag_gemm", "gemm_rs"] * 2 if sequence else ["gemm_ar" if train else normed, "gemm_ar"]
    assert [line.split()[0] for line in report.replaced][:len(forward)] == forward
    assert len(report.replaced) > len(forward) if train else len(report.replaced) == len(forward)
    print("as expected", flush=True)


def kept(whole: bool) -> None:
    """What has no op of ours stays as it is, with a reason."""
    def sums(x, weight):
        largest = functional.all_reduce(x @ weight, "max", torch.distributed.group.WORLD)
        alone = functional.all_reduce(x, "sum", torch.distributed.group.WORLD)
        product = x @ weight
        twice = functional.all_reduce(product, "sum", torch.distributed.group.WORLD) + product
        return largest, alone, twice

    x, weight = torch.ones(8, 8), torch.ones(8, 8) * (torch.distributed.get_rank() + 1)
    report, again = [inductor.enable() if whole else inductor.Report() for _ in range(2)]
    with torch.no_grad():
        compiled = torch.compile(sums, backend="inductor" if whole else of_graphs(again))
        got, want = compiled(x, weight), sums(x, weight)
    inductor.disable()
    for found, expected in zip(got, want, strict=True):
        torch.testing.assert_close(found, expected)
    assert not report.kept and not again.replaced and len(again.kept) == 3, again
    assert sorted(line.partition(": ")[2] for line in again.kept) == [
        "it does not follow a product", "its op is 'max', expected 'sum'", "the product before it is used elsewhere too"]
    print("as expected", flush=True)


class HuggingFaceNorm(nn.Module):
    """As the decoders of transformers write it."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(weight), 1e-3

    def forward(self, x):
        dtype, x = x.dtype, x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(dtype)


class Written(HuggingFaceNorm):
    """By a product with itself, and with the weight second."""

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.variance_epsilon)).to(x.dtype) * self.weight


class Of1PlusWeight(HuggingFaceNorm):
    """As Gemma's: of fp32."""

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * (1 + self.weight.float())).to(x.dtype)


def summed(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x, "sum", torch.distributed.group.WORLD)


def rewritten(call, *args, dynamic=False) -> tuple:
    """(results of the graph of a call after our pass, eager results, the report)."""
    report = inductor.Report()
    torch._dynamo.reset()
    for t in (args[0], args[2]) if dynamic else ():
        for dim in range(2):
            torch._dynamo.mark_dynamic(t, dim)
    with torch.no_grad():
        return torch.compile(call, backend=of_graphs(report))(*args), call(*args), report


def norms(every: bool) -> None:
    """Ways to write a norm, with and without a residual and a product, each once or `every` pair; and norms that must stay."""
    def alone(x, weight, residual, norm):
        return norm(summed(x)), None

    def after_product(x, weight, residual, norm):
        total = residual + summed(x @ weight.t())
        return norm(total), total

    def other_order(x, weight, residual, norm):
        total = summed(x).view(residual.shape) + residual
        return norm(total), total * 2

    def twice(x, weight, residual, norm):
        total = residual + summed(x)
        again = total + summed(norm(total) @ weight.t())
        return norm(again), again

    world = torch.distributed.get_world_size()
    for dtype in (torch.float32, torch.bfloat16):
        step = 1e-5 if dtype is torch.float32 else 2**-6                # a few roundings to the dtype on either side
        made = torch.Generator().manual_seed(1)
        weight, residual, scale = (torch.randn(*s, generator=made).to(dtype) for s in ((WIDTH, WIDTH), (2, 4, WIDTH), (WIDTH,)))
        x = torch.randn(2, 4, WIDTH, generator=made.manual_seed(7 + torch.distributed.get_rank())).to(dtype)
        torch_norm = nn.RMSNorm(WIDTH, eps=1e-3).to(dtype)
        torch_norm.load_state_dict({"weight": scale})
        one, both = "all_reduce_rmsnorm", "gemm_ar_rmsnorm"
        calls = ((alone, [one]), (after_product, [both]), (other_order, [one]), (twice, [one, both]))
        written = HuggingFaceNorm(scale), Written(scale), torch_norm
        pairs = [(norm, call) for norm in written for call in (calls if dtype is torch.float32 else calls[-1:])]
        few = [*zip(written, calls), (torch_norm, calls[-1])] if dtype is torch.float32 else pairs[1:2]
        few = few if world > 1 else few[-1:]
        for norm, (call, expected) in pairs if every else few:
            got, want, report = rewritten(call, x, weight, residual, norm)
            same(got, want, step)
            ops = [line.split()[0] for line in report.replaced]
            if world == 1:
                assert not {one, both} & {*ops}, report
                assert sum("the norm after it stays, there is one rank" in line for line in report.kept) == len(expected), report
            else:
                assert ops == expected and not report.kept, (call.__name__, norm, report)
    if world == 1:
        print("as expected", flush=True)
        return
    half = nn.RMSNorm(WIDTH, eps=1e-3, elementwise_affine=False)
    for norm, options, why in (
            (Of1PlusWeight(scale), {}, "its weight is not a vector of the dtype that is reduced"),
            (HuggingFaceNorm(scale), dict(dynamic=True), "its number of rows is not the same in all calls"),
            (half, {}, "it has no weight"), (nn.Softmax(-1), {}, "")):
        got, want, report = rewritten(after_product, x, weight, residual, norm, **options)
        same(got, want, step)
        assert report.replaced == ["gemm_ar for all_reduce"] and len(report.kept) == bool(why), (norm, report)
        assert not why or report.kept[0].endswith(f"the norm after it stays, {why}"), (norm, report)
    print("as expected", flush=True)


def same(got: tuple, want: tuple, step: float) -> None:
    for found, expected in zip(got, want, strict=True):
        if expected is not None:
            torch.testing.assert_close(found, expected, rtol=step, atol=step * float(expected.abs().max()))


def compile_whole() -> None:
    """One by Inductor: all collectives of a block have become ours, and the residual lives on. Too large ones stay."""
    def block(x, weight, residual, norm):
        total = residual + summed(x @ weight)
        return norm(total), total

    norm = HuggingFaceNorm(torch.ones(WIDTH))
    for rows, op in ((8, "gemm_ar_rmsnorm"), (9, "all_reduce_rmsnorm"), (200_000, "gemm_ar")):
        args = torch.ones(rows, WIDTH) * (1 + torch.distributed.get_rank()), torch.eye(WIDTH), torch.ones(rows, WIDTH), norm
        report = inductor.enable()
        torch._dynamo.reset()
        with torch.no_grad():
            same(torch.compile(block)(*args), block(*args), 1e-5)
        inductor.disable()
        assert report.replaced == [f"{op} for all_reduce"] and len(report.kept) == (op == "gemm_ar"), report
    print("as expected", flush=True)


def main() -> None:
    triton_dist.initialize_distributed()
    for scenario in sys.argv[1:]:
        first, *words = scenario.split()
        torch._dynamo.reset()
        if first == "kept":
            kept("whole" in words)
        elif first == "norms":
            norms("every" in words)
        elif first == "norm":
            compile_whole()
        else:
            models(first == "sequence", int(words[0]), "train" in words, "whole" in words)
    triton_dist.finalize_distributed()


def run(*scenarios, world: int = 2) -> None:
    """The scenarios one after the other, in one start of the ranks."""
    from launched import launch_sh              # of the tests: ranks, which run this file too, have no need of it
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", OMP_NUM_THREADS="1",
                       TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")             # a graph from the disk meets no pass
    done = launch_sh("--nproc_per_node", str(world), __file__, *scenarios, environment=environment, seconds=240)
    assert done.returncode == 0 and done.stdout.count("as expected") == world * len(scenarios), done.stderr


def test_graphs_of_two_ranks():
    """Collectives beside products become our ops, and results stay. What cannot be replaced stays with a reason. A residual and a
    norm after an all-reduce are fused with it where the op is faster, however the norm is written; else the report says why not.
    """
    run("sequence 1 infer", "kept", "norms")


def test_of_one_rank_a_norm_after_an_all_reduce_stays():
    run("norms", world=1)


@pytest.mark.full
@pytest.mark.parametrize("world", [1, 2])
def test_every_norm_after_every_all_reduce(world):
    run("norms every", world=world)


@pytest.mark.full
@pytest.mark.parametrize("scenario", [
    "whole 1 infer", "whole 1 infer whole", "whole 2 train whole", "sequence 1 train whole", "sequence 1 infer whole",
    "sequence 2 train whole", "sequence 2 infer whole", "kept whole"])
def test_other_models_and_by_inductor_too(scenario):
    run(scenario)


@pytest.mark.full
def test_a_norm_after_an_all_reduce_by_inductor():
    run("norm")


def test_a_graph_on_disk_is_for_groups_of_the_same_sizes():
    """An all-reduce in a graph says how its group is called, and not how many ranks it has."""
    def uuid(more=0):
        torch.distributed.init_process_group()
        for _ in range(more):
            torch.distributed.new_group([0])
        return inductor.Overlap(inductor.Report()).uuid()

    two, again, three, with_another = (run_ranks(lambda more=more: uuid(more), world, heap=False)
                                       for world, more in ((2, 0), (2, 0), (3, 0), (2, 1)))
    assert two[0] == two[1] == again[0] and len({two[0], three[0], with_another[0]}) == 3


def test_another_pass_runs_first_or_is_refused():
    from torch._inductor import config
    seen = []

    class Other(inductor.CustomGraphPass):
        def __call__(self, graph):
            seen.append(len(graph.nodes))

        def uuid(self):
            return "other"
    other = Other()
    with config.patch(force_disable_caches=True, post_grad_custom_pre_pass=other):
        report = inductor.enable()
        assert torch.compile(lambda x: x @ x)(torch.ones(2, 2)).tolist() == [[2, 2], [2, 2]] and len(seen) == 1
        assert not report.replaced and config.post_grad_custom_pre_pass.uuid()[1] == "other"
        inductor.disable()
        assert config.post_grad_custom_pre_pass is other
    with config.patch(post_grad_custom_pre_pass=lambda graph: None):
        with pytest.raises(InvalidArgument, match="expected None or a CustomGraphPass, found function"):
            inductor.enable()


if __name__ == "__main__":
    main()

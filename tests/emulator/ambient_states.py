# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ops with what they must give, and states of torch that a call can be wrapped in."""
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import triton_dist
from triton_dist import ops

ROWS, COLUMNS = 4, 16


def drawn(seed: int, rank: int, *shape: int) -> torch.Tensor:
    """A float32 tensor of -1, 0 and 1, whose sums are exact in any dtype. Every rank can draw that of any other."""
    generator = torch.Generator(device="cpu").manual_seed(1000 * seed + rank)
    return torch.randint(-1, 2, shape, generator=generator, device="cpu").to(torch.float32)


@dataclass
class Case:
    """An op on `x`, and its result by plain torch in float64. `gemm`: it follows autocast."""
    run: Callable[[torch.Tensor], torch.Tensor]
    x: torch.Tensor
    want: torch.Tensor
    gemm: bool = False

    def check(self, got: torch.Tensor) -> None:
        """Raises where `got` is not what was wanted."""
        if got.shape != self.want.shape or not torch.equal(got.detach().double(), self.want):
            raise AssertionError(f"found {got}, expected {self.want}")


def _collective(op: Callable, want: Callable, **options: Any) -> Callable:
    def make(seed: int, rank: int, world: int, extra: int) -> Case:
        shape = (world * (ROWS + extra), COLUMNS)
        every = torch.stack([drawn(seed, peer, *shape) for peer in range(world)]).double()
        return Case(lambda x: op(x, **options), drawn(seed, rank, *shape), want(every, rank, world))
    return make


def _gemm(op: Callable, want: Callable, **options: Any) -> Callable:
    def make(seed: int, rank: int, world: int, extra: int) -> Case:
        m, n, k = world * (ROWS + extra), 8, COLUMNS
        xs = torch.stack([drawn(seed, peer, m, k) for peer in range(world)]).double()
        weights = torch.stack([drawn(seed + 500, peer, n, k) for peer in range(world)]).double()
        weight = drawn(seed + 500, rank, n, k)
        want_here = want(xs, weights, rank, world)
        return Case(lambda x: op(x, weight, **options), drawn(seed, rank, m, k), want_here, gemm=True)
    return make


def _by_splits(seed: int, rank: int, world: int, extra: int) -> Case:
    shape = (world * ROWS, COLUMNS)
    splits = torch.full((world,), ROWS - 1, dtype=torch.int32)
    every = [drawn(seed, peer, *shape).double() for peer in range(world)]
    want = torch.cat([x[rank * (ROWS - 1):(rank + 1) * (ROWS - 1)] for x in every])
    return Case(lambda x: ops.all_to_all_vdev(x, splits)[0][:world * (ROWS - 1)], drawn(seed, rank, *shape), want)


def _by_experts(seed: int, rank: int, world: int, extra: int) -> Case:
    """There and back: each row comes back to its place."""
    x = drawn(seed, rank, world * ROWS, COLUMNS)
    splits = torch.full((world,), ROWS, dtype=torch.int32)

    def run(x: torch.Tensor) -> torch.Tensor:
        there, told = ops.all_to_all_vdev_2d(x, splits)
        return ops.all_to_all_vdev_2d_offset(there, told, capacity=world * ROWS)[0]
    return Case(run, x, x.double())


def _grouped(method: str) -> Callable:
    def make(seed: int, rank: int, world: int, extra: int) -> Case:
        n, first = 8, rank % 3                      # ranks need not have equally many rows of an expert
        x, weight = drawn(seed, rank, ROWS + extra, COLUMNS), drawn(seed + 500, rank, 2, n, COLUMNS)
        offsets = torch.tensor([0, first, ROWS + extra], dtype=torch.int32, device="cpu")
        want = torch.cat([x[:first].double() @ weight[0].double().t(), x[first:].double() @ weight[1].double().t()])
        return Case(lambda x: ops.grouped_gemm(x, weight, offsets=offsets, method=method), x, want)
    return make


def _norm(seed: int, rank: int, world: int, extra: int) -> Case:
    """Its second result: the sum, which is exact."""
    make = _collective(lambda x: ops.all_reduce_rmsnorm(x, torch.ones(COLUMNS, device="cpu", dtype=torch.float32))[1],
                       lambda every, rank, world: every.sum(0))
    return make(seed, rank, world, extra)


def _layer_norm(seed: int, rank: int, world: int, extra: int) -> Case:
    """Likewise."""
    make = _collective(lambda x: ops.all_reduce_layernorm(x, torch.ones(COLUMNS, device="cpu", dtype=torch.float32))[1],
                       lambda every, rank, world: every.sum(0))
    return make(seed, rank, world, extra)


def _quantised_norm(seed: int, rank: int, world: int, extra: int) -> Case:
    """Likewise."""
    make = _collective(
        lambda x: ops.all_reduce_rmsnorm_quant(x, torch.ones(COLUMNS, device="cpu", dtype=torch.float32)).residual_out,
        lambda every, rank, world: every.sum(0))
    return make(seed, rank, world, extra)


def _symmetric(seed: int, rank: int, world: int, extra: int) -> Case:
    """Memory made in the state around it must be usable in any."""
    def run(x: torch.Tensor) -> torch.Tensor:
        t = triton_dist.create_symm_tensor(x.shape, torch.float32)
        assert not t.is_inference() and t.device.type == "cpu"
        result = t + 1
        triton_dist.free_symm_tensor(t)
        return result
    return Case(run, drawn(seed, rank, ROWS, COLUMNS), torch.ones(ROWS, COLUMNS, dtype=torch.float64))


def _product_and_norm(seed: int, rank: int, world: int, extra: int) -> Case:
    """Likewise, and it follows autocast."""
    norm = torch.ones(8, device="cpu", dtype=torch.float32)
    make = _gemm(lambda x, weight: ops.gemm_ar_rmsnorm(x, weight, norm)[1], _PRODUCTS["gemm_ar"])
    return make(seed, rank, world, extra)


def _normed_product(method: str) -> Callable:
    def make(seed: int, rank: int, world: int, extra: int) -> Case:
        x, weight = drawn(seed, rank, ROWS + extra, COLUMNS), drawn(seed + 500, rank, 8, COLUMNS)
        return Case(lambda x: ops.rmsnorm_gemm(x, weight, method=method), x, x.double() @ weight.double().t(),
                    gemm=True)
    return make


_PRODUCTS = {
    "ag_gemm": lambda xs, weights, rank, world: xs.flatten(0, 1) @ weights[rank].t(),
    "gemm_rs": lambda xs, weights, rank, world: (xs @ weights.mT).sum(0).chunk(world)[rank],
    "gemm_ar": lambda xs, weights, rank, world: (xs @ weights.mT).sum(0),
}

CASES: dict[str, Callable] = {
    "all_reduce": _collective(ops.all_reduce, lambda every, rank, world: every.sum(0)),
    "all_reduce two_shot": _collective(ops.all_reduce, lambda every, rank, world: every.sum(0), method="two_shot"),
    "all_reduce push": _collective(ops.all_reduce, lambda every, rank, world: every.sum(0), method="push"),
    "all_reduce nccl": _collective(ops.all_reduce, lambda every, rank, world: every.sum(0), method="unfused"),
    "all_gather": _collective(ops.all_gather, lambda every, rank, world: every.flatten(0, 1)),
    "reduce_scatter": _collective(ops.reduce_scatter, lambda every, rank, world: every.sum(0).chunk(world)[rank]),
    "all_to_all_single": _collective(ops.all_to_all_single, lambda every, rank, world: torch.cat(
        [x.chunk(world)[rank] for x in every])),
    "all_gather_2d": _collective(ops.all_gather_2d, lambda every, rank, world: every.flatten(0, 1)),
    "all_to_all_vdev": _by_splits,
    "all_to_all_vdev_2d": _by_experts,
    "all_reduce_rmsnorm": _norm,
    "all_reduce_rmsnorm_quant": _quantised_norm,
    "all_reduce_layernorm": _layer_norm,
    "ag_gemm": _gemm(ops.ag_gemm, _PRODUCTS["ag_gemm"]),
    "ag_gemm by SMs": _gemm(ops.ag_gemm, _PRODUCTS["ag_gemm"], comm_sms=2),
    "ag_gemm unfused": _gemm(ops.ag_gemm, _PRODUCTS["ag_gemm"], method="unfused"),
    "gemm_rs": _gemm(ops.gemm_rs, _PRODUCTS["gemm_rs"]),
    "gemm_rs unfused": _gemm(ops.gemm_rs, _PRODUCTS["gemm_rs"], method="unfused"),
    "gemm_ar": _gemm(ops.gemm_ar, _PRODUCTS["gemm_ar"]),
    "gemm_ar ring": _gemm(ops.gemm_ar, _PRODUCTS["gemm_ar"], method="ring"),
    "gemm_ar_rmsnorm": _product_and_norm,
    "rmsnorm_gemm": _normed_product("portable"),
    "rmsnorm_gemm unfused": _normed_product("unfused"),
    "grouped_gemm": _grouped("auto"),
    "grouped_gemm unfused": _grouped("unfused"),
    "create_symm_tensor": _symmetric,
}


# -- states ------------------------------------------------------------------------------------------------
@contextmanager
def _default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def _side_stream():
    stream, before = triton_dist.new_stream(), triton_dist.current_stream()
    stream.wait_stream(before)
    with triton_dist.use_stream(stream):
        yield
    stream.synchronize()


def _within(*managers: Callable[[], Any]) -> Callable:
    def call(run: Callable, x: torch.Tensor) -> torch.Tensor:
        if not managers:
            return run(x)
        with managers[0]():
            return _within(*managers[1:])(run, x)
    return call


def _dual(run: Callable, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return run(forward_ad.make_dual(x, torch.ones_like(x)))


def _trace(run: Callable, x: torch.Tensor) -> torch.Tensor:
    return torch.jit.trace(run, (x,), check_trace=False)(x)


def _thread(run: Callable, x: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run, x).result()


def _compiled(run: Callable, x: torch.Tensor) -> torch.Tensor:
    torch.compiler.reset()          # or after eight states it would run eagerly
    return torch.compile(lambda t: run(t * 1) + 0, backend="eager")(x)


def _autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


# States that a call works in, and those in which it is refused.
SERVED: dict[str, Callable] = {
    "no_grad": _within(torch.no_grad),
    "enable_grad": _within(torch.enable_grad),
    "inference_mode": _within(torch.inference_mode),
    "autocast": _within(_autocast),
    "default device": _within(lambda: torch.device("meta")),
    "default dtype": _within(_default_dtype),
    "side stream": _within(_side_stream),
    "flop counter": _within(lambda: FlopCounterMode(display=False)),
    "compile": _compiled,
    "inference_mode, autocast, default device": _within(torch.inference_mode, _autocast, lambda: torch.device("meta")),
    "dual level without tangents": _within(forward_ad.dual_level),
}
REFUSED: dict[str, Callable] = {
    "jit.trace": _trace, "fake tensors": _within(FakeTensorMode),
    "vmap": lambda run, x: torch.vmap(run)(x.unsqueeze(0)),
    "vmap of another tensor": lambda run, x: torch.vmap(lambda y: y + run(x))(torch.ones_like(x).unsqueeze(0)),
    "func.grad": lambda run, x: torch.func.grad(lambda t: run(t).sum())(x),
    "func.jvp": lambda run, x: torch.func.jvp(run, (x,), (torch.ones_like(x),))[0],
    "forward-mode AD": _dual,
}
# A virtual rank is a thread itself, and make_fx, which runs what it records, is for one thread of a process at a time.
OF_PROCESSES: dict[str, Callable] = {"other thread": _thread, "make_fx": lambda run, x: make_fx(run)(x)(x)}

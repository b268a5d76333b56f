# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What tests and scripts share: random inputs, poisoned outputs, tolerances from dtype and K, timing, a script's main."""
import argparse
import math
import time
from pathlib import Path
from typing import Any, Callable

import torch

from triton_dist.ops.calls import acts
from triton_dist.runtime.console import printable
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.streams import device, synchronize
from triton_dist.runtime.world import finalize_distributed, initialize_distributed

# Largest relative error of one rounding to the dtype.
_UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-53}

_EMULATED_PRODUCTS = 1 << 26         # multiplications of a GEMM that emulated ranks do within seconds


def random_tensor(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Standard normal values on this rank's device, the same for the same seed."""
    generator = torch.Generator(device()).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=device(), dtype=torch.float32).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of NaN, so that an element nothing wrote is seen."""
    return torch.full(shape, float("nan"), dtype=dtype, device=device())


def assert_matches(out: torch.Tensor, reference: torch.Tensor, *, k: int, roundings: int = 1, tf32: bool = False) -> float:
    """Compares a GEMM's `out` with a float64 `reference`; returns the relative error ||out - ref|| / ||ref||.

    `k` is the length of the sums; `roundings` how often a partial sum was rounded to out.dtype. An element may be off by
    one unit of the dtype a rounding, relative to its own size and the typical size of a partial sum, and by the growth of
    fp32 rounding over k terms. Raises AssertionError.
    """
    if out.shape != reference.shape:            # no `assert` here: python -O drops those
        raise AssertionError(f"shape: expected {list(reference.shape)}, found {list(out.shape)}")
    if not out.numel():
        return 0.0
    missing = int(out.isnan().sum())
    if missing:
        raise AssertionError(f"{missing} of {out.numel()} elements are NaN: never written, or computed from unwritten memory")
    scale = float(reference.square().mean().sqrt())
    product = 2.0**-11 if tf32 else 2.0**-53 if out.dtype == torch.float64 else 2.0**-24
    allowed = 2 * roundings * _UNIT[out.dtype] * (reference.abs() + scale) + 8 * product * max(k, 1) ** 0.5 * scale
    error = (out.double() - reference).abs()
    worst = int((error / allowed.clamp_min(1e-30)).argmax())
    if not bool((error <= allowed).all()):
        raise AssertionError(f"element {worst}: expected {reference.flatten()[worst]:.6g}, found {out.flatten()[worst]:.6g}, "
                             f"allowed error {allowed.flatten()[worst]:.3g}")
    return float(error.norm() / reference.norm().clamp_min(1e-30))


def share(total: int, group: Group) -> int:
    """This rank's part of `total`; where it does not divide, the first ranks have one more."""
    return total // group.size + (group.rank < total % group.size)


def ag_gemm_float64(x: torch.Tensor, weight: torch.Tensor, group: Group, bias: torch.Tensor | None = None,
                    act: str | None = None) -> torch.Tensor:
    """all_gather(x) @ weight^T + bias in float64, with the activation `act` of ag_gemm."""
    gathered = x.new_empty((x.shape[0] * group.size, x.shape[1]))
    group.all_gather_tensor(gathered, x.contiguous())
    result = gathered.double() @ weight.double().t()
    result = result if bias is None else result + bias.double()
    return result if act is None else acts.silu_mul(result)


def gemm_rs_float64(x: torch.Tensor, weight: torch.Tensor, group: Group, bias: torch.Tensor | None = None) -> torch.Tensor:
    """reduce_scatter(x @ weight^T) + bias in float64."""
    partial = x.double() @ weight.double().t()
    result = partial.new_empty((x.shape[0] // group.size, weight.shape[0]))
    group.reduce_scatter_tensor(result, partial)
    return result if bias is None else result + bias.double()


def gemm_ar_float64(x: torch.Tensor, weight: torch.Tensor, group: Group, bias: torch.Tensor | None = None,
                    residual: torch.Tensor | None = None) -> torch.Tensor:
    """all_reduce(x @ weight^T) + bias + residual in float64."""
    result = x.double() @ weight.double().t()
    group.all_reduce_tensor(result)
    for term in (bias, residual):
        if term is not None:
            result += term.double()
    return result


def all_reduce_rmsnorm_float64(x: torch.Tensor, weight: torch.Tensor, group: Group, bias: torch.Tensor | None = None,
                               residual: torch.Tensor | None = None, eps: float = 1e-6,
                               weight_bias: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """(the sum's rows over their root mean square, times weight + weight_bias; all_reduce(x) + bias + residual), in float64."""
    total = x.double().contiguous()
    group.all_reduce_tensor(total)
    for added in (bias, residual):
        total = total if added is None else total + added.double()
    return total * (total.square().mean(-1, keepdim=True) + eps).rsqrt() * (weight.double() + weight_bias), total


def gemm_ar_rmsnorm_float64(x: torch.Tensor, weight: torch.Tensor, norm_weight: torch.Tensor, group: Group,
                            **added: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """all_reduce_rmsnorm_float64 of x @ weight^T, a product in float64."""
    return all_reduce_rmsnorm_float64(x.double() @ weight.double().t(), norm_weight, group, **added)


def rmsnorm_gemm_float64(x: torch.Tensor, weight: torch.Tensor, norm_weight: torch.Tensor | None = None, *,
                         bias: torch.Tensor | None = None, residual: torch.Tensor | None = None, eps: float = 1e-6,
                         norm_weight_bias: float = 0.0, act: str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(what rmsnorm_gemm gives; x + residual), in float64."""
    total = x.double() if residual is None else x.double() + residual.double()
    y = total
    if norm_weight is not None:
        y = y * (y.square().mean(-1, keepdim=True) + eps).rsqrt() * (norm_weight.double() + norm_weight_bias)
    product = y @ weight.double().t()
    if bias is not None:
        product = product + bias.double()
    if act is not None:
        gate, up = product.chunk(2, -1)
        product = torch.nn.functional.silu(gate) * up
    return product, total


def milliseconds(call: Callable, group: Group, iterations: int, warmup: int = 1) -> float:
    """Mean wall time of back-to-back calls, the largest over the ranks of the group."""
    for _ in range(warmup):
        call()
    synchronize()
    group.barrier()
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    synchronize()
    return max(group.all_gather_object((time.perf_counter() - start) / iterations * 1e3))


def plot(name: str, sizes: list, series: dict, group: Group, xlabel: str, ylabel: str = "",
         scale: str = "log") -> None:
    """Prints a table of measured values on rank 0, and draws it into plots/NAME.png where matplotlib is installed.

    Args:
        name: of the file.
        sizes: what was varied, numbers or words.
        series: values by line, as many as sizes.
        xlabel, ylabel: what the axes say; ylabel defaults to milliseconds, of the host's clock on emulated ranks.
        scale: of both axes, "log" or "linear".
    """
    if group.rank:
        return
    timed, emulated = not ylabel, device().type == "cpu"
    ylabel = ylabel or ("milliseconds of the emulating host" if emulated else "milliseconds")
    print(printable(f"{xlabel:>16}" + "".join(f"{line:>20}" for line in series) + f"  {ylabel}" * timed))
    for i, size in enumerate(sizes):
        print(f"{size:>16}" + "".join(f"{values[i]:>20.3f}" for values in series.values()), flush=True)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    words = [str(size) for size in sizes]
    places = range(len(sizes)) if isinstance(sizes[0], str) else sizes
    for line, values in series.items():
        axes.plot(places, values, marker="o", label=line)
    where = f"{group.size} emulated ranks: says nothing of time on GPUs" if emulated else (
        f"{group.size} x {torch.cuda.get_device_name()}")
    axes.set(xscale=scale if places is sizes else "linear", yscale=scale, xlabel=xlabel, ylabel=ylabel,
             title=where if timed else "")
    axes.set_xticks(places, words)
    axes.set_xticks([], minor=True)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend()
    Path("plots").mkdir(exist_ok=True)
    figure.savefig(Path("plots") / f"{name}.png", dpi=120)


def gemm_arguments(description: str) -> argparse.Namespace:
    """The command line of a script that runs a GEMM op: m, n, k (global sizes), dtype (torch's) and method."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", type=int, nargs="*", metavar="M N K", help="global sizes")
    parser.add_argument("--dtype", default="bfloat16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--method", default="auto", choices=["auto", "ws", "portable"])
    parser.add_argument("--whole", action="store_true", help="run the sizes that were asked for without a GPU, too")
    args = parser.parse_args()
    if len(args.shape) not in (0, 3):
        parser.error("give M, N and K, or none of them")
    args.m, args.n, args.k = args.shape or ((8192, 8192, 29568) if device().type == "cuda" else (256, 256, 256))
    args.dtype = getattr(torch, args.dtype)
    return args


def emulated_sizes(m: int, n: int, k: int, world: int) -> tuple[int, int, int]:
    """Sizes that emulated ranks multiply within seconds: m, n, k over the same power of two, m a multiple of `world`."""
    sizes = m, n, k
    while math.prod(sizes) > _EMULATED_PRODUCTS:
        sizes = tuple(max(1, size // 2) for size in sizes)
    return -(-sizes[0] // world) * world, *sizes[1:]


def gemm_script(description: str, op: Callable, inputs: Callable, check: Callable) -> None:
    """The main of a script: checks a GEMM op on the ranks that a launcher started, then times it beside the unfused method.

    op(x, weight, method=...). inputs(m, n, k, dtype) -> (x, weight) of this rank. check(m, n, k, dtype, method) compares calls
    with float64 and returns the relative error. Its command line is that of `gemm_arguments`.
    """
    args = gemm_arguments(description)
    initialize_distributed()
    group, on_gpu = resolve(), device().type == "cuda"
    if args.m % group.size:
        raise SystemExit(f"M = {args.m} must be divisible by the {group.size} ranks")
    asked = args.m, args.n, args.k
    if not (on_gpu or args.whole):
        args.m, args.n, args.k = emulated_sizes(*asked, group.size)
        if group.rank == 0:
            smaller = f"; M N K = {args.m} {args.n} {args.k} instead of {' '.join(map(str, asked))}, which would take hours"
            print(f"emulated on {group.size} ranks, because no GPU is used{smaller if asked != (args.m, args.n, args.k) else ''}",
                  flush=True)
    error = max(group.all_gather_object(check(args.m, args.n, args.k, args.dtype, args.method)))
    x, weight = inputs(args.m, args.n, args.k, args.dtype)
    calls, warmup = (20, 1) if on_gpu else (1, 0)               # emulated, times say nothing; the checker runs it many times
    times = {method: milliseconds(lambda method=method: op(x, weight, method=method), group, calls, warmup)
             for method in (args.method, "unfused")}
    if group.rank == 0:
        print(f"{op.__name__} M={args.m} N={args.n} K={args.k} {str(args.dtype).removeprefix('torch.')} on {group.size} x "
              f"{device().type}: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in times.items())
              + f", relative error {error:.1e}")
        print(printable("✅ Triton and Torch match"))
    finalize_distributed()

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The published names for timing, profiling and comparing."""
import json
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Callable, Iterator

import torch

import triton_dist
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import resolve

# (N, K) of linear layers that published benchmarks run.
LAYER_CONFIGS = {
    "LLaMA-7B": {"N": 11008, "K": 4096, "BM": 128, "BN": 128, "BK": 64, "Stage": 5},
    "LLaMA-3.1-8B": {"N": 14336, "K": 4096, "BM": 128, "BN": 128, "BK": 64, "Stage": 5},
    "LLaMA-3.1-70B": {"N": 28672, "K": 8192, "BM": 128, "BN": 256, "BK": 64, "Stage": 3},
    "LLaMA-3.1-405B": {"N": 53248, "K": 16384, "BM": 128, "BN": 256, "BK": 64, "Stage": 3},
    "Mistral-7B": {"N": 14336, "K": 4096, "BM": 128, "BN": 128, "BK": 64, "Stage": 5},
    "Qwen2-72B": {"N": 29568, "K": 8192, "BM": 128, "BN": 256, "BK": 64, "Stage": 3},
    "GPT-3-175B": {"N": 49152, "K": 12288, "BM": 128, "BN": 256, "BK": 64, "Stage": 3},
}


def perf_func(func: Callable, iters: int, warmup_iters: int) -> tuple[Any, float]:
    """(what the last call gave, milliseconds of one call), by events on the current stream; the emulator's are the host's."""
    output = None
    for _ in range(warmup_iters):
        output = func()
    if backend().name == "emulator":
        triton_dist.synchronize()
        begun = time.perf_counter()
        for _ in range(iters):
            output = func()
        triton_dist.synchronize()
        return output, (time.perf_counter() - begun) * 1e3 / max(1, iters)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(iters):
        output = func()
    stop.record()
    torch.cuda.synchronize()
    return output, start.elapsed_time(stop) / max(1, iters)


def perf_func_with_l2_reset(func: Callable, iters: int, warmup_iters: int) -> tuple[Any, float]:
    """perf_func with the L2 cache overwritten before each call, which is not counted."""
    if backend().name == "emulator":
        return perf_func(func, iters, warmup_iters)
    cache, output, total = torch.empty(1 << 28, dtype=torch.int8, device=triton_dist.device()), None, 0.0
    for turn in range(warmup_iters + iters):
        cache.zero_()
        output, ms = perf_func(func, 1, 0)
        total += ms if turn >= warmup_iters else 0.0
    return output, total / max(1, iters)


def get_torch_prof_ctx(do_prof: bool) -> Any:
    """torch's profiler of host and device, or nothing."""
    if not do_prof:
        return nullcontext()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if backend().name != "emulator":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=kinds, record_shapes=True)


@contextmanager
def group_profile(name: str = "trace", do_prof: bool = True, merge_group: bool = True, keep_merged_only: bool = True,
                  compress: bool = True, group: Any = None) -> Iterator[Any]:
    """Profiles the block on every rank, and writes one trace of all to prof/NAME/, a process a rank."""
    if not do_prof:
        yield None
        return
    with get_torch_prof_ctx(True) as profile:
        yield profile
    ranks, folder = resolve(group), Path("prof") / name
    own = folder / f"rank{ranks.rank}.json"
    folder.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(own))
    if merge_group:
        parts = ranks.all_gather_object(json.loads(own.read_text())["traceEvents"])
        if ranks.rank == 0:
            merged = [{**event, "pid": f"rank {rank} {event.get('pid', '')}"} for rank, part in enumerate(parts)
                      for event in part]
            (folder / "merged.json").write_text(json.dumps({"traceEvents": merged}))
        if keep_merged_only:
            own.unlink()
    ranks.barrier()


def assert_allclose(x: torch.Tensor, y: torch.Tensor, rtol: float = 1e-3, atol: float = 1e-3, verbose: bool = True,
                    allow_nan: bool = False, allow_inf: bool = False, fail_if_too_small: bool = False) -> None:
    """Raises AssertionError, with the largest differences, where two tensors differ by more than atol + rtol * |y|."""
    if not allow_nan and (x.isnan().any() or y.isnan().any()):
        raise AssertionError("assert_allclose: a tensor has NaN")
    if not allow_inf and (x.float().isinf().any() or y.float().isinf().any()):
        raise AssertionError("assert_allclose: a tensor has Inf")
    torch.testing.assert_close(x, y, rtol=rtol, atol=atol, equal_nan=allow_nan)
    if verbose:
        print("all close", flush=True)


def bitwise_equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors have the same bits."""
    same = x.shape == y.shape and x.dtype == y.dtype
    return same and torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


def assert_bitwise_equal(x: torch.Tensor, y: torch.Tensor) -> None:
    """Raises AssertionError unless two tensors have the same bits."""
    if not bitwise_equal(x, y):
        raise AssertionError(f"tensors of {tuple(x.shape)} {x.dtype} and {tuple(y.shape)} {y.dtype} are not bitwise equal")

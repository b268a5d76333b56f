# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The host's work for a number of rows that has not come before, on the GPU backends' path, without a GPU.

Two virtual ranks run the ops as two H200 would. Kernels are not compiled, launches and pushes do nothing. What is counted are
calls of Python functions, since nearly all of the host's time goes there, and time itself depends on the machine.
"""
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from profiled import profiled

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.worlds.meeting import VirtualGroup
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.backends.gpu import backend as gpu
from triton_dist.backends.nvidia import backend as nvidia
from triton_dist.runtime.capabilities import Capabilities
from triton_dist.runtime.groups import resolve

N = K = 4096
LARGEST = 8192
WORLD = 2
# Calls of Python functions at the first, the second and the third call with a number of rows. They may only become fewer.
BARS = {"ag_gemm": (195, 106, 46), "gemm_rs": (133, 88, 31), "gemm_ar": (241, 120, 41), "gemm_ar_rmsnorm": (279, 139, 55),
        "all_reduce": (110, 88, 22), "all_reduce_rmsnorm": (169, 107, 31)}


class Stream:
    """Does nothing."""

    cuda_stream = 0

    def wait_stream(self, other):
        pass


class Driver:
    """Accepts every call."""

    def bound(self, name, *types):
        return lambda *args: 0

    def encode_tensor_map(self, *args):
        pass


def compiled(kernel, args):
    """Stands in for a compiled kernel."""
    signature, metas = {}, []
    for name, arg in zip(kernel.arg_names, args):
        if hasattr(arg, "base"):
            signature[name] = "tensordesc<bf16>"
            metas.append(dict(swizzle=3, elem_size=2, elem_type=10, block_size=list(arg.block_shape)))
        else:
            signature[name] = "*bf16" if isinstance(arg, torch.Tensor) else "i32"
    meta = SimpleNamespace(num_ctas=1, launch_pdl=False, global_scratch_size=0, profile_scratch_size=0, num_warps=8, shared=0,
                           launch_cooperative_grid=False, tensordesc_meta=metas)
    return SimpleNamespace(metadata=meta, function=1, src=SimpleNamespace(signature=signature), asm={"ptx": ""})


@pytest.fixture
def made(monkeypatch):
    """Makes the emulator's host path that of two H200; the kernels that were compiled since."""
    found, stream, torch_calls = [], Stream(), []

    def compile_it(self, kernel, grid, args, kwargs):
        found.append(kernel.fn.__name__)
        return compiled(kernel, args)
    replaced = dict(
        compile=compile_it, prepare=gpu.GpuBackend.prepare, _variant=gpu.GpuBackend._variant, _variants={}, _extern_libs={},
        compiles_by_storage=False,
        _from_library=gpu.GpuBackend._from_library, _prebuilt=None, _recorder=None, tracer=None, driver=Driver(),
        _binder=nvidia.NvidiaBackend._binder, note_call=lambda *args: False, compares_calls=False, num_sms=lambda self: 132,
        _capability=(9, 0), _cores=None, core=nvidia.NvidiaBackend.core, gemm_config=nvidia.NvidiaBackend.gemm_config,
        few_rows_config=Capabilities.few_rows_config, machine_model=lambda self: nvidia.H200,
        device_name=lambda self: "NVIDIA H200", tables=nvidia.NvidiaBackend.tables, push=lambda *args: None,
        current_stream=lambda self: stream, eager_stream=lambda self: stream, side_stream=lambda self: Stream(),
        before_torch=lambda self: None, warms_up=lambda self: False)
    for name, value in replaced.items():
        monkeypatch.setattr(EmulatorBackend, name, value, raising=False)
    monkeypatch.setattr(gpu, "load", lambda kernel: None)
    monkeypatch.setattr(gpu, "_raw_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: torch_calls.append(1) or False)
    return found


def calls():
    """Each op as a function of its number of rows, by the way that large calls take."""
    group = resolve()
    x, whole = torch.empty(LARGEST, K, dtype=torch.bfloat16), torch.empty(LARGEST, N, dtype=torch.bfloat16)
    column, row, norm = (torch.empty(*shape, dtype=torch.bfloat16) for shape in ((N // WORLD, K), (N, K), (N,)))
    return {"all_gather": lambda m: ops.all_gather(whole[:m], group=group),
            "reduce_scatter": lambda m: ops.reduce_scatter(whole[:m], group=group),
            "ag_gemm": lambda m: ops.ag_gemm(x[:m], column, method="ws", group=group),
            "gemm_rs": lambda m: ops.gemm_rs(x[:m], row, method="ws", group=group),
            "gemm_ar": lambda m: ops.gemm_ar(x[:m], row, method="ring", group=group),
            "gemm_ar_rmsnorm": lambda m: ops.gemm_ar_rmsnorm(x[:m], row, norm, residual=whole[:m], method="ring", group=group),
            "all_reduce": lambda m: ops.all_reduce(whole[:m], group=group),
            "all_reduce_rmsnorm": lambda m: ops.all_reduce_rmsnorm(whole[:m], norm, residual=x[:m], group=group)}


def counted(call):
    """Calls of Python functions in `call()`."""
    entered = count()
    profiled(call, lambda _: next(entered))
    return next(entered) - 1


@pytest.mark.parametrize("op", BARS)
def test_the_work_of_a_first_call_of_a_known_class_is_bounded(op, made, monkeypatch):
    """It neither compiles nor meets the other rank, and does not do more than it did."""
    met = []
    for name in ("barrier", "all_gather_object", "broadcast_object"):
        usual = getattr(VirtualGroup, name)

        def noted(self, *args, usual=usual, name=name):
            if self.rank == 0:
                met.append(name)
            return usual(self, *args)
        monkeypatch.setattr(VirtualGroup, name, noted)

    def script():
        call = calls()[op]
        for rows in (LARGEST, 4096, 4098):
            call(rows)
        resolve().barrier()
        if resolve().rank == 0:
            del met[:], made[:]
            first = [counted(lambda rows=rows: call(rows)) for rows in (5002, 6006, 7016)]
            found = [max(first), *[counted(lambda: call(6006)) for _ in range(2)]]
            assert met == [] == made and all(now <= bar for now, bar in zip(found, BARS[op])), (found, met, made)
        resolve().barrier()
    run_ranks(script, WORLD)


def test_after_warm_up_the_first_new_number_of_rows_does_no_more_than_the_next_ones(made, monkeypatch):
    """Of each op, when all are warm: what makes the plans of a class is neither lost nor left to a call of the user."""
    monkeypatch.setattr(torch, "matmul", lambda x, y, out=None: x.new_empty(len(x), y.shape[1]) if out is None else out)

    def script():
        of_ops = calls()
        for call in of_ops.values():
            call(LARGEST // WORLD)                          # some share buffers, which grow now
        used = {op: triton_dist.warm_up(call, range(2, LARGEST // WORLD + 1, 2)) for op, call in of_ops.items()}
        resolve().barrier()
        if resolve().rank == 0:
            del made[:]
            for op, call in of_ops.items():
                for numbers in (range(3002, 3066, 16), range(50, 100, 2)):
                    first, *others = [counted(lambda: call(rows)) for rows in numbers if rows not in used[op]]
                    assert others and first < 1.1 * max(others), (op, first, others)
            assert made == []
        resolve().barrier()
    run_ranks(script, WORLD)

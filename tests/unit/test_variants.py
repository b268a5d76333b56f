# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How the GPU backends find the compiled kernel of a launch, against what Triton specialises kernels for."""
import itertools

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import create_function_from_signature

from triton_dist.backends.amd.backend import AmdBackend
from triton_dist.backends.gpu import backend as gpu
from triton_dist.backends.gpu.variants import kinds
from triton_dist.backends.nvidia.backend import NvidiaBackend
from triton_dist.compat.amd import HIPBackend
from triton_dist.compat.nvidia import CUDABackend
from triton_dist.cores.hopper.ag_gemm_ws import ag_gemm_ws_kernel
from triton_dist.cores.hopper.descriptors import descriptor
from triton_dist.ops.ag_gemm.kernels import ag_gemm_kernel
from triton_dist.ops.exchange.kernels import one_hop_push

NUMBERS = [0, 1, 2, 15, 16, 17, 48, -1, -16, 2**31 - 1, 2**31, 2**31 + 16, 2**63 - 1, 2**63]
BYTES = torch.zeros(4096, dtype=torch.uint8)
TENSORS = [BYTES[start:start + 2048].view(dtype) for start, dtype in itertools.product(
    (0, 16, 2, 64, 8), (torch.float16, torch.bfloat16, torch.int32)) if start % dtype.itemsize == 0]
DESCRIPTORS = [descriptor(BYTES.view(dtype)[:64 * rows].view(rows, 64), *block) for dtype, rows, block in itertools.product(
    (torch.float16, torch.bfloat16), (8, 16), ((64, 64), (128, 64), (64, 32)))]
LARGE = [torch.empty(size, dtype=torch.float16, device="meta") for size in (2**30 - 1, 2**30, 2**31)]
VALUES = [*NUMBERS, *TENSORS, *LARGE, LARGE[2][:8], *DESCRIPTORS, None, True, False]
CUDA, HIP = CUDABackend(GPUTarget("cuda", 90, 32)), HIPBackend(GPUTarget("hip", "gfx942", 64))


@pytest.mark.parametrize("kernel, triton_backend, ours", [
    (ag_gemm_ws_kernel, CUDA, NvidiaBackend), (ag_gemm_kernel, CUDA, NvidiaBackend), (one_hop_push, CUDA, NvidiaBackend),
    (ag_gemm_kernel, HIP, AmdBackend)], ids=lambda given: getattr(given, "__name__", ""))
def test_arguments_of_equal_kinds_are_equal_to_triton(kernel, triton_backend, ours):
    """Of every parameter that is no constexpr, and each pair of values that it may get."""
    bind = create_function_from_signature(kernel.signature, kernel.params, triton_backend)
    count = sum(not parameter.is_constexpr for parameter in kernel.params)
    alike = 0
    for place in range(count):
        found = []
        for value in VALUES:
            args = [7] * count
            args[place] = value
            found.append((kinds(kernel.params, args, ours.compiles_by_storage)[place],
                          bind(*args, *[64] * (len(kernel.params) - count))[1][place]))
        for (kind, triton), (other, others) in itertools.combinations(found, 2):
            assert kind != other or triton == others
            alike += kind == other
    assert alike > 10 * count                   # else it would say nothing: new rows have other sizes and addresses


def test_a_kernel_is_compiled_again_for_other_options_positions_and_libraries_only(monkeypatch):
    monkeypatch.setattr(gpu, "load", lambda compiled: None)

    class Backend(gpu.GpuBackend):
        gemm_config = None                      # abstract

        def __init__(self):
            self._variants, self._extern_libs, self.made = {}, {"a": "1"}, []

        def compile(self, kernel, grid, args, kwargs):
            self.made.append(dict(kwargs))
            return object()
    backend, x = Backend(), TENSORS[0]

    def variant(kernel=one_hop_push, positions=(0, 1), n=5, **options):
        names = kernel.arg_names
        count = sum(not parameter.is_constexpr for parameter in kernel.params)
        args = (x, x, *[n] * (count - 2))
        return backend._variant(kernel, (1,), args, {**dict.fromkeys(names[count:], 3), "num_warps": 4, **options}, positions)
    first = variant()
    assert variant() is first and variant(n=7) is first and first.constants and set(first.constants) == {3}
    others = [variant(positions=(0, )), variant(num_warps=8), variant(n=2**31), variant(kernel=ag_gemm_kernel)]
    backend._extern_libs["b"] = "2"
    others.append(variant())
    assert len({id(found) for found in (first, *others)}) == 6 == len(backend.made)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What "auto" takes, beside what each method took: microseconds a call in a graph, on 2 x H200, bf16, weights from memory."""
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from triton_dist.backends.nvidia import backend as nvidia
from triton_dist.ops import products
from triton_dist.ops.calls import possible
from triton_dist.ops.gemm_ar.op import GEMM_AR
from triton_dist.ops.gemm_ar.packets import Tiling
from triton_dist.ops.gemm_ar_rmsnorm import packets as norm_packets
from triton_dist.ops.gemm_ar_rmsnorm.op import GEMM_AR_RMSNORM
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.capabilities import GemmConfig

norm_gemm = import_module("triton_dist.ops.rmsnorm_gemm.op")       # triton_dist.ops.rmsnorm_gemm is the function
BYTES = 2                                       # of an element
# (M, N, K of a rank): {method: us}
AR = {
    (8, 4096, 2048): {"packets": 8.33, "unfused": 9.88},
    (16, 4096, 2048): {"packets": 9.32, "unfused": 10.05},
    (24, 4096, 2048): {"packets": 10.64, "unfused": 10.3},
    (32, 4096, 2048): {"packets": 11.85, "unfused": 10.49},
    (64, 4096, 2048): {"packets": 18.27, "unfused": 11.44},
    (8, 8192, 4096): {"packets": 21.12, "unfused": 22.4},
    (16, 8192, 4096): {"packets": 23.24, "unfused": 23.14},
    (24, 8192, 4096): {"packets": 26.19, "unfused": 23.63},
    (32, 8192, 4096): {"packets": 28.72, "unfused": 24.14},
    (64, 8192, 4096): {"packets": 42.77, "unfused": 26.82},
    (8, 4096, 7168): {"packets": 18.58, "unfused": 22.04},
    (16, 4096, 7168): {"packets": 19.53, "unfused": 22.29},
    (24, 4096, 7168): {"packets": 20.78, "unfused": 22.17},
    (32, 4096, 7168): {"packets": 22.07, "unfused": 22.54},
    (64, 4096, 7168): {"packets": 29.55, "unfused": 22.73},
    (8, 8192, 14336): {"packets": 58.58, "unfused": 61.61},
    (16, 8192, 14336): {"packets": 60.18, "unfused": 62.21},
    (24, 8192, 14336): {"packets": 62.65, "unfused": 63.31},
    (32, 8192, 14336): {"packets": 65.3, "unfused": 64.35},
    (64, 8192, 14336): {"packets": 78.91, "unfused": 68.4},
    (256, 4096, 2048): {"ring": 23.58, "unfused": 18.43},
    (1024, 4096, 2048): {"ring": 58.41, "unfused": 51.85},
    (2048, 4096, 2048): {"ring": 95.31, "unfused": 97.42},
    (256, 8192, 4096): {"ring": 47.63, "unfused": 41.1},
    (1024, 8192, 4096): {"ring": 134.8, "unfused": 144.05},
    (2048, 8192, 4096): {"ring": 264.23, "unfused": 316.83},
    (256, 4096, 7168): {"ring": 41.32, "unfused": 34.62},
    (1024, 4096, 7168): {"ring": 110.83, "unfused": 103.83},
    (2048, 4096, 7168): {"ring": 207.58, "unfused": 210.82},
    (256, 8192, 14336): {"ring": 108.17, "unfused": 101.58},
    (1024, 8192, 14336): {"ring": 397.52, "unfused": 404.18},
    (2048, 8192, 14336): {"ring": 812.17, "unfused": 830.61},
}
# gemm_ar_rmsnorm, with a residual; "unfused" is a matmul, then all_reduce_rmsnorm.
AR_NORM = {
    (1, 8192, 4096): {"packets": 20.89, "unfused": 22.96},
    (1, 4096, 2048): {"packets": 9.16, "unfused": 10.38},
    (1, 8192, 14336): {"packets": 58.47, "unfused": 61.62},
    (1, 4096, 7168): {"packets": 19.01, "unfused": 21.99},
    (8, 8192, 4096): {"packets": 22.23, "unfused": 23.7},
    (8, 4096, 2048): {"packets": 9.61, "unfused": 10.49},
    (8, 8192, 14336): {"packets": 60.03, "unfused": 63.12},
    (8, 4096, 7168): {"packets": 19.71, "unfused": 22.81},
    (32, 8192, 4096): {"packets": 30.25, "unfused": 25.32},
    (32, 4096, 2048): {"packets": 13.32, "unfused": 11.18},
    (32, 8192, 14336): {"packets": 67.01, "unfused": 66.07},
    (32, 4096, 7168): {"packets": 23.68, "unfused": 23.0},
    (64, 8192, 4096): {"packets": 42.43, "unfused": 28.17},
    (64, 4096, 2048): {"packets": 20.04, "unfused": 11.98},
    (64, 8192, 14336): {"packets": 79.5, "unfused": 69.7},
    (64, 4096, 7168): {"packets": 31.01, "unfused": 23.21},
}
RS = {
    (32, 4096, 2048): {"ws": 30.4, "unfused": 10.37},
    (256, 4096, 2048): {"ws": 26.38, "unfused": 15.51},
    (512, 4096, 2048): {"ws": 31, "unfused": 22.85},
    (1024, 4096, 2048): {"ws": 34.88, "unfused": 40.03},
    (2048, 4096, 2048): {"ws": 60.04, "unfused": 74.46},
    (32, 4096, 7168): {"ws": 75.29, "unfused": 22.44},
    (256, 4096, 7168): {"ws": 51.91, "unfused": 31.96},
    (512, 4096, 7168): {"ws": 61.8, "unfused": 48.47},
    (1024, 4096, 7168): {"ws": 87.54, "unfused": 92.98},
    (2048, 4096, 7168): {"ws": 166.63, "unfused": 191.27},
    (32, 8192, 14336): {"ws": 199.22, "unfused": 64.41},
    (256, 8192, 14336): {"ws": 118.02, "unfused": 96.85},
    (512, 8192, 14336): {"ws": 186.01, "unfused": 197.51},
    (1024, 8192, 14336): {"ws": 355.59, "unfused": 378.94},
    (2048, 8192, 14336): {"ws": 703.99, "unfused": 754.46},
}
AG = {
    (32, 3072, 4096): {"ws": 34.83, "unfused": 14.64},
    (256, 3072, 4096): {"ws": 34.29, "unfused": 23.69},
    (512, 3072, 4096): {"ws": 36, "unfused": 31.16},
    (1024, 3072, 4096): {"ws": 60.5, "unfused": 55.37},
    (2048, 3072, 4096): {"ws": 88.4, "unfused": 102.19},
    (32, 14336, 4096): {"ws": 65.74, "unfused": 36.19},
    (256, 14336, 4096): {"ws": 69.93, "unfused": 52.89},
    (512, 14336, 4096): {"ws": 101.56, "unfused": 106.68},
    (1024, 14336, 4096): {"ws": 184.82, "unfused": 189.8},
    (2048, 14336, 4096): {"ws": 363.13, "unfused": 404.95},
    (32, 28672, 8192): {"ws": 274.36, "unfused": 116.94},
    (256, 28672, 8192): {"ws": 266.39, "unfused": 217.89},
    (512, 28672, 8192): {"ws": 408.51, "unfused": 380.72},
    (1024, 28672, 8192): {"ws": 741.73, "unfused": 800.6},
    (2048, 28672, 8192): {"ws": 1441.23, "unfused": 1463.99},
}
# rmsnorm_gemm: (M, rows of the weight, K): microseconds with a norm, and for weights of gate and up with silu_mul; "unfused" by a
# norm kernel, cuBLAS and a kernel of silu.
NORM_GEMM = {
    (1, 3072, 4096): {"portable": 10.4, "unfused": 12.8},
    (1, 14336, 4096): {"portable": 30.7, "unfused": 34.5},
    (1, 5120, 8192): {"portable": 25.0, "unfused": 29.1},
    (1, 28672, 8192): {"portable": 111.0, "unfused": 122.9},
    (16, 3072, 4096): {"portable": 10.6, "unfused": 13.1},
    (16, 14336, 4096): {"portable": 32.4, "unfused": 35.0},
    (16, 5120, 8192): {"portable": 25.4, "unfused": 28.8},
    (16, 28672, 8192): {"portable": 112.6, "unfused": 114.5},
    (32, 3072, 4096): {"portable": 11.2, "unfused": 13.4},
    (32, 14336, 4096): {"portable": 33.3, "unfused": 35.6},
    (32, 5120, 8192): {"portable": 26.3, "unfused": 29.6},
    (32, 28672, 8192): {"portable": 114.9, "unfused": 117.5},
    (64, 3072, 4096): {"portable": 15.6, "unfused": 12.6},
    (64, 14336, 4096): {"portable": 34.6, "unfused": 38.3},
    (64, 5120, 8192): {"portable": 29.8, "unfused": 32.3},
    (64, 28672, 8192): {"portable": 120.3, "unfused": 125.3},
}


@pytest.fixture
def h200(monkeypatch):
    device = SimpleNamespace(machine_model=lambda: nvidia.H200, core=lambda name: SimpleNamespace(preferred=True))
    for module in (possible, products, norm_gemm):
        monkeypatch.setattr(module, "backend", lambda: device)
    monkeypatch.setattr(possible, "no_kernel", lambda group: None)
    monkeypatch.setattr(norm_packets, "backend", lambda: SimpleNamespace(warp_size=32, num_sms=lambda: 132))
    return SimpleNamespace(size=2)


def slower(taken: str, times: dict) -> float:
    return times[taken] / min(times.values())


@pytest.mark.parametrize("shape", AR)
def test_gemm_ar_takes_the_fastest_way_or_nearly(shape, h200):
    m, n, _ = shape
    taken, why = GEMM_AR.choose("auto", h200, m, n, torch.bfloat16)
    assert slower(taken, AR[shape]) <= (1.07 if taken == "unfused" else 1.02), (taken, why)


@pytest.mark.parametrize("shape", AR_NORM)
def test_gemm_ar_rmsnorm_takes_the_fastest_way(shape, h200):
    m, n, _ = shape
    cut = Tiling(GemmConfig(64, 128, 64, 8, num_warps=8, num_stages=4), 2, False)
    taken, why = GEMM_AR_RMSNORM.choose("auto", h200, m, n, torch.bfloat16, cut)
    assert slower(taken, AR_NORM[shape]) == 1, (taken, why)


@pytest.mark.parametrize("shape", NORM_GEMM)
def test_rmsnorm_gemm_takes_the_fastest_way(shape, h200):
    m, n, k = shape
    act = "silu_mul" if n > 2 * k else None
    taken, why = norm_gemm.RMSNORM_GEMM._chosen("auto", m, n, k, torch.bfloat16, act, True, False)
    assert slower(taken, NORM_GEMM[shape]) == 1, (taken, why)


@pytest.mark.parametrize("m, n, k, dtype, act, norm", [
    (1, 2048, 4096, torch.bfloat16, None, True), (65, 28672, 8192, torch.bfloat16, "silu_mul", True),
    (1, 28672, 8192, torch.float32, "silu_mul", True), (1, 5120, 8192, torch.bfloat16, None, False),
    (1, 5120, 1024, torch.bfloat16, None, True)])
def test_rmsnorm_gemm_leaves_to_torch_what_was_not_measured_or_not_faster(m, n, k, dtype, act, norm, h200):
    assert norm_gemm.RMSNORM_GEMM._chosen("auto", m, n, k, dtype, act, norm, False)[0] == "unfused"


@pytest.mark.parametrize("op, shape", [("gemm_rs", shape) for shape in RS] + [("ag_gemm", shape) for shape in AG])
def test_fused_products_are_taken_where_they_are_the_fastest_or_nearly(op, shape, h200):
    m, n, k = shape
    scatters, times = op == "gemm_rs", (RS if op == "gemm_rs" else AG)[shape]
    bytes_in = m // 2 * (n if scatters else k) * BYTES
    taken, why = products.rule(SimpleNamespace(name=op), SimpleNamespace(why=""), h200, [Choice("ws"), Choice("unfused")],
                               bytes_in, scatters)
    assert slower(taken.method, times) <= (1.02 if scatters else 1.06), (taken, why)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The model of time against what was measured on 4 x H100, and explain()."""
import pytest

from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.nvidia.backend import H100
from triton_dist.ops import _model, explain
from triton_dist.runtime.backend import GemmConfig
from triton_dist.runtime.errors import InvalidArgument

CONFIG = GemmConfig(128, 256, 64, 8, 8, 3)
# op, M, N, K, milliseconds of the core and of the unfused path on 4 x H100 (design notes and benchmarks/results)
MEASURED = [
    ("ag_gemm", 8192, 28672, 4096, 0.732, 0.869), ("ag_gemm", 8192, 57344, 8192, 2.976, 3.041),
    ("ag_gemm", 2048, 28672, 4096, 0.217, 0.251), ("ag_gemm", 2048, 57344, 8192, 0.728, 0.793),
    ("gemm_rs", 8192, 4096, 14336, 0.417, 0.534), ("gemm_rs", 8192, 8192, 28672, 1.521, 1.712),
    ("gemm_rs", 2048, 4096, 14336, 0.162, 0.160), ("gemm_rs", 2048, 8192, 28672, 0.403, 0.451),
]


@pytest.mark.parametrize("op, m, n, k, ws, unfused", MEASURED)
def test_predictions_are_within_the_stated_error(op, m, n, k, ws, unfused):
    if op == "ag_gemm":
        found = _model.ag_gemm_estimates(H100, m // 4, n // 4, k, 4, 2, CONFIG, True)
    else:
        found = _model.gemm_rs_estimates(H100, m // 4, n, k // 4, 4, 2, CONFIG, True)
    times = {estimate.method: estimate.ms for estimate in found}
    assert times["ws"] == pytest.approx(ws, rel=_model.ERROR)
    assert times["unfused"] == pytest.approx(unfused, rel=_model.ERROR)
    assert [e.ms for e in found] == sorted(e.ms for e in found)


def test_explain_says_what_auto_does():
    def script():
        text = str(explain("gemm_rs", 64, 64, 64))
        with pytest.raises(InvalidArgument, match="expected 'ag_gemm' or 'gemm_rs'"):
            explain("gemm", 64, 64, 64)
        return text
    for text in run_ranks(script, 2):
        assert text.startswith("gemm_rs M=64 N=64 K=64 on 2 ranks: portable, because")

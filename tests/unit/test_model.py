# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The model of time against what was measured on H100 and H200, and explain()."""
import pytest

from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.nvidia.backend import H100, H200
from triton_dist.ops import explain
from triton_dist.ops.tuning import model
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.errors import InvalidArgument

WIDE, HALF = GemmConfig(128, 256, 64, 8, 8, 3), GemmConfig(128, 128, 64, 8, 8, 5)
# op, M, N, K, milliseconds of the core and of the unfused path on 4 x H100 (design notes and benchmarks/results)
MEASURED = [
    ("ag_gemm", 8192, 28672, 4096, WIDE, 0.732, 0.869), ("ag_gemm", 8192, 57344, 8192, WIDE, 2.976, 3.041),
    ("ag_gemm", 2048, 28672, 4096, WIDE, 0.217, 0.251), ("ag_gemm", 2048, 57344, 8192, WIDE, 0.728, 0.793),
    ("gemm_rs", 8192, 4096, 14336, WIDE, 0.376, 0.541), ("gemm_rs", 8192, 8192, 28672, WIDE, 1.438, 1.719),
    ("gemm_rs", 4096, 4096, 14336, WIDE, 0.185, 0.287), ("gemm_rs", 2048, 8192, 28672, WIDE, 0.368, 0.469),
    ("gemm_rs", 2048, 4096, 14336, HALF, 0.099, 0.160), ("gemm_rs", 1024, 4096, 14336, HALF, 0.087, 0.112),
]


@pytest.mark.parametrize("op, m, n, k, config, ws, unfused", MEASURED)
def test_predictions_are_within_the_stated_error(op, m, n, k, config, ws, unfused):
    if op == "ag_gemm":
        found = model.ag_gemm_estimates(H100, m // 4, n // 4, k, 4, 2, config, True)
    else:
        found = model.gemm_rs_estimates(H100, m // 4, n, k // 4, 4, 2, config, True)
    times = {estimate.method: estimate.ms for estimate in found}
    assert times["ws"] == pytest.approx(ws, rel=model.ERROR)
    assert times["unfused"] == pytest.approx(unfused, rel=model.ERROR)
    assert [e.ms for e in found] == sorted(e.ms for e in found)


# ranks, M, N, K of a rank, microseconds of packets and of the unfused path on H200, in graphs
GEMM_AR = [
    (2, 1, 8192, 14336, 60.4, 65.3), (2, 1, 4096, 7168, 21.9, 26.1), (2, 16, 8192, 14336, 64.3, 67.4),
    (2, 16, 4096, 7168, 24.5, 26.6), (2, 64, 8192, 14336, None, 76.4), (2, 128, 4096, 7168, None, 31.2),
    (4, 1, 8192, 7168, None, 36.8), (4, 16, 4096, 3584, None, 20.1), (4, 64, 8192, 7168, None, 48.1),
    (4, 256, 8192, 7168, None, 73.7), (4, 256, 4096, 3584, None, 37.2),
]


@pytest.mark.parametrize("world, m, n, k, packets, unfused", GEMM_AR)
def test_predictions_of_gemm_ar_are_within_the_stated_error(world, m, n, k, packets, unfused):
    found = {estimate.method: estimate.ms * 1e3 for estimate in model.gemm_ar_estimates(H200, m, n, k, world, 2)}
    assert found["unfused"] == pytest.approx(unfused, rel=model.ERROR)
    assert packets is None or found["packets"] == pytest.approx(packets, rel=model.ERROR)


def test_explain_of_gemm_ar(monkeypatch):
    def script():
        return explain("gemm_ar", 1, 4096, 14336), explain("gemm_ar", 2048, 4096, 14336)
    few, many = run_ranks(script, 4)[0]
    assert few.chosen == "packets" and "1 rows are no more than" in few.reason and not few.candidates
    assert many.chosen == "ring" and "pays" in many.reason
    monkeypatch.setattr(EmulatorBackend, "machine_model", lambda self: H200)
    few, _ = run_ranks(script, 4)[0]
    assert [row.choice.method for row in few.candidates] == ["packets", "unfused"]
    assert str(few).startswith("gemm_ar M=1 N=4096 K=14336 on 4 ranks: packets, because 1 rows") and "-> " in str(few)


def test_explain_says_what_auto_does():
    def script():
        text = str(explain("gemm_rs", 64, 64, 64))
        with pytest.raises(InvalidArgument, match="expected one of .*'ag_gemm', 'gemm_rs', 'gemm_ar'.*found 'gemm'"):
            explain("gemm", 64, 64, 64)
        return text
    for text in run_ranks(script, 2):
        assert text.startswith("gemm_rs M=64 N=64 K=64 on 2 ranks: portable, because")


def test_explain_shows_a_prediction_for_each_candidate(monkeypatch):
    monkeypatch.setattr(EmulatorBackend, "machine_model", lambda self: H100)

    def script():
        large, small = explain("ag_gemm", 8192, 28672, 4096), explain("gemm_rs", 16, 4096, 14336)
        print(large)
        return large, small
    large, small = run_ranks(script, 4)[0]
    assert {row.choice.method for row in large.candidates} == {"ws", "portable", "unfused"}
    assert all(row.predicted > 0 and row.measured is None for row in large.candidates)
    assert [row.predicted for row in large.candidates] == sorted(row.predicted for row in large.candidates)
    assert "hide behind the GEMM" in large.reason and large.chosen != "unfused"
    assert small.chosen == "unfused" and "brings only 0.1 MB" in small.reason
    assert sum(line.startswith("->") for line in str(large).splitlines()) == 1

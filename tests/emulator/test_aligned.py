# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Operands that a device's core cannot read: copied where the core was asked for; auto says that it does without the core."""
import warnings
from unittest import mock

import pytest
import torch

from triton_dist import ops
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.runtime.groups import resolve
from triton_dist.testing import ag_gemm_float64, assert_matches, gemm_rs_float64, poisoned, random_tensor

F16 = torch.float16
K, N = 64, 24


def shifted(t):
    """The same values two bytes behind an aligned address."""
    return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)


def spread(t):
    """The same values with rows that are not whole 16 bytes apart."""
    return torch.cat([t, t.new_zeros(t.shape[0], 1)], 1)[:, :-1]


def operands(op, group, n=N):
    rows = 16 if op == "ag_gemm" else 16 * group.size
    x, w = random_tensor(rows, K, dtype=F16, seed=group.rank), random_tensor(n, K, dtype=F16, seed=9 + group.rank)
    return x, w, poisoned(16 * group.size if op == "ag_gemm" else 16, n, dtype=F16)


def verify(op, x, w, out, group):
    expected = (ag_gemm_float64 if op == "ag_gemm" else gemm_rs_float64)(x, w, group)
    assert_matches(out, expected, k=K * group.size, roundings=group.size)


@pytest.fixture
def launched(monkeypatch):
    """Names of the GEMM kernels that ranks make ready."""
    names, real = [], EmulatorBackend.prepare

    def prepare(self, kernel, *rest, **options):
        names.append(kernel.fn.__name__)
        return real(self, kernel, *rest, **options)
    monkeypatch.setattr(EmulatorBackend, "prepare", prepare)
    return names


@pytest.mark.parametrize("op", ["ag_gemm", "gemm_rs"])
@pytest.mark.parametrize("change", [
    lambda x, w, out: (shifted(x), w, out), lambda x, w, out: (x, shifted(w), out), lambda x, w, out: (x, spread(w), out),
    lambda x, w, out: (x, w, shifted(out)), lambda x, w, out: (shifted(x), spread(w), shifted(out))],
    ids=["x", "weight", "weight's rows", "out", "all"])
def test_the_core_runs_on_copies_where_it_was_asked_for(op, change, launched):
    """On one rank as on all, and again with other values in the same tensors."""
    def script():
        group = resolve()
        for who in (0, None):
            x, w, out = operands(op, group)
            x, w, out = change(x, w, out) if who in (None, group.rank) else (x, w, out)
            for _ in range(2):
                assert getattr(ops, op)(x, w, out=out, method="ws") is out
                verify(op, x, w, out, group)
                x.mul_(-0.5)
                out.fill_(float("nan"))
    run_ranks(script, 2)
    assert f"{op}_ws_kernel" in launched and f"{op}_kernel" not in launched


def test_rows_of_any_length_with_the_core(launched):
    """N of ag_gemm, K of gemm_rs: rows of out, or of both operands, are no whole 16 bytes."""
    def script():
        group = resolve()
        x, w, _ = operands("ag_gemm", group, n=19)
        verify("ag_gemm", x, w, ops.ag_gemm(x, w, method="ws"), group)
        x, w, _ = operands("gemm_rs", group)
        x, w = x[:, :51], w[:, :51]
        verify("gemm_rs", x, w, ops.gemm_rs(x, w, method="ws"), group)
        x, w, _ = operands("ag_gemm", group, n=0)
        none = ops.ag_gemm(x, w, method="ws")
        assert list(none.shape) == [32, 0]
    run_ranks(script, 2)


@pytest.mark.parametrize("op, n", [("ag_gemm", 1), ("ag_gemm", 3), ("ag_gemm", 24), ("gemm_rs", 24)])
def test_one_row_a_rank_with_the_core(op, n):
    """Chunks of one row, whose length need not be a whole 16 bytes."""
    def script():
        group = resolve()
        x = random_tensor(1 if op == "ag_gemm" else group.size, K, dtype=F16, seed=group.rank)
        w = random_tensor(n, K, dtype=F16, seed=9 + group.rank)
        out = getattr(ops, op)(x, w, method="ws")
        verify(op, x, w, out, group)
    run_ranks(script, 2)


@pytest.mark.parametrize("op", ["ag_gemm", "gemm_rs"])
def test_auto_says_once_that_it_does_without_the_core(op, launched):
    def script():
        group = resolve()
        x, w, out = operands(op, group)
        for weight in (shifted(w), shifted(w.clone()), w):
            getattr(ops, op)(x, weight, out=out)
            verify(op, x, weight, out, group)
    with mock.patch.object(EmulatorBackend, "core", preferring(EmulatorBackend.core)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run_ranks(script, 2)
    texts = [str(one.message) for one in said if "portable kernel" in str(one.message)]
    assert len(texts) == 2 and all(f"triton_dist.{op} runs the portable kernel" in text for text in texts), "once a rank"
    assert "weight begins at 0x" in texts[0] and "method='ws'" in texts[0]
    assert f"{op}_kernel" in launched and f"{op}_ws_kernel" in launched


def preferring(core):
    def found(self, op):
        made = core(self, op)
        made.preferred = True
        return made
    return found

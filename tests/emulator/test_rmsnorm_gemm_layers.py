# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""rmsnorm_gemm in layers: where it is taken, and that a layer gives the same with and without it."""
from importlib import import_module
from unittest import mock

import pytest
import torch
from torch import nn

import triton_dist
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.backends.nvidia.backend import H200
from triton_dist.layers import TPMLP, AllReduceRMSNorm, ColumnLinear, TPAttention
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.testing import random_tensor

op = import_module("triton_dist.ops.rmsnorm_gemm.op")
BF16, H, ROWS = torch.bfloat16, 64, 32
CLOSE = dict(rtol=0.03, atol=0.03)


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """The emulator passes for a device on which the kernels pay up to ROWS rows of any weight."""
    monkeypatch.setattr(EmulatorBackend, "machine_model", lambda self: H200)
    monkeypatch.setattr(op, "AUTO", ((ROWS, 1),))
    monkeypatch.setattr(op, "_AUTO_K", 1)


def linear(rows, columns, seed, bias=False):
    made = nn.Linear(columns, rows, bias=bias, dtype=BF16)
    with torch.no_grad():
        made.weight.copy_(random_tensor(rows, columns, dtype=BF16, seed=seed) / columns**0.5)
        if bias:
            made.bias.copy_(random_tensor(rows, dtype=BF16, seed=seed + 1))
    return made


def rms_norm(seed=9):
    norm = nn.RMSNorm(H, eps=1e-5, dtype=BF16)
    with torch.no_grad():
        norm.weight.copy_(random_tensor(H, dtype=BF16, seed=seed))
    return norm


def calls(run):
    """(what `run` gives, the methods by which rmsnorm_gemm ran)."""
    usual, found = op.RMSNORM_GEMM._made, []

    def made(record, group, agreed, *args, **options):
        found.append(agreed.method)
        return usual(record, group, agreed, *args, **options)
    with mock.patch.object(op.RMSNORM_GEMM, "_made", made):
        result = run()
        triton_dist.synchronize()
    return result, found


@pytest.mark.parametrize("bias, weight_bias", [(False, 0.0), (True, 1.0)])
@pytest.mark.parametrize("rows, taken", [(3, True), (ROWS + 1, False)])
def test_a_column_linear_takes_norm_and_activation(rows, taken, bias, weight_bias):
    def script():
        both, norm = linear(48, H, 3, bias), rms_norm()
        given = AllReduceRMSNorm.from_norm(norm, weight_bias=weight_bias) if weight_bias else norm
        layer = ColumnLinear.from_full(both, parts=[24, 24])
        x = random_tensor(rows, 1, H, dtype=BF16, seed=5)
        with torch.no_grad():
            got, methods = calls(lambda: layer(x, act="silu_mul", norm=given))
            normed = nn.functional.rms_norm(x.float(), (H,), norm.weight.float() + weight_bias, 1e-5)
            gate, up = (normed.double() @ layer.weight.double().t() + (layer.bias.double() if bias else 0)).chunk(2, -1)
        assert got.shape == (rows, 1, layer.weight.shape[0] // 2) and methods == ["portable"] * taken
        torch.testing.assert_close(got.double(), nn.functional.silu(gate) * up, **CLOSE)
    run_ranks(script, 1)


@pytest.mark.parametrize("why", ["joined", "rows", "gradient", "hook", "activation"])
def test_an_mlp_joins_gate_and_up_of_few_rows(why):
    def script():
        up, down, norm = linear(96, H, 1), linear(H, 48, 2), rms_norm()
        activation = nn.functional.gelu if why == "activation" else nn.functional.silu
        mlp = TPMLP.from_full(up, down, gated=True, sequence_parallel=False, activation=activation)
        if why == "hook":
            mlp.up.register_forward_hook(lambda *_: None)
        x = random_tensor(ROWS + 1 if why == "rows" else 2, H, dtype=BF16, seed=5)
        with torch.set_grad_enabled(why == "gradient"):
            got, methods = calls(lambda: mlp(x, input_norm=norm))
            gate, of_up = (norm(x).float() @ up.weight.float().t()).chunk(2, -1)
            want = (activation(gate) * of_up) @ down.weight.float().t()
        assert methods == (["portable"] if why in ("joined", "activation", "hook") else [])
        torch.testing.assert_close(got.float(), want, **CLOSE)
        if why == "gradient":
            got.float().square().sum().backward()
            assert norm.weight.grad is not None and mlp.up.weight.grad is not None
    with mock.patch.object(op, "AUTO", ((ROWS, 1),)):
        run_ranks(script, 1)


def test_attention_takes_the_norm_before_it():
    def script():
        norm, x = rms_norm(), random_tensor(2, 3, H, dtype=BF16, seed=5)
        layer = TPAttention.from_full(linear(3 * H, H, 1), linear(H, H, 2), 4, sequence_parallel=False)
        with torch.no_grad():
            got, methods = calls(lambda: layer(x, input_norm=norm))
            want = layer(norm(x))
        triton_dist.synchronize()
        assert methods == ["portable"]
        torch.testing.assert_close(got, want, **CLOSE)
    run_ranks(script, 1)


def test_a_block_of_a_divided_sequence_takes_no_norm_before_it():
    def script():
        mlp = TPMLP.from_full(linear(96, H, 1), linear(H, 48, 2), gated=True)
        with pytest.raises(InvalidArgument, match="input_norm: expected a block that begins with a ColumnLinear"):
            mlp(random_tensor(2, H, dtype=BF16, seed=5), input_norm=rms_norm())
    run_ranks(script, 2)


@pytest.mark.parametrize("known", [True, False])
def test_blocks_are_compiled_as_one_graph(known, monkeypatch):
    """For numbers of rows that change, on a device that has been measured and on one that has not."""
    if not known:
        monkeypatch.setattr(EmulatorBackend, "machine_model", lambda self: None)

    def script():
        norm = rms_norm()
        mlp = TPMLP.from_full(linear(96, H, 1), linear(H, 48, 2), gated=True, sequence_parallel=False)
        attention = TPAttention.from_full(linear(3 * H, H, 3), linear(H, H, 4), 4, sequence_parallel=False)
        for block, numbers in ((mlp, (2, 3, ROWS + 1)), (attention, (2,))):
            compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
            with torch.no_grad():
                for rows in numbers:
                    x = random_tensor(rows, H, dtype=BF16, seed=rows)
                    got, want = compiled(x, input_norm=norm), block(x, input_norm=norm)
                    triton_dist.synchronize()
                    torch.testing.assert_close(got, want, **CLOSE)
    torch.compiler.reset()
    run_ranks(script, 1)

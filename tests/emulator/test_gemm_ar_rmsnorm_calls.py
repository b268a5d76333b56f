# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_ar_rmsnorm: calls that are refused, gradients, the layer, and what a torch graph holds of it."""
import pytest
import torch
from bad_input import Row, differs, refused, small_heap, table  # noqa: F401

from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.layers import TPMLP, AllReduceRMSNorm, GemmAR, TPAttention
from triton_dist.ops import gemm_ar_rmsnorm
from triton_dist.runtime.errors import InvalidArgument, OutOfHeap
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, random_tensor

F16, F32, M, N, K = torch.float16, torch.float32, 8, 16, 32


def X(*shape, dtype=F16):
    return torch.ones(*(shape or (M, K)), dtype=dtype)


def call(**given):
    """gemm_ar_rmsnorm with arguments that are wrong."""
    return lambda: gemm_ar_rmsnorm(**{"x": X(), "weight": X(N, K), "norm_weight": X(N), **{
        name: make() if callable(make) else make for name, make in given.items()}})


def over(**given):
    """Arguments that are rows of one tensor, from the one of that number on."""
    def made():
        t = X(4 * M, N)
        call(**{name: t[first:first + M] for name, first in given.items()})()
    return made


ROWS = [
    ("x: 3 dimensions", call(x=lambda: X(1, M, K)), "x:", f"found shape [1, {M}, {K}]", "expected 2 dimensions"),
    ("x: 2^31 of the output", call(x=lambda: X(1, 1).expand(2**16, 1), weight=lambda: X(1, 1).expand(2**15, 1)), "x:",
     "fewer than 2^31", "split the call"),
    ("weight: other columns", call(weight=lambda: X(N, K + 1)), "weight:", f"found [{N}, {K + 1}]", f"expected [N, {K}]"),
    ("norm_weight: None", call(norm_weight=None), "norm_weight:", "found NoneType", f"expected a tensor of shape [{N}]"),
    ("norm_weight: of x's columns", call(norm_weight=lambda: X(K)), "norm_weight:", f"found shape [{K}]", f"of shape [{N}]"),
    ("norm_weight: another dtype", call(norm_weight=lambda: X(N, dtype=F32)), "norm_weight:", "found torch.float32",
     "convert it"),
    ("bias: a row", call(bias=lambda: X(1, N)), "bias:", f"found shape [1, {N}]", f"of shape [{N}]"),
    ("residual: another shape", call(residual=lambda: X(M, K)), "residual:", f"found [{M}, {K}]", f"of shape [{M}, {N}]"),
    ("eps: negative", call(eps=-1e-6), "eps:", "found -1e-06", "at least 0"),
    ("norm_weight_bias: a name", call(norm_weight_bias="one"), "norm_weight_bias:", "found 'one'", "multiplies by 1 + weight"),
    ("norm_weight_bias: infinite", call(norm_weight_bias=float("inf")), "norm_weight_bias:", "found inf", "expected a number"),
    ("out: rows of one", call(out=lambda: X(1, N)), "out:", f"expected shape [{M}, {N}]", "pass None"),
    ("out: over residual_out", over(out=0, residual_out=1), "out:", "overlap residual_out", "a tensor of its own"),
    ("out: over residual", over(out=0, residual=0), "out:", "overlap residual", "a tensor of its own"),
    ("residual_out: over a part of residual", over(residual_out=0, residual=1), "residual_out:", "overlap residual",
     "a tensor of its own"),
    ("method: of another op", call(method="one_shot"), "method:", "found 'one_shot'",
     "expected one of auto, packets, ring, unfused"),
    ("method: ring of odd rows", call(x=lambda: X(M + 1, K), method="ring"), "method:", f"found {M + 1}", "pad the rows"),
    ("method: packets of much", call(x=lambda: X(1, 1).expand(2**13, 1), weight=lambda: X(1, 1).expand(2**13, 1),
                                     norm_weight=lambda: X(2**13), method="packets"),
     "method:", f"at most {64 << 20} bytes, found {128 << 20}", "use 'ring' or 'unfused'"),
    ("out of heap", call(x=lambda: X(1 << 10, 1), weight=lambda: X(1 << 12, 1), norm_weight=lambda: X(1 << 12), method="packets"),
     "packets halves", "bytes needed", "raise TRITON_DIST_HEAP_SIZE", OutOfHeap),
]


@table(ROWS)
def test_refused_on_all_ranks(row):
    assert refused(row) == row.world


@pytest.mark.one
@pytest.mark.parametrize("what", ["m", "n", "eps", "weight_bias", "method"])
def test_ranks_that_differ_are_named(what):
    def apart():
        i = min(resolve().rank, 1)
        changes = {"m": dict(x=X(M + i, K)), "n": dict(weight=X(N + i, K), norm_weight=X(N + i)), "eps": dict(eps=(0.25, 0.5)[i]),
                   "weight_bias": dict(norm_weight_bias=float(i)), "method": dict(method=("packets", "unfused")[i])}
        call(**changes[what])()
    words = {"m": (M, M + 1), "n": (N, N + 1), "eps": (0.25, 0.5), "weight_bias": (0.0, 1.0), "method": ("packets", "unfused")}
    assert differs(Row(what, apart, "call", *[f"{what}={word}" for word in words[what]])) == 2


@pytest.mark.parametrize("method", ["auto", "ring", "unfused"])
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("outputs", ["both", "norm", "sum"])
def test_gradients(world, method, outputs):
    """Of a loss that all ranks compute alike, as those of plain torch in float64."""
    def leaves(*tensors):
        return [t.detach().to(tensors[0].dtype).clone().requires_grad_() for t in tensors]

    def loss_of(y, total):
        return (y * one.to(y.dtype)).sum() * (outputs != "sum") + (total * two.to(y.dtype)).sum() * (outputs != "norm")
    drawn = [random_tensor(*shape, dtype=torch.float64, seed=seed) for seed, shape in enumerate((
        (M, K), (N, K), (N,), (N,), (M, N), (M, N), (M, N)))]
    one, two = drawn[5:]
    whole = leaves(*drawn[:5])
    x, weight, norm, bias, residual = whole
    total = x @ weight.t() + bias + residual
    loss_of(torch.nn.functional.rms_norm(total, (N,), norm + 1.0, 1e-5), total).backward()

    def ranks():
        r = resolve().rank
        mine = leaves(*[t.detach().chunk(world, 1)[r].float() if i < 2 else t.detach().float() for i, t in enumerate(whole)])
        loss_of(*gemm_ar_rmsnorm(*mine[:3], bias=mine[3], residual=mine[4], eps=1e-5, norm_weight_bias=1.0,
                                 method=method)).backward()
        for i, (found, full) in enumerate(zip(mine, whole)):
            expected = full.grad.chunk(world, 1)[r] if i < 2 else full.grad
            torch.testing.assert_close(found.grad.double(), expected, rtol=1e-3, atol=1e-3)
    run_ranks(ranks, world)


@pytest.mark.parametrize("residual", [False, True])
def test_layer(residual):
    def script():
        group = resolve()
        torch.manual_seed(0)
        full, x = torch.nn.Linear(33, 24).requires_grad_(False), torch.randn(5, 2, 33)
        norm, r = torch.nn.RMSNorm(24, 1e-5), torch.randn(5, 2, 24) if residual else None
        norm.weight = torch.nn.Parameter(torch.randn(24), requires_grad=False)
        mine = x.tensor_split(group.size, dim=2)[group.rank]
        expected = full(x).double() + (0 if r is None else r.double())
        layer = GemmAR.from_full(full)
        y, total = layer(mine, residual=r, norm=norm)
        assert_matches(total, expected, k=33, roundings=4)
        assert_matches(y, norm.double()(expected), k=33, roundings=8)
        norm.float()
        out = torch.empty(5, 2, 24)
        again, _ = layer(mine, residual=r, out=out, norm=AllReduceRMSNorm.from_norm(norm))
        assert again.data_ptr() == out.data_ptr() and torch.equal(out, y)
        more, _ = layer(mine, residual=r, norm=AllReduceRMSNorm(norm.weight - 1, eps=1e-5, weight_bias=1.0))
        assert_matches(more, norm.double()(expected), k=33, roundings=8)
    run_ranks(script, 3)


def test_blocks_of_a_decoder_take_the_residual_and_the_norm_that_follow():
    """As decoders are written: h, x = attention(h, residual=x, norm=...)."""
    def script():
        torch.manual_seed(0)
        heads, size, width = 4, 8, 24
        qkv, out = torch.nn.Linear(width, 3 * heads * size), torch.nn.Linear(heads * size, width)
        up, down = torch.nn.Linear(width, 64), torch.nn.Linear(32, width)
        norm, x, r = torch.nn.RMSNorm(width, 1e-5), torch.randn(3, 2, width), torch.randn(3, 2, width)
        attention = TPAttention.from_full(qkv, out, heads, sequence_parallel=False)
        mlp = TPMLP.from_full(up, down, gated=True, sequence_parallel=False)
        with torch.no_grad():
            for block in (attention, mlp):
                total = block(x) + r
                y, found = block(x, residual=r, norm=norm)
                torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(y, norm(total), rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(block(x, residual=r), total, rtol=1e-4, atol=1e-4)
            with pytest.raises(InvalidArgument, match="norm: expected a block that ends in a GemmAR, found GemmRS"):
                TPMLP.from_full(up, down, gated=True)(x[:2], norm=norm)
    run_ranks(script, 2)


@pytest.mark.parametrize("of_x", [False, True])
def test_autocast_casts_all_operands(of_x):
    def script():
        dtype = F32 if of_x else torch.bfloat16
        x, weight, norm, residual = X(M, K, dtype=dtype), X(N, K, dtype=F32), X(N, dtype=F32), X(M, N, dtype=F32)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            y, total = gemm_ar_rmsnorm(x, weight, norm, residual=residual)
        assert y.dtype == total.dtype == torch.bfloat16
        assert bool((total.float() == 2 * K + 1).all()) and bool((y.float() == 1).all())
    run_ranks(script, 2)

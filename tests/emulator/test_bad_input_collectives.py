# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Bad input to collectives and to the layer over one: one row an argument and a mistake."""
import math

import pytest
import torch
from bad_input import Row, differs, refused, small_heap, table  # noqa: F401
from torch import nn

from triton_dist.layers import AllReduceRMSNorm
from triton_dist.ops import all_gather, all_reduce, all_reduce_rmsnorm, all_to_all_single, all_to_all_vdev, reduce_scatter
from triton_dist.runtime.errors import OutOfHeap
from triton_dist.runtime.groups import resolve

F16, F32, I32 = torch.float16, torch.float32, torch.int32
M, N, K = 8, 16, 32


def X(*shape, dtype=F16, **options):
    return torch.ones(*(shape or (M, K)), dtype=dtype, **options)


def norm(*, x=None, weight=None, **given):
    """all_reduce_rmsnorm of X() with an argument that is wrong."""
    return lambda: all_reduce_rmsnorm(X() if x is None else x(), X(K) if weight is None else weight(),
                                      **{name: make() for name, make in given.items()})


def by_lists(output, given, x=None, **options):
    all_to_all_single(X() if x is None else x, output_split_sizes=output, input_split_sizes=given, **options)


def vdev(*, x=None, in_splits=None, **given):
    """all_to_all_vdev of X() with an argument that is wrong."""
    return lambda: all_to_all_vdev(X() if x is None else x(), torch.tensor([3, 4]) if in_splits is None else in_splits(),
                                   **{name: make() for name, make in given.items()})


def over_parts(**given):
    """Arguments that are rows of one tensor: first and last row of each."""
    def call():
        t = X(4 * M, K)
        parts = {name: t[first:last] for name, (first, last) in given.items()}
        all_reduce_rmsnorm(parts.pop("x", X()), X(K), **parts)
    return call


ROWS = [
    ("all_reduce x: a list", lambda: all_reduce([1.0]), "x:", "found list", "torch.Tensor"),
    ("all_reduce x: int16 by a kernel", lambda: all_reduce(X(dtype=torch.int16), method="push"), "method:",
     "kernels reduce no torch.int16", "use 'auto' or 'unfused'"),
    ("all_reduce x: quantized", lambda: all_reduce(torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)), "x:",
     "found torch.qint8", "int_repr()"),
    ("all_reduce op: of another library", lambda: all_reduce(X(), op="product"), "op:", "found 'product'",
     "expected one of sum, avg, max, min"),
    ("all_reduce op: None", lambda: all_reduce(X(), op=None), "op:", "found None", "expected one of sum, avg, max, min"),
    ("all_reduce op: average of truths", lambda: all_reduce(X(dtype=torch.bool), op="avg"), "op:", "found torch.bool",
     "convert x"),
    ("reduce_scatter op: of another library", lambda: reduce_scatter(X(), op=torch.distributed.ReduceOp.BXOR), "op:",
     "found <RedOpType.BXOR", "expected one of sum, avg, max, min"),
    ("all_gather x: conjugates", lambda: all_gather(X(dtype=torch.complex64).conj()), "x:", "torch's conj bit",
     "x.resolve_conj()"),
    ("all_reduce x: meta", lambda: all_reduce(X(device="meta")), "x:", "found meta", "triton_dist.device()"),
    ("all_reduce x: 2^31 elements", lambda: all_reduce(X(1, 1).expand(2**16, 2**15), method="push"), "method:", "fewer than 2^31",
     "use 'auto'"),
    ("all_reduce out: another shape", lambda: all_reduce(X(), out=X(M * K)), "out:", f"found shape [{M * K}]",
     "expected 2 dimensions"),
    ("all_reduce out: strided", lambda: all_reduce(X(), out=X(K, M).t()), "out:", "found strides", "pass one that is"),
    ("all_reduce out: over a part of x", lambda: (lambda t: all_reduce(t[:M], out=t[1:]))(X(M + 1, K)), "out:", "overlap x",
     "a tensor of its own"),
    ("all_reduce method: unknown", lambda: all_reduce(X(), method="ring"), "method:", "found 'ring'",
     "expected one of auto, one_shot, two_shot, push, unfused"),
    ("all_reduce method: None", lambda: all_reduce(X(), method=None), "method:", "found None", "leave it out"),
    ("all_gather x: a scalar", lambda: all_gather(torch.tensor(1.0)), "x:", "found a scalar", "pass x.view(1)"),
    ("all_gather x: 2^31 elements of all", lambda: all_gather(X(1, 1).expand(2**15, 2**15), method="push"), "method:",
     "fewer than 2^31", "use 'auto'"),
    ("all_gather out: rows of one", lambda: all_gather(X(), out=X()), "out:", f"expected shape [{2 * M}, {K}]", "pass None"),
    ("all_gather out: other rows of it", lambda: (lambda t: all_gather(t[1:M + 1], out=t))(X(2 * M, K)), "out:", "overlap x",
     "a tensor of its own"),
    ("all_gather method: two_shot", lambda: all_gather(X(), method="two_shot"), "method:", "found 'two_shot'",
     "expected one of auto, one_shot, push, unfused"),
    ("reduce_scatter x: odd rows", lambda: reduce_scatter(X(M + 1, K)), "x:", f"found {M + 1}", "pad the rows"),
    ("reduce_scatter out: rows of all", lambda: reduce_scatter(X(), out=X()), "out:", f"expected shape [{M // 2}, {K}]",
     "pass None"),
    ("all_to_all_single x: odd rows", lambda: all_to_all_single(X(M + 1, K)), "x:", f"found {M + 1}", "pad the rows"),
    ("all_reduce: out of heap", lambda: all_reduce(X(1 << 24), method="push"), "pushes in two hops halves", "bytes needed",
     "raise TRITON_DIST_HEAP_SIZE", OutOfHeap),
    ("norm x: a scalar", norm(x=lambda: torch.tensor(1.0)), "x:", "found a scalar", "at least 1 dimension"),
    ("norm x: int32", norm(x=lambda: X(dtype=I32)), "x:", "found torch.int32", "convert it"),
    ("norm x: 2^31 elements", norm(x=lambda: X(1, 1).expand(2**16, 2**15), weight=lambda: X(2**15)), "x:", "fewer than 2^31",
     "split the call"),
    ("norm weight: None", lambda: all_reduce_rmsnorm(X(), None), "weight:", "found NoneType", "pass ones"),
    ("norm weight: of rows", norm(weight=lambda: X(M)), "weight:", f"found shape [{M}]", f"expected a tensor of shape [{K}]"),
    ("norm weight: another dtype", norm(weight=lambda: X(K, dtype=F32)), "weight:", "found torch.float32", "convert it"),
    ("norm bias: a row", norm(bias=lambda: X(1, K)), "bias:", f"found shape [1, {K}]", f"of shape [{K}]"),
    ("norm bias: strided", norm(bias=lambda: X(2 * K)[::2]), "bias:", "found strides [2]", "bias.contiguous()"),
    ("norm residual: a row", norm(residual=lambda: X(K)), "residual:", f"found [{K}]", f"of shape [{M}, {K}]"),
    ("norm residual: another dtype", norm(residual=lambda: X(dtype=F32)), "residual:", "found torch.float32", "convert it"),
    ("norm residual: a number", norm(residual=lambda: 1.0), "residual:", "found float", "torch.Tensor"),
    ("norm eps: negative", norm(eps=lambda: -1e-6), "eps:", "found -1e-06", "at least 0"),
    ("norm eps: NaN", norm(eps=lambda: math.nan), "eps:", "found nan", "1e-6 is usual"),
    ("norm eps: a name", norm(eps=lambda: "small"), "eps:", "found 'small'", "None or a number"),
    ("norm eps: True", norm(eps=lambda: True), "eps:", "found True", "None or a number"),
    ("norm eps: a list", norm(eps=lambda: [1e-6]), "eps:", "found [1e-06]", "None or a number"),
    ("norm out: a part of x", over_parts(x=(0, M), out=(1, M + 1)), "out:", "overlap x", "a tensor of its own"),
    ("norm out: residual_out", over_parts(out=(0, M), residual_out=(1, M + 1)), "out:", "overlap residual_out",
     "a tensor of its own"),
    ("norm out: residual", over_parts(residual=(0, M), out=(0, M)), "out:", "overlap residual", "a tensor of its own"),
    ("norm residual_out: a part of x", over_parts(x=(1, M + 1), residual_out=(0, M)), "residual_out:", "overlap x",
     "a tensor of its own"),
    ("norm out and residual_out: x", over_parts(x=(0, M), out=(0, M), residual_out=(0, M)), "out:", "overlap residual_out",
     "a tensor of its own"),
    ("norm residual_out: a part of residual", over_parts(residual=(0, M), residual_out=(1, M + 1)), "residual_out:",
     "overlap residual", "a tensor of its own"),
    ("norm residual_out: strided", norm(residual_out=lambda: X(K, M).t()), "residual_out:", "found strides", "pass one that is"),
    ("norm method: of another op", norm(method=lambda: "push"), "method:", "found 'push'",
     "expected one of auto, one_shot, two_shot, unfused"),
    ("norm method: packets of much", norm(x=lambda: X(1, 1).expand(2**13, 2**13), weight=lambda: X(2**13),
                                          method=lambda: "two_shot"), "method:", f"at most {64 << 20} bytes", "use 'unfused'"),
    ("norm: out of heap", norm(x=lambda: X(1 << 12, 1 << 10), weight=lambda: X(1 << 10), method=lambda: "one_shot"),
     "self-flagged halves", "bytes needed", "raise TRITON_DIST_HEAP_SIZE", OutOfHeap),
    ("all_to_all_single by lists: one of them", lambda: all_to_all_single(X(), input_split_sizes=[4, 4]), "output_split_sizes:",
     "found None", "give both lists or none"),
    ("all_to_all_single by lists: of three", lambda: by_lists([1, 2, 5], [4, 4]), "output_split_sizes:", "found [1, 2, 5]",
     "a list of 2"),
    ("all_to_all_single by lists: a fraction", lambda: by_lists([4, 4], [4, 4.0]), "input_split_sizes:", "found 4.0",
     "a whole number"),
    ("all_to_all_single by lists: negative", lambda: by_lists([4, 4], [-1, 9]), "input_split_sizes:", "found -1", "at least 0"),
    ("all_to_all_single by lists: tensors", lambda: by_lists(torch.tensor([4, 4]), torch.tensor([4, 4])), "output_split_sizes:",
     "found tensor", "a list of 2"),
    ("all_to_all_single by lists: rows of x", lambda: by_lists([4, 4], [4, 3]), "input_split_sizes:", "found 7",
     f"expected {M} rows"),
    ("all_to_all_single by lists: out", lambda: by_lists([4, 5], [4, 4], out=X()), "out:", f"expected shape [9, {K}]",
     "pass None"),
    ("all_to_all_single by lists: in place", lambda: (lambda x: by_lists([4, 4], [4, 4], x=x, out=x))(X()), "out:", "overlap x",
     "a tensor of its own"),
    ("all_to_all_single by lists: method", lambda: by_lists([4, 4], [4, 4], method="push"), "method:", "found 'push'",
     "all_to_all_vdev"),
    ("vdev x: a scalar", vdev(x=lambda: torch.tensor(1.0)), "x:", "found a scalar", "pass x.view(1)"),
    ("vdev x: 2^31 rows of all", vdev(x=lambda: X(1).expand(2**30)), "x:", f"found {2**30}", "split the call"),
    ("vdev in_splits: a list", vdev(in_splits=lambda: [3, 4]), "in_splits:", "found list", "triton_dist.device()"),
    ("vdev in_splits: of three", vdev(in_splits=lambda: torch.tensor([1, 2, 3])), "in_splits:", "of shape [3]", "of shape [2]"),
    ("vdev in_splits: floats", vdev(in_splits=lambda: torch.tensor([1.0, 2.0])), "in_splits:", "found torch.float32",
     "torch.int32 or torch.int64"),
    ("vdev in_splits: strided", vdev(in_splits=lambda: torch.tensor([1, 2, 3, 4])[::2]), "in_splits:", "found strides [2]",
     "pass one that is"),
    ("vdev in_splits: meta", vdev(in_splits=lambda: torch.zeros(2, dtype=I32, device="meta")), "in_splits:", "found meta",
     "triton_dist.device()"),
    ("vdev capacity: negative", vdev(capacity=lambda: -1), "capacity:", "found -1", "at least 0"),
    ("vdev capacity: a fraction", vdev(capacity=lambda: 2.5), "capacity:", "found 2.5", "a whole number"),
    ("vdev out: of another capacity", vdev(capacity=lambda: M, out=lambda: X(M + 1, K)), "out:", f"expected shape [{M}, {K}]",
     f"found [{M + 1}, {K}]"),
    ("vdev out: other rows", vdev(out=lambda: X(M, K + 1)), "out:", f"expected shape [{M}, {K}]", "pass None"),
    ("vdev out: a number", vdev(out=lambda: 1.0), "out:", "found float", "None or a torch.Tensor"),
    ("vdev out: over x", lambda: (lambda t: all_to_all_vdev(t[:M], torch.tensor([1, 2]), out=t[1:]))(X(M + 1, K)), "out:",
     "overlap x", "a tensor of its own"),
    ("vdev out_splits_offsets: another dtype", vdev(out_splits_offsets=lambda: torch.zeros(2, 2, dtype=I32)),
     "out_splits_offsets:", "found torch.int32", "expected torch.int64"),
    ("vdev out_splits_offsets: a row", vdev(out_splits_offsets=lambda: torch.zeros(2, dtype=torch.int64)), "out_splits_offsets:",
     "of shape [2]", "of shape [2, 2]"),
    ("vdev out_splits_offsets: over in_splits", lambda: (lambda t: all_to_all_vdev(X(), t[0], out_splits_offsets=t))(
        torch.ones(2, 2, dtype=I32)), "out_splits_offsets:", "overlap in_splits", "a tensor of its own"),
    ("vdev method: of another op", vdev(method=lambda: "one_shot"), "method:", "found 'one_shot'",
     "expected one of auto, push, unfused"),
    ("vdev: out of heap", vdev(x=lambda: X(1 << 12, 1 << 10), capacity=lambda: 1 << 13, method=lambda: "push"),
     "rows by splits halves", "bytes needed", "raise TRITON_DIST_HEAP_SIZE", OutOfHeap),
    ("AllReduceRMSNorm.from_norm: a layer norm", lambda: AllReduceRMSNorm.from_norm(nn.LayerNorm(K)), "norm:", "found LayerNorm",
     "an nn.RMSNorm"),
    ("AllReduceRMSNorm.from_norm: two dimensions", lambda: AllReduceRMSNorm.from_norm(nn.RMSNorm((M, K))), "norm:",
     f"found normalized_shape [{M}, {K}]", "the last dimension"),
    ("AllReduceRMSNorm.from_norm: no weight", lambda: AllReduceRMSNorm.from_norm(nn.RMSNorm(K, elementwise_affine=False)),
     "norm:", "elementwise_affine=False", "torch.ones(N)"),
    ("AllReduceRMSNorm weight: a number", lambda: AllReduceRMSNorm(1.0), "weight:", "found float", "torch.Tensor"),
]


@table(ROWS)
def test_refused_on_all_ranks(row):
    assert refused(row) == row.world


@pytest.mark.parametrize("what", ["rows", "columns", "eps", "method"])
def test_ranks_that_differ_in_a_norm_are_named(what):
    def call():
        other = min(resolve().rank, 1)
        changes = {"rows": dict(x=X(M + other, K)), "columns": dict(x=X(M, K + other), weight=X(K + other)),
                   "eps": dict(eps=(1e-6, 1e-5)[other]), "method": dict(method=("one_shot", "two_shot")[other])}
        all_reduce_rmsnorm(**{"x": X(), "weight": X(K), **changes[what]})
    names = {"rows": (f"m={M}", f"m={M + 1}"), "columns": (f"n={K}", f"n={K + 1}"), "eps": ("eps=1e-06", "eps=1e-05"),
             "method": ("method=one_shot", "method=two_shot")}[what]
    assert differs(Row(what, call, "call", *names)) == 2


@pytest.mark.parametrize("what", ["m", "row", "capacity"])
def test_ranks_that_differ_in_rows_by_splits_are_named(what):
    def call():
        more = {name: min(resolve().rank, 1) * (name == what) for name in ("m", "row", "capacity")}
        all_to_all_vdev(X(M + more["m"], K + more["row"]), torch.tensor([1, 2]), capacity=M + more["capacity"])
    first = K if what == "row" else M
    assert differs(Row(what, call, "call", f"{what}={first}", f"{what}={first + 1}")) == 2

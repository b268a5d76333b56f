# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Bad input to ops and layers: one row an argument and a mistake."""
import math
import warnings

import numpy as np
import pytest
import torch
from bad_input import differs, over, refused, small_heap, table, usable  # noqa: F401
from torch import nn

from triton_dist.backends.emulator import run_ranks
from triton_dist.layers import AGGemm, GemmAR, GemmRS
from triton_dist.ops import ag_gemm, all_reduce, explain, gemm_ar, gemm_rs
from triton_dist.runtime.errors import InvalidArgument, NotInitialized, OutOfHeap
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state

F16, F32, I32 = torch.float16, torch.float32, torch.int32
M, N, K = 8, 16, 32


def rank():
    return resolve().rank


def X(*shape, dtype=F16, **options):
    return torch.ones(*(shape or (M, K)), dtype=dtype, **options)


def W(*shape, dtype=F16, **options):
    return torch.ones(*(shape or (N, K)), dtype=dtype, **options)


def negated(t):
    return torch.complex(torch.zeros_like(t, dtype=F32), t.float()).conj().imag


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as DTensor is."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def each(**bad):
    """ag_gemm, gemm_rs and gemm_ar with the same bad argument: all must refuse it alike."""
    def call():
        errors = []
        for op in (ag_gemm, gemm_ar, gemm_rs):
            with pytest.raises(InvalidArgument) as caught:
                op(**{"x": X(), "weight": W(), **{name: make() for name, make in bad.items()}})
            errors.append(caught.value)
        assert len({str(error).split(":")[0] for error in errors}) == 1
        raise errors[-1]
    return call


def misaligned():
    return torch.frombuffer(bytearray(2 * M * K + 1), dtype=F16, offset=1, count=M * K).view(M, K)


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(M, K), 0.1, 0, torch.qint8)


def quiet(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


COMMON = [
    ("x: a list", each(x=lambda: [[1.0] * K] * M), "x:", "found list", "torch.Tensor"),
    ("x: an array", each(x=lambda: np.ones((M, K), np.float16)), "x:", "found ndarray", "torch.Tensor"),
    ("x: None", each(x=lambda: None), "x:", "found NoneType", "torch.Tensor"),
    ("x: a vector", each(x=lambda: X(K)), "x:", f"found shape [{K}]", "expected 2 dimensions"),
    ("x: a batch", each(x=lambda: X(2, M, K)), "x:", f"found shape [2, {M}, {K}]", "expected 2 dimensions"),
    ("x: a scalar", each(x=lambda: torch.tensor(1.0, dtype=F16)), "x:", "found shape []", "expected 2 dimensions"),
    ("x: int32", each(x=lambda: X(dtype=I32)), "x:", "found torch.int32", "convert it"),
    ("x: float64", each(x=lambda: X(dtype=torch.float64)), "x:", "found torch.float64", "convert it"),
    ("x: float8", each(x=lambda: X().to(torch.float8_e4m3fn)), "x:", "found torch.float8_e4m3fn", "convert it"),
    ("x: bool", each(x=lambda: X(dtype=torch.bool)), "x:", "found torch.bool", "convert it"),
    ("x: complex", each(x=lambda: X(dtype=torch.complex64)), "x:", "found torch.complex64", "convert it"),
    ("x: quantised", each(x=quantized), "x:", "found torch.qint8", "convert it"),
    ("x: meta", each(x=lambda: X(device="meta")), "x:", "found meta", "triton_dist.device()"),
    ("x: sparse COO", each(x=lambda: X(dtype=F32).to_sparse()), "x:", "found torch.sparse_coo", "to_dense()"),
    ("x: sparse CSR", each(x=lambda: quiet(lambda: X(dtype=F32).to_sparse_csr())), "x:", "found torch.sparse_csr", "to_dense()"),
    ("x: nested", each(x=lambda: quiet(lambda: torch.nested.nested_tensor([X(), X()], layout=torch.jagged))), "x:",
     "found torch.jagged", "part"),
    ("x: a wrapper", each(x=lambda: Wrapper(X())), "x:", "found Wrapper", "to_local()"),
    ("x: neg bit", each(x=lambda: negated(X()), weight=lambda: W(dtype=F32)), "x:", "negated", "x.resolve_neg()"),
    ("x: odd address", each(x=misaligned), "x:", "multiple of 2", "x.clone()"),
    ("x: 2^31 columns", each(x=lambda: X(1, 1).expand(M, 2**31), weight=lambda: W(1, 1).expand(N, 2**31)), "x:",
     f"found shape [{M}, {2**31}]", "split the call"),
    ("weight: a list", each(weight=lambda: [[1.0]]), "weight:", "found list", "torch.Tensor"),
    ("weight: a layer", each(weight=lambda: nn.Linear(K, N)), "weight:", "found Linear", "torch.Tensor"),
    ("weight: another dtype", each(weight=lambda: W(dtype=F32)), "weight:", "found torch.float32", "convert it"),
    ("weight: int8", each(weight=lambda: W(dtype=torch.int8)), "weight:", "found torch.int8", "convert it"),
    ("weight: transposed", each(weight=lambda: W(K, N)), "weight:", f"found [{K}, {N}]", "a row for each output column"),
    ("weight: a vector", each(weight=lambda: W(K)), "weight:", f"found shape [{K}]", "expected 2 dimensions"),
    ("weight: meta", each(weight=lambda: W(device="meta")), "weight:", "found meta", "triton_dist.device()"),
    ("weight: sparse", each(weight=lambda: W().to_sparse()), "weight:", "found torch.sparse_coo", "to_dense()"),
    ("weight: neg bit", each(x=lambda: X(dtype=F32), weight=lambda: negated(W())), "weight:", "negated", "weight.resolve_neg()"),
    ("weight: odd address", each(weight=misaligned), "weight:", "multiple of 2", "weight.clone()"),
    ("bias: too short", each(bias=lambda: X(N - 1)), "bias:", f"found shape [{N - 1}]", f"[{N}]"),
    ("bias: a row", each(bias=lambda: X(1, N)), "bias:", f"found shape [1, {N}]", f"[{N}]"),
    ("bias: a number", each(bias=lambda: 0.5), "bias:", "found float", f"expected None or a tensor of shape [{N}]"),
    ("bias: True", each(bias=lambda: True), "bias:", "found bool", f"expected None or a tensor of shape [{N}]"),
    ("bias: another dtype", each(bias=lambda: X(N, dtype=F32)), "bias:", "found torch.float32", "convert it"),
    ("bias: strided", each(bias=lambda: X(2 * N)[::2]), "bias:", "found strides [2]", "bias.contiguous()"),
    ("bias: expanded", each(bias=lambda: X(1).expand(N)), "bias:", "found strides [0]", "bias.contiguous()"),
    ("bias: meta", each(bias=lambda: X(N, device="meta")), "bias:", "found meta", "triton_dist.device()"),
    ("bias: neg bit", each(x=lambda: X(dtype=F32), weight=lambda: W(dtype=F32), bias=lambda: negated(X(N))), "bias:", "negated",
     "bias.resolve_neg()"),
    ("out: a number", each(out=lambda: 3), "out:", "found int", "torch.Tensor"),
    ("out: another dtype", each(out=lambda: X(M, N, dtype=F32)), "out:", "found torch.float32", "convert it"),
    ("out: another shape", each(out=lambda: X(M + 1, N)), "out:", f"found [{M + 1}, {N}]", "pass None"),
    ("out: meta", each(out=lambda: X(M, N, device="meta")), "out:", "found meta", "triton_dist.device()"),
    ("method: unknown", each(method=lambda: "fastest"), "method:", "found 'fastest'",
     "expected one of auto, ws, portable, "),
    ("method: None", each(method=lambda: None), "method:", "found None", "leave it out"),
    ("method: a list", each(method=lambda: ["ws"]), "method:", "found ['ws']", "leave it out"),
    ("method: ws for float32", each(x=lambda: X(dtype=F32), weight=lambda: W(dtype=F32), method=lambda: "ws"), "method:",
     "2-byte operands", "use 'auto' or 'portable'"),
    ("group: a number", each(group=lambda: 0), "group:", "found int", "ProcessGroup or a DeviceMesh"),
    ("group: NaN", each(group=lambda: math.nan), "group:", "found float", "ProcessGroup or a DeviceMesh"),
    ("group: ranks", each(group=lambda: [0, 1]), "group:", "found list", "ProcessGroup or a DeviceMesh"),
    ("group: a name", each(group=lambda: "world"), "group:", "the name 'world'", "make the group first"),
    ("group: of none", each(group=lambda: torch.distributed.GroupMember.NON_GROUP_MEMBER), "group:", "not a member",
     "only members may call"),
]


def ws_rows():
    ag_gemm(X(M, 12), W(N, 12), method="ws")


def of_a_world_before():
    return run_ranks(resolve, 2, heap=False)[rank()]


def layer(cls, *, linear=None, x=None, **options):
    def call():
        made = cls.from_full(nn.Linear(K, N) if linear is None else linear(), **options)
        made(X(dtype=F32) if x is None else x())
    return call


def gathered_into(first):
    x = X(2 * M, K)
    ag_gemm(x[:M] if first else x[M:], W(K, K), out=x)


OWN = [
    ("ag_gemm out: strided", lambda: ag_gemm(X(), W(), out=X(2 * M, 2 * N)[:, ::2]), "out:", "found strides", "pass one that is"),
    ("ag_gemm out: expanded", lambda: ag_gemm(X(), W(), out=X(1, N).expand(2 * M, N)), "out:", "found strides [0, 1]",
     "contiguous"),
    ("ag_gemm out: requires grad", lambda: ag_gemm(X(), W(), out=X(2 * M, N, requires_grad=True)), "out:", "requires grad",
     "out.detach()"),
    ("ag_gemm out: over x", lambda: gathered_into(True), "out:", "overlap x", "a tensor of its own"),
    ("ag_gemm out: its end over x", lambda: gathered_into(False), "out:", "overlap x", "a tensor of its own"),
    ("gemm_rs out: over weight", lambda: (lambda w: gemm_rs(X(), w, out=w.view(-1)[:M // 2 * N].view(M // 2, N)))(W()), "out:",
     "overlap weight", "a tensor of its own"),
    ("gemm_rs out: over bias", lambda: (lambda o: gemm_rs(X(), W(), out=o, bias=o[0]))(X(M // 2, N)), "out:", "overlap bias",
     "a tensor of its own"),
    ("gemm_rs out: rows of all", lambda: gemm_rs(X(), W(), out=X(M, N)), "out:", f"expected shape [{M // 2}, {N}]", "pass None"),
    ("ag_gemm out: rows of one", lambda: ag_gemm(X(), W(), out=X(M, N)), "out:", f"expected shape [{2 * M}, {N}]", "pass None"),
    ("ag_gemm x: 2^31 rows of all", lambda: ag_gemm(X(1, 1).expand(2**30, 1), W(N, 1)), "x:", f"found {2**31}", "split the call"),
    ("gemm_rs x: rows that do not divide", lambda: gemm_rs(X(M + 1, K), W()), "x:", f"found {M + 1}", "pad the rows"),
    ("gemm_rs hop_dtype: float64", lambda: gemm_rs(X(), W(), hop_dtype=torch.float64), "hop_dtype:", "found torch.float64",
     "leave it out"),
    ("gemm_rs hop_dtype: the other half", lambda: gemm_rs(X(), W(), hop_dtype=torch.bfloat16), "hop_dtype:",
     "found torch.bfloat16", "expected None, torch.float16 or torch.float32"),
    ("gemm_rs hop_dtype: a name", lambda: gemm_rs(X(), W(), hop_dtype="float32"), "hop_dtype:", "found 'float32'",
     "leave it out"),
    ("gemm_rs hop_dtype: NaN", lambda: gemm_rs(X(), W(), hop_dtype=math.nan), "hop_dtype:", "found nan", "leave it out"),
    ("ag_gemm method: ws for odd rows", ws_rows, "method:", "multiple of 16 bytes", "use 'auto' or 'portable'"),
    ("ag_gemm comm_sms: 0", lambda: ag_gemm(X(), W(), comm_sms=0), "comm_sms:", "found 0", "a whole number from 1 to 32"),
    ("ag_gemm comm_sms: too many", lambda: ag_gemm(X(), W(), comm_sms=33), "comm_sms:", "found 33", "from 1 to 32"),
    ("ag_gemm comm_sms: True", lambda: ag_gemm(X(), W(), comm_sms=True), "comm_sms:", "found True", "leave it out"),
    ("ag_gemm comm_sms: a float", lambda: ag_gemm(X(), W(), comm_sms=4.0), "comm_sms:", "found 4.0", "leave it out"),
    ("ag_gemm comm_sms: a word", lambda: ag_gemm(X(), W(), comm_sms="4"), "comm_sms:", "found '4'", "leave it out"),
    ("ag_gemm comm_sms: a list", lambda: ag_gemm(X(), W(), comm_sms=[4]), "comm_sms:", "found [4]", "leave it out"),
    ("ag_gemm comm_sms: unfused", lambda: ag_gemm(X(), W(), method="unfused", comm_sms=4), "comm_sms:", "found 4",
     "leave it out, or use another method"),
    ("AGGemm comm_sms: 0", lambda: AGGemm(W(), None)(X(), comm_sms=0), "comm_sms:", "found 0", "leave it out"),
    ("ag_gemm: out of heap", lambda: ag_gemm(X(1 << 13, 1 << 12), W(1, 1 << 12), method="portable"), "ag_gemm halves",
     "bytes needed", "raise TRITON_DIST_HEAP_SIZE", OutOfHeap),
    ("gemm_rs: out of heap", lambda: gemm_rs(X(1 << 14, 1), W(1 << 12, 1), method="portable"), "gemm_rs halves", "bytes needed",
     "raise TRITON_DIST_HEAP_SIZE", OutOfHeap),
    ("gemm_ar x: 2^31 of the output", lambda: gemm_ar(X(1, 1).expand(2**16, 1), W(1, 1).expand(2**15, 1)), "x:",
     "fewer than 2^31", "split the call"),
    ("gemm_ar residual: a row", lambda: gemm_ar(X(), W(), residual=X(N)), "residual:", f"found shape [{N}]",
     "expected 2 dimensions"),
    ("gemm_ar residual: another shape", lambda: gemm_ar(X(), W(), residual=X(M // 2, N)), "residual:", f"found [{M // 2}, {N}]",
     f"of shape [{M}, {N}]"),
    ("gemm_ar residual: another dtype", lambda: gemm_ar(X(), W(), residual=X(M, N, dtype=F32)), "residual:",
     "found torch.float32", "convert it"),
    ("gemm_ar residual: a number", lambda: gemm_ar(X(), W(), residual=1.0), "residual:", "found float", "torch.Tensor"),
    ("gemm_ar residual: meta", lambda: gemm_ar(X(), W(), residual=X(M, N, device="meta")), "residual:", "found meta",
     "triton_dist.device()"),
    ("gemm_ar out: over a part of residual", lambda: (lambda t: gemm_ar(X(), W(), residual=t[:M], out=t[1:]))(X(M + 1, N)),
     "out:", "overlap residual", "a tensor of its own"),
    ("gemm_ar out: over x", lambda: (lambda x: gemm_ar(x, W(K, K), out=x))(X()), "out:", "overlap x", "a tensor of its own"),
    ("gemm_ar out: rows of one", lambda: gemm_ar(X(), W(), out=X(M // 2, N)), "out:", f"expected shape [{M}, {N}]", "pass None"),
    ("gemm_ar method: of another op", lambda: gemm_ar(X(), W(), method="ws"), "method:", "found 'ws'",
     "expected one of auto, packets, ring, unfused"),
    ("gemm_ar method: ring of odd rows", lambda: gemm_ar(X(M + 1, K), W(), method="ring"), "method:", f"found {M + 1}",
     "pad the rows or use 'auto'"),
    ("gemm_ar method: packets of much", lambda: gemm_ar(X(1, 1).expand(2**13, 1), W(1, 1).expand(2**13, 1), method="packets"),
     "method:", f"at most {64 << 20} bytes, found {128 << 20}", "use 'ring' or 'unfused'"),
    ("gemm_ar: out of heap", lambda: gemm_ar(X(1 << 10, 1), W(1 << 12, 1), method="packets"), "packets halves", "bytes needed",
     "raise TRITON_DIST_HEAP_SIZE", OutOfHeap),
    ("group: of another world", lambda: ag_gemm(X(), W(), group=of_a_world_before()), "group:", "another world",
     "make it again"),
    ("explain op", lambda: explain("all_reduced", M, N, K), "op:", "found 'all_reduced'", "'ag_gemm', 'gemm_rs', 'gemm_ar'"),
    ("explain op: a function", lambda: explain(ag_gemm, M, N, K), "op:", "found <function", "'ag_gemm', 'gemm_rs', 'gemm_ar'"),
    ("explain m: negative", lambda: explain("ag_gemm", -1, N, K), "m:", "found -1", "at least 0"),
    ("explain n: a fraction", lambda: explain("ag_gemm", M, 2.5, K), "n:", "found 2.5", "a whole number"),
    ("explain k: a name", lambda: explain("gemm_rs", M, N, "K"), "k:", "found 'K'", "a whole number"),
    ("explain k: 2^31", lambda: explain("gemm_rs", M, N, 2**31), "k:", f"found {2**31}", "below 2^31"),
    ("explain dtype", lambda: explain("gemm_rs", M, N, K, dtype=I32), "dtype:", "found torch.int32",
     "torch.bfloat16 or torch.float32"),
    ("explain dtype: a name", lambda: explain("gemm_rs", M, N, K, dtype="bfloat16"), "dtype:", "found 'bfloat16'",
     "torch.float16"),
    ("explain group", lambda: explain("gemm_rs", M, N, K, group=7), "group:", "found int", "ProcessGroup or a DeviceMesh"),
    ("AGGemm.from_full: a tensor", layer(AGGemm, linear=W), "linear:", "found Tensor", "nn.Linear"),
    ("GemmRS.from_full: another layer", layer(GemmRS, linear=lambda: nn.Conv1d(1, 1, 1)), "linear:", "found Conv1d", "nn.Linear"),
    ("AGGemm.from_shard: None", lambda: AGGemm.from_shard(None), "linear:", "found NoneType", "nn.Linear"),
    ("GemmRS.from_full: a lazy layer", layer(GemmRS, linear=lambda: quiet(lambda: nn.LazyLinear(N))), "linear:",
     "not initialised", "run it once"),
    ("AGGemm.from_full: group", layer(AGGemm, group=3), "group:", "found int", "ProcessGroup or a DeviceMesh"),
    ("GemmRS.from_full: on meta", layer(GemmRS, linear=lambda: nn.Linear(K, N, device="meta")), "weight:", "found meta",
     "triton_dist.device()"),
    ("AGGemm weight: a list", lambda: AGGemm([[1.0]], None), "weight:", "found list", "torch.Tensor"),
    ("AGGemm bias: a number", lambda: AGGemm(W(), 1.0), "bias:", "found float", "None or a torch.Tensor"),
    ("GemmAR.from_full: a tensor", layer(GemmAR, linear=W), "linear:", "found Tensor", "nn.Linear"),
    ("GemmAR x: not sharded", layer(GemmAR, x=lambda: X(M, K, dtype=F32)), "weight:", f"found [{N}, {K // 2}]", f"[N, {K}]"),
    ("AGGemm x: features", layer(AGGemm, x=lambda: X(M, K + 1, dtype=F32)), "weight:", f"match x [{M}, {K + 1}]",
     "as in nn.Linear"),
    ("GemmRS x: not sharded", layer(GemmRS, x=lambda: X(M, K, dtype=F32)), "weight:", f"found [{N}, {K // 2}]", f"[N, {K}]"),
    ("AGGemm x: another dtype", layer(AGGemm, x=X), "weight:", "found torch.float32", "convert it"),
    ("GemmRS x: a batch", layer(GemmRS, x=lambda: X(1, M, K // 2, dtype=F32)), "x:", "found shape [1,", "pad it"),
]


def apart(call, warm):
    """`call(0)` on rank 0 and `call(1)` on the others; with `warm`, both have been made before by all."""
    def script():
        for which in (0, 1) if warm else ():
            call(which)
        call(min(rank(), 1))
    return script


DIFFERENT = {  # what differs: (call, words for rank 0, words for rank 1)
    "rows": (lambda i: ag_gemm(X(M + i, K), W()), f"m={M}", f"m={M + 1}"),
    "no rows": (lambda i: ag_gemm(X(M - M * i, K), W()), f"m={M}", "m=0"),
    "depth": (lambda i: ag_gemm(X(M, K + i), W(N, K + i)), f"k={K}", f"k={K + 1}"),
    "dtype": (lambda i: ag_gemm(X(dtype=(F16, F32)[i]), W(dtype=(F16, F32)[i])), "dtype=torch.float16", "dtype=torch.float32"),
    "method": (lambda i: ag_gemm(X(), W(), method=("portable", "unfused")[i]), "method=portable", "method=unfused"),
    "core": (lambda i: ag_gemm(X(), W(), method=("ws", "portable")[i]), "method=ws", "method=portable"),
    "comm_sms": (lambda i: ag_gemm(X(), W(), comm_sms=1 + i), "comm_sms=1", "comm_sms=2"),
    "op": (lambda i: (ag_gemm, gemm_rs)[i](X(), W()), "op=ag_gemm", "op=gemm_rs"),
    "rows of the sum": (lambda i: gemm_rs(X(M + 2 * i, K), W()), f"m={M // 2}", f"m={M // 2 + 1}"),
    "columns of the sum": (lambda i: gemm_rs(X(), W(N + i, K)), f"n={N}", f"n={N + 1}"),
    "no columns": (lambda i: gemm_rs(X(), W(N - N * i, K)), f"n={N}", "n=0"),
    "hop_dtype": (lambda i: gemm_rs(X(), W(), hop_dtype=(F16, F32)[i]), "hop_dtype=torch.float16", "hop_dtype=torch.float32"),
    "elements": (lambda i: all_reduce(X(M + i)), f"n={M}", f"n={M + 1}"),
    "dtype of the sum": (lambda i: all_reduce(X(dtype=(F16, F32)[i])), "dtype=torch.float16", "dtype=torch.float32"),
    "method of the sum": (lambda i: all_reduce(X(), method=("push", "unfused")[i]), "method=push", "method=unfused"),
    "rows of gemm_ar": (lambda i: gemm_ar(X(M + i, K), W()), f"m={M}", f"m={M + 1}"),
    "columns of gemm_ar": (lambda i: gemm_ar(X(), W(N + i, K)), f"n={N}", f"n={N + 1}"),
    "method of gemm_ar": (lambda i: gemm_ar(X(), W(), method=("packets", "unfused")[i]), "method=packets", "method=unfused"),
    "unfused shapes": (lambda i: gemm_rs(X(), W(N + i, K), method="unfused"), f"n={N}", f"n={N + 1}"),
}
BETWEEN = [(f"ranks differ in {what}, {'known' if warm else 'new'} shapes", apart(call, warm), "call", f"{first}", f"{second}")
           for what, (call, first, second) in DIFFERENT.items() for warm in (False, True)]


@table(COMMON + OWN)
def test_refused_on_all_ranks(row):
    assert refused(row) == row.world


@table(BETWEEN)
@pytest.mark.parametrize("mode", ["random", "skew"])
def test_ranks_that_differ_are_named(row, mode):
    assert differs(row, mode=mode) == row.world


@pytest.mark.parametrize("mode", ["random", "late", "skew", "priority"])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("warm", [False, True])
def test_one_rank_that_refuses_does_not_leave_the_others_waiting(mode, which, warm):
    def script():
        if warm:
            usable()
            ag_gemm(X(), W())
        dtype = I32 if rank() == which else F16
        with pytest.raises(InvalidArgument) as caught:
            ag_gemm(X(dtype=dtype), W(dtype=dtype))
            resolve().barrier()
        says = str(caught.value)
        assert says.startswith("x: expected float16") if rank() == which else f"rank {which} has ag_gemm, refused: x:" in says
        over(f"rank {which} has ag_gemm, refused: x:")
    run_ranks(script, 3, mode=mode)


def test_an_op_needs_a_world():
    assert state().world is None
    for call in (lambda: ag_gemm(X(), W()), lambda: explain("ag_gemm", M, N, K), lambda: AGGemm.from_full(nn.Linear(K, N))):
        with pytest.raises(NotInitialized, match=r"call triton_dist.initialize_distributed\(\) first"):
            call()

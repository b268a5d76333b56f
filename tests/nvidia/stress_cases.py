# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kinds of calls that the stress test makes: for each op its shapes, dtypes, methods and places, and how one is made."""
import random
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Callable, Iterator, NamedTuple

import torch

import triton_dist
from triton_dist import ops
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.ops.all_reduce_rmsnorm_quant.unfused import quantized
from triton_dist.testing import (ag_gemm_float64, all_reduce_rmsnorm_float64, assert_matches, gemm_ar_float64,
                                 gemm_ar_rmsnorm_float64, gemm_rs_float64, poisoned, random_tensor, rmsnorm_gemm_float64)

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
OPS = ("ag_gemm", "gemm_rs", "gemm_ar", "gemm_ar_rmsnorm", "all_reduce", "all_gather", "reduce_scatter", "all_to_all_single",
       "all_to_all_vdev", "all_reduce_rmsnorm", "ep_dispatch", "rmsnorm_gemm")
MOST_BY_SMS = 1 << 22           # elements of x with which ag_gemm is captured on up to 8 ranks where graphs hold no copies
SMALL = 50_000_000              # elements, or products of a GEMM, that a tool which watches memory gets through


@dataclass(frozen=True)
class Case:
    """One kind of call.

    shape: ag_gemm x [m, k], weight [n, k] as (m, n, k); gemm_rs and gemm_ar by ring the same for x [m * size, k]; gemm_ar else,
    gemm_ar_rmsnorm and rmsnorm_gemm for x [m, k]. Collectives (elements of a row,). all_reduce_rmsnorm, and what has splits or
    experts: x as (rows, columns).
    odd: tensors begin one element behind a multiple of 16 bytes. in_place: out is x, or the residual. idle: the last rank has no
    tiles (n = 0), or no terms (k = 0). cut: what arrives does not fit. quant: the norm is quantised so, too.
    """
    op: str
    shape: tuple
    dtype: torch.dtype = BF16
    method: str = "portable"
    bias: bool = False
    residual: bool = False
    in_place: bool = False
    odd: bool = False
    idle: bool = False
    cut: bool = False
    comm_sms: int | None = None
    quant: str = ""

    def label(self) -> str:
        marks = ("bias", self.bias), ("residual", self.residual), ("in place", self.in_place), ("odd", self.odd), (
            "idle rank", self.idle), ("cut off", self.cut), (f"{self.comm_sms} SMs", self.comm_sms), (self.quant, self.quant)
        notes = "".join(f" {note}" for note, on in marks if on)
        return f"{self.op} {'x'.join(map(str, self.shape))} {str(self.dtype).removeprefix('torch.')}{notes} {self.method}"

    @property
    def by_library(self) -> bool:
        """Whether torch.distributed serves it, of whose streams our ops know nothing."""
        return self.method == "split sizes"

    @property
    def capturable(self) -> bool:
        large = self.op == "ag_gemm" and self.shape[0] * self.shape[2] > MOST_BY_SMS
        return not self.by_library and not (large and not backend().captures_pushes())

    @property
    def small(self) -> bool:
        return prod(self.shape) <= SMALL


def collectives(ragged: int, packets: int, pushed: int) -> Iterator[Case]:
    """Of one element, ragged ones, and many of what packets and what plain stores carry."""
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all_single"):
        for method in ("one_shot", *(["two_shot"] if op == "all_reduce" else []), "push"):
            yield Case(op, (1,), BF16, method)
            yield Case(op, (ragged,), F16, method, in_place=True)
            yield Case(op, (ragged,), F32, method, odd=True)
            yield Case(op, (pushed if method == "push" else packets,), BF16, method)


def fused(*cases: Case) -> Iterator[Case]:
    """Cases of ag_gemm and gemm_rs by every fused method that this device has for them."""
    for case in cases:
        yield case
        core = backend().core(case.op)
        if core is not None and core.serves(case.dtype, case.shape[2 if case.op == "ag_gemm" else 1]):
            yield replace(case, method="ws")


def gpu_cases() -> list[Case]:
    return [
        *fused(
            Case("ag_gemm", (200, 1000, 7392)),
            Case("ag_gemm", (200, 1000, 200), F16, bias=True),
            Case("ag_gemm", (2048, 256, 4096)),
            Case("ag_gemm", (512, 2048, 512)),
            Case("ag_gemm", (128, 256, 64)),
            Case("ag_gemm", (1, 8, 8), F16),
            Case("ag_gemm", (64, 512, 264), idle=True),
            Case("ag_gemm", (200, 1000, 200), F16, bias=True, comm_sms=1),
            Case("ag_gemm", (512, 2048, 512), comm_sms=16),
            Case("ag_gemm", (64, 512, 264), idle=True, comm_sms=3),
            Case("gemm_rs", (200, 1000, 1848)),
            Case("gemm_rs", (200, 1000, 72), F16, bias=True),
            Case("gemm_rs", (1024, 2048, 1024)),
            Case("gemm_rs", (512, 4096, 512)),
            Case("gemm_rs", (2048, 4096, 512)),                                 # tiles of two steps alternate
            Case("gemm_rs", (128, 256, 64)),
            Case("gemm_rs", (1, 8, 8), F16),
            Case("gemm_rs", (64, 512, 264), idle=True)),
        Case("gemm_ar", (1, 8, 8), F16, "packets"),
        Case("gemm_ar", (16, 4096, 1024), BF16, "packets", residual=True, in_place=True),
        Case("gemm_ar", (50, 1000, 200), F16, "packets", bias=True, residual=True),
        Case("gemm_ar", (5, 129, 72), F32, "packets", bias=True),
        Case("gemm_ar", (128, 8192, 512), BF16, "packets"),
        Case("gemm_ar", (64, 512, 264), BF16, "packets", idle=True),
        Case("gemm_ar", (64, 1000, 200), F16, "ring", bias=True),
        Case("gemm_ar", (512, 8192, 512), BF16, "ring", residual=True),         # large enough for a fused gemm_rs
        Case("gemm_ar", (200, 1000, 200), BF16, "unfused", bias=True, residual=True),
        Case("gemm_ar_rmsnorm", (1, 8192, 1024), BF16, "packets", residual=True, in_place=True),
        Case("gemm_ar_rmsnorm", (8, 4096, 512), BF16, "packets", bias=True),
        Case("gemm_ar_rmsnorm", (50, 1000, 200), F16, "packets", bias=True, residual=True),
        Case("gemm_ar_rmsnorm", (5, 1029, 72), F32, "packets", bias=True, idle=True),
        Case("rmsnorm_gemm", (1, 14336, 4096), BF16, "portable"),
        Case("rmsnorm_gemm", (33, 5120, 1000), F16, "portable", bias=True, residual=True),
        Case("rmsnorm_gemm", (5, 1030, 129), F32, "portable", residual=True, odd=True),
        *collectives(10_007, 1 << 19, 1 << 21),
        Case("all_to_all_single", (300, 129), BF16, "split sizes"),
        Case("all_to_all_vdev", (1, 1), BF16, "push"),
        Case("all_to_all_vdev", (37, 129), F16, "push", odd=True),
        Case("all_to_all_vdev", (512, 2048), BF16, "push"),
        Case("all_to_all_vdev", (300, 33), F32, "push", cut=True),
        *(case for method in ("one_shot", "two_shot") for case in (
            Case("all_reduce_rmsnorm", (1, 1), BF16, method),
            Case("all_reduce_rmsnorm", (7, 1000), F16, method, bias=True, residual=True, in_place=True),
            Case("all_reduce_rmsnorm", (3, 4099), F32, method, bias=True, odd=True),
            Case("all_reduce_rmsnorm", (64, 8192), BF16, method, residual=True),
            Case("all_reduce_rmsnorm", (64, 8192), BF16, method, residual=True, in_place=True, quant="fp8_row"),
            Case("all_reduce_rmsnorm", (7, 1000), F16, method, bias=True, quant="fp8_1x128"),
            Case("all_reduce_rmsnorm", (3, 4099), F32, method, odd=True, quant="fp8_1x128"),
            Case("all_reduce_rmsnorm", (300, 4096), BF16, method, quant="fp8_tensor"))),
        Case("all_reduce_rmsnorm", (7, 1000), BF16, "unfused", bias=True, residual=True),
        *(case for layout in ("compact", "expert", "masked") for case in (
            Case("ep_dispatch", (1, 64), BF16, layout), Case("ep_dispatch", (128, 7168), BF16, layout, residual=True),
            Case("ep_dispatch", (1000, 1000), F16, layout, idle=True), Case("ep_dispatch", (300, 33), F32, layout))),
    ]


def emulator_cases() -> list[Case]:
    return [
        *fused(
            Case("ag_gemm", (9, 40, 56)),
            Case("ag_gemm", (20, 24, 200), F16, bias=True),
            Case("ag_gemm", (1, 8, 8), F16),
            Case("ag_gemm", (5, 16, 24), idle=True),
            Case("ag_gemm", (9, 40, 56), comm_sms=3),
            Case("ag_gemm", (5, 16, 24), F16, idle=True, comm_sms=1),
            Case("gemm_rs", (9, 40, 56)),
            Case("gemm_rs", (20, 24, 72), F16, bias=True),
            Case("gemm_rs", (1, 8, 8), F16),
            Case("gemm_rs", (5, 16, 24), idle=True)),
        Case("gemm_ar", (1, 8, 8), F16, "packets"),
        Case("gemm_ar", (20, 72, 40), BF16, "packets", residual=True, in_place=True),
        Case("gemm_ar", (5, 33, 24), F32, "packets", bias=True, idle=True),
        Case("gemm_ar", (3, 24, 40), F16, "ring", bias=True, residual=True),
        Case("gemm_ar", (9, 40, 24), BF16, "unfused", bias=True, residual=True),
        Case("gemm_ar_rmsnorm", (5, 600, 40), BF16, "packets", residual=True, in_place=True),
        Case("gemm_ar_rmsnorm", (2, 33, 24), F32, "packets", bias=True, idle=True),
        Case("rmsnorm_gemm", (5, 66, 40), BF16, "portable", residual=True),
        Case("rmsnorm_gemm", (20, 34, 129), F32, "portable", bias=True, odd=True),
        *collectives(101, 700, 5000),
        Case("all_to_all_single", (30, 7), BF16, "split sizes"),
        Case("all_to_all_vdev", (1, 1), BF16, "push"),
        Case("all_to_all_vdev", (20, 41), F16, "push", odd=True),
        Case("all_to_all_vdev", (30, 16), F32, "push", cut=True),
        *(case for method in ("one_shot", "two_shot") for case in (
            Case("all_reduce_rmsnorm", (1, 1), BF16, method),
            Case("all_reduce_rmsnorm", (7, 40), F16, method, bias=True, residual=True, in_place=True),
            Case("all_reduce_rmsnorm", (3, 101), F32, method, bias=True, odd=True),
            Case("all_reduce_rmsnorm", (3, 200), BF16, method, bias=True, odd=True, quant="fp8_1x128"),
            Case("all_reduce_rmsnorm", (7, 40), F16, method, residual=True, in_place=True, quant="fp8_row"))),
        Case("all_reduce_rmsnorm", (7, 40), BF16, "unfused", bias=True, residual=True),
        Case("ep_dispatch", (5, 24), BF16, "expert", residual=True, idle=True),
    ]


class Call(NamedTuple):
    """starts: what the tensors that a call writes to hold before it. run(*tensors): makes it, and gives its results, some or all
    of them; check(*results) compares these with float64, or what should have arrived.
    """
    starts: tuple
    run: Callable
    check: Callable


def make(case: Case, group: Group, seed: int) -> Call:
    """The call of a case on one group."""
    if case.op == "rmsnorm_gemm":
        return norm_and_gemm(case, seed + group.rank)
    if case.op == "gemm_ar_rmsnorm":
        return gemm_and_norm(case, group, seed)
    if case.op.startswith(("ag_", "gemm_")):
        return gemm(case, group, seed)
    if case.op == "all_reduce_rmsnorm":
        return rmsnorm(case, group, seed)
    if case.op == "ep_dispatch":
        return experts(case, group, seed)
    return by_splits(case, group, seed) if len(case.shape) == 2 else collective(case, group, seed)


def placed(t: torch.Tensor, odd: bool) -> torch.Tensor:
    """A contiguous copy of `t`, one element behind the beginning of its memory if `odd`."""
    return t.new_empty(t.numel() + odd)[int(odd):].view(t.shape).copy_(t)


def gemm(case: Case, group: Group, seed: int) -> Call:
    (m, n, k), dtype, size = case.shape, case.dtype, group.size
    idle = case.idle and group.rank == size - 1
    all_rows, rows = m * size, m * (size if case.op == "gemm_rs" or case.method == "ring" else 1)
    own_n, own_k = (0 if idle else n, k) if case.op == "ag_gemm" else (n, 0 if idle else k)
    x = random_tensor(rows, own_k, dtype=dtype, seed=seed + group.rank)
    weight = random_tensor(own_n, own_k, dtype=dtype, seed=seed + 100 + group.rank)
    bias = random_tensor(own_n, dtype=dtype, seed=seed + 200) if case.bias else None
    out_shape = {"ag_gemm": (all_rows, own_n), "gemm_rs": (m, n), "gemm_ar": (rows, n)}[case.op]
    added, options = {}, dict(group=group, method=case.method)
    if case.residual:
        added["residual"] = random_tensor(*out_shape, dtype=dtype, seed=seed + 300)
    if case.op == "ag_gemm":
        options["comm_sms"] = case.comm_sms
    reference, roundings = {"ag_gemm": (ag_gemm_float64, 1), "gemm_rs": (gemm_rs_float64, size),
                            "gemm_ar": (gemm_ar_float64, size + (1 if case.method == "packets" else 3))}[case.op]

    def run(out: torch.Tensor) -> torch.Tensor:
        return getattr(ops, case.op)(x, weight, bias=bias, out=out, **(dict(residual=out) if case.in_place else added), **options)

    def check(out: torch.Tensor) -> None:
        assert_matches(out, reference(x, weight, group, bias, **added), k=k * size, roundings=roundings)
    return Call((added["residual"] if case.in_place else poisoned(*out_shape, dtype=dtype),), run, check)


def gemm_and_norm(case: Case, group: Group, seed: int) -> Call:
    """The last rank has no terms where it is idle."""
    m, n, k = case.shape
    own = 0 if case.idle and group.rank == group.size - 1 else k
    x = random_tensor(m, own, dtype=case.dtype, seed=seed + group.rank)
    weight, norm = (random_tensor(*shape, dtype=case.dtype, seed=seed + salt) for shape, salt in (
        ((n, own), 100 + group.rank), ((n,), 400)))
    bias = random_tensor(n, dtype=case.dtype, seed=seed + 200) if case.bias else None
    residual = random_tensor(m, n, dtype=case.dtype, seed=seed + 300) if case.residual else None

    def run(out: torch.Tensor, total: torch.Tensor) -> tuple:
        return ops.gemm_ar_rmsnorm(x, weight, norm, bias=bias, residual=total if case.in_place else residual, group=group,
                                   out=out, residual_out=total, method=case.method)

    def check(out: torch.Tensor, total: torch.Tensor) -> None:
        normed, summed = gemm_ar_rmsnorm_float64(x, weight, norm, group, bias=bias, residual=residual)
        assert_matches(total, summed, k=k * group.size, roundings=2 * group.size + 1)
        assert_matches(out, normed, k=k * group.size, roundings=2 * group.size + 4)
    empty = poisoned(m, n, dtype=case.dtype)
    return Call((empty, residual if case.in_place else empty), run, check)


def norm_and_gemm(case: Case, seed: int) -> Call:
    """With silu_mul; a rank's own, of which other ranks know nothing."""
    m, n, k = case.shape

    def of(*shape: int, salt: int) -> torch.Tensor:
        return placed(random_tensor(*shape, dtype=case.dtype, seed=seed + salt), case.odd)
    given = dict(x=of(m, k, salt=0), weight=of(n, k, salt=100) / k**0.5, norm_weight=of(k, salt=400),
                 bias=of(n, salt=200) if case.bias else None, residual=of(m, k, salt=300) if case.residual else None)
    starts = (poisoned(m, n // 2, dtype=case.dtype), *([poisoned(m, k, dtype=case.dtype)] if case.residual else []))

    def run(out: torch.Tensor, *total: torch.Tensor) -> tuple:
        ops.rmsnorm_gemm(**given, act="silu_mul", out=out, residual_out=total[0] if total else None, method=case.method)
        return out, *total

    def check(out: torch.Tensor, *total: torch.Tensor) -> None:
        expected, added = rmsnorm_gemm_float64(**given, act="silu_mul")
        # An error of gate counts as often as up is large, which is up to four times its usual size, and the other way round.
        assert_matches(out, expected, k=16 * k, roundings=8)
        if total:
            assert_matches(total[0], added, k=1)
    return Call(starts, run, check)


def rmsnorm(case: Case, group: Group, seed: int) -> Call:
    def of(*shape: int, salt: int) -> torch.Tensor:
        return placed(random_tensor(*shape, dtype=case.dtype, seed=seed + salt), case.odd)
    n = case.shape[1]
    x, weight = of(*case.shape, salt=group.rank), of(n, salt=100)
    bias, residual = of(n, salt=200) if case.bias else None, of(*case.shape, salt=300) if case.residual else None

    def run(out: torch.Tensor, total: torch.Tensor) -> tuple:
        return ops.all_reduce_rmsnorm(x, weight, bias=bias, residual=total if case.in_place else residual, group=group, out=out,
                                      residual_out=total, method=case.method)

    def check(out: torch.Tensor, total: torch.Tensor) -> None:
        roundings = group.size + 3 if case.method == "unfused" else 1
        norm, summed = all_reduce_rmsnorm_float64(x, weight, group, bias, residual)
        assert_matches(total, summed, k=group.size, roundings=roundings)
        assert_matches(out, norm, k=n, roundings=roundings + 3)
    empty = poisoned(*case.shape, dtype=case.dtype)
    starts = (empty, residual if case.in_place else empty)
    if not case.quant:
        return Call(starts, run, check)
    scale = torch.full((1,), 0.01, device=x.device) if case.quant == "fp8_tensor" else None

    def run_quantised(out: torch.Tensor, total: torch.Tensor) -> tuple:
        found = ops.all_reduce_rmsnorm_quant(x, weight, quant=case.quant, scale=scale, bias=bias, group=group, norm_out=out,
                                             residual=total if case.in_place else residual, residual_out=total,
                                             method=case.method)
        return out, total, found.out.view(torch.uint8), found.scales

    def check_quantised(out: torch.Tensor, total: torch.Tensor, q: torch.Tensor, scales: torch.Tensor) -> None:
        """Numbers and scales have the bits of torch's own rounding of the norm."""
        check(out, total)
        expected, by = torch.empty_like(q), torch.empty_like(scales)
        quantized(out, case.quant, scale, expected.view(torch.float8_e4m3fn), None if scale is not None else by)
        if not torch.equal(q, expected) or scale is None and not torch.equal(scales, by):
            raise AssertionError(f"{int((q != expected).sum())} of {q.numel()} numbers are not those of torch's rounding")
    return Call(starts, run_quantised, check_quantised)


def collective(case: Case, group: Group, seed: int) -> Call:
    """x is [1, n], or [size, n] with a row for each rank; out likewise, with a row from each."""
    (n,), size, rank = case.shape, group.size, group.rank
    scatter, summed = case.op in ("reduce_scatter", "all_to_all_single"), case.op in ("all_reduce", "reduce_scatter")

    def of(index: int) -> torch.Tensor:
        return random_tensor(size if scatter else 1, n, dtype=case.dtype, seed=seed + index)
    x, start = placed(of(rank), case.odd), poisoned(1 if summed else size, n, dtype=case.dtype)
    if case.in_place and case.op == "all_gather":
        start[rank] = x
    elif case.in_place:
        start = x

    def run(out: torch.Tensor) -> torch.Tensor:
        own, source = out[rank:rank + 1], x
        if case.in_place:
            source, out = (own if case.op == "all_gather" else out), (own if case.op == "reduce_scatter" else out)
        return getattr(ops, case.op)(source, group=group, out=out, method=case.method)

    def check(out: torch.Tensor) -> None:
        sent = torch.cat([of(index)[rank if scatter else 0:][:1].double() for index in range(size)])
        assert_matches(out, sent.sum(0, keepdim=True) if summed else sent, k=size, roundings=int(summed))
    return Call((start,), run, check)


def by_splits(case: Case, group: Group, seed: int) -> Call:
    """Splits that the host or the device knows; some rows go to nobody. Rows behind the last one that came stay as they were."""
    (m, row), size, rank = case.shape, group.size, group.rank
    draw = random.Random(seed)
    ends = [sorted(draw.randrange(m + 1) for _ in range(size)) for _ in range(size)]
    splits = [[end - begin for begin, end in zip([0, *own], own)] for own in ends]

    def of(index: int) -> torch.Tensor:
        return random_tensor(m, row, dtype=case.dtype, seed=seed + index)
    came = [splits[index][rank] for index in range(size)]
    x, told = placed(of(rank), case.odd), torch.tensor([came, [sum(came[:index]) for index in range(size)]])
    device = triton_dist.device()
    mine, capacity = torch.tensor(splits[rank], device=device), m // 2 if case.cut else size * m

    def run_by_lists(out: torch.Tensor) -> Any:
        return ops.all_to_all_single(x[:sum(splits[rank])], output_split_sizes=came, input_split_sizes=splits[rank], group=group,
                                     out=out)

    def run(out: torch.Tensor, out_splits_offsets: torch.Tensor) -> Any:
        return ops.all_to_all_vdev(x, mine, out=out, out_splits_offsets=out_splits_offsets, group=group, method=case.method)

    def check(out: torch.Tensor, found: torch.Tensor = told) -> None:
        rows = torch.cat([of(index)[:ends[index][rank]][-came[index]:][:came[index]] for index in range(size)])[:len(out)]
        assert found.tolist() == told.tolist(), f"splits and offsets: expected {told.tolist()}, found {found.tolist()}"
        assert_matches(out[:len(rows)], rows.double(), k=1, roundings=0)
        assert bool(out[len(rows):].isnan().all()), "rows behind the last one that came were written"
    if case.by_library:
        return Call((poisoned(sum(came), row, dtype=case.dtype),), run_by_lists, check)
    return Call((poisoned(capacity, row, dtype=case.dtype), torch.full((2, size), -7, device=device)), run, check)


def experts(case: Case, group: Group, seed: int) -> Call:
    """A dispatch by the layout that `method` names, and a combine of what came. idle: the last rank has no tokens."""
    (most, row), size, k = case.shape, group.size, 4
    tokens = most * (not (case.idle and group.rank == size - 1))
    x, draw = random_tensor(tokens, row, dtype=case.dtype, seed=seed + group.rank), random.Random(seed + group.rank)
    ids = torch.tensor([draw.sample(range(4 * size), k) for _ in range(tokens)], dtype=torch.int32).view(tokens, k)
    ids, by_choice = ids.to(x.device), case.method != "compact"
    # positive, as those of a router: else parts cancel, and their roundings are large beside the sum
    weights = random_tensor(tokens, k, dtype=F32, seed=seed + 50 + group.rank).abs()
    residual = random_tensor(tokens, row, dtype=case.dtype, seed=seed + 90) if case.residual else None

    def run(out: torch.Tensor) -> torch.Tensor:
        came = ops.ep_dispatch(x, ids, weights, num_experts=4 * size, layout=case.method, max_tokens=most, group=group)
        by = came.topk_weights if by_choice else None
        return ops.ep_combine(came.x, came.handle, topk_weights=by, residual=residual, out=out)

    def check(out: torch.Tensor) -> None:
        times = weights.double().sum(1) if by_choice else torch.tensor([len({e // 4 for e in of}) for of in ids.tolist()],
                                                                       dtype=torch.float64, device=x.device)
        wanted = x.double() * times[:, None] + (0 if residual is None else residual.double())
        assert_matches(out, wanted, k=k, roundings=size + 2)
    return Call((poisoned(tokens, row, dtype=case.dtype),), run, check)

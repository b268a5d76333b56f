# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_ar_rmsnorm: what ranks agree on, the ways to run it, what they move, and the call."""
from dataclasses import dataclass
from typing import Any

import torch

from triton_dist.ops import products
from triton_dist.ops.all_reduce_rmsnorm.base import check_numbers
from triton_dist.ops.all_reduce_rmsnorm.op import ALL_REDUCE_RMSNORM
from triton_dist.ops.all_reduce_rmsnorm.unfused import rmsnorm
from triton_dist.ops.autograd import gemm_ar_norm
from triton_dist.ops.calls import checks, possible
from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.calls.plans import OfParts, Plan
from triton_dist.ops.exchange import sizes
from triton_dist.ops.gemm_ar.op import GEMM_AR, Ring, RowParallel, refuse_method
from triton_dist.ops.gemm_ar.packets import Tiling, tiling
from triton_dist.ops.gemm_ar_rmsnorm.packets import MOST_EACH, NormPackets, cut_rows
from triton_dist.ops.norm_rows.eps import eps_of
from triton_dist.ops.norm_rows.launch import NormRows, served
from triton_dist.ops.op import Agreed
from triton_dist.ops.registry import Gradient
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.backend import backend
from triton_dist.runtime.device import absent
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group

AUTO_ROWS = 8                           # that auto gives to packets, by what 2 H200 took (tests/unit/test_auto_on_h200.py)


@dataclass(frozen=True, kw_only=True)
class NormedProduct(Agreed):
    """out is [m, n]. weight_bias: what is added to the norm's weight. tiling: how packets cut the product."""
    m: int
    n: int
    eps: float
    weight_bias: float
    tiling: Tiling | None = None


class GemmArRmsnorm(RowParallel):
    """A row-parallel linear of a decoder, and what follows it."""

    name = "gemm_ar_rmsnorm"
    tensors = {"x": "sharded", "weight": "sharded", "bias": "equal", "residual": "equal", "norm_weight": "equal"}
    outputs = {"out": "summed", "residual_out": "summed"}
    schema = ("(Tensor x, Tensor weight, Tensor norm_weight, Tensor? bias, Tensor? residual, float? eps, str group, str method, "
              "float norm_weight_bias=0.0) -> (Tensor, Tensor)")
    gradient = Gradient(gemm_ar_norm.keep, gemm_ar_norm.backward)

    def check(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
              residual: torch.Tensor | None, norm_weight: torch.Tensor, out: torch.Tensor | None,
              residual_out: torch.Tensor | None, eps: Any, norm_weight_bias: Any, method: str) -> NormedProduct:
        m, n = self.check_inputs(x, weight, bias, residual)
        checks.vector("norm_weight", norm_weight, n, like=x, optional=False)
        check_numbers(eps, norm_weight_bias, "norm_weight_bias")
        checks.output("out", out, (m, n), like=x)
        checks.output("residual_out", residual_out, (m, n), like=x)
        read = dict(x=x, weight=weight, bias=bias, norm_weight=norm_weight)
        checks.no_overlap("out", out, **read, residual=residual, residual_out=residual_out)
        in_place = checks.same_memory(residual_out, residual)
        checks.no_overlap("residual_out", residual_out, **read, residual=None if in_place else residual)
        checks.no_grad(**read, residual=residual)
        return self._agreed(m, n, x.dtype, eps, norm_weight_bias, method, group)

    def _agreed(self, m: int, n: int, dtype: torch.dtype, eps: float | None, weight_bias: float, method: Any,
                group: Group) -> NormedProduct:
        cut = tiling(m, n, dtype, group.size) if m * n and (method == "packets" or m <= AUTO_ROWS) else None
        chosen, why = self.choose(method, group, m, n, dtype, cut)
        return NormedProduct(op=self.name, dtype=dtype, method=chosen, why=why, m=m, n=n, eps=eps_of(eps, dtype),
                             weight_bias=float(weight_bias), tiling=cut if chosen == "packets" else None)

    def choose(self, method: Any, group: Group, m: int, n: int, dtype: torch.dtype, cut: Tiling | None) -> tuple[str, str]:
        """(the method of a call that has no plan yet, why, for an "auto"). cut: gemm_ar's tiling, where packets may be taken."""
        reason = possible.no_kernel(group)
        chosen, why = self.possible(method, None if method == "ring" else reason)
        refuse_method(chosen, m, m * n * dtype.itemsize, group)
        if chosen not in ("packets", "auto") or not m * n:
            return chosen, why
        each = 0 if cut is None else cut_rows(m, n, dtype, cut, group.size).each
        if chosen == "packets":
            if each > MOST_EACH:
                raise InvalidArgument(f"method: 'packets' holds a row in registers, at most {MOST_EACH} words of it a thread, "
                                      f"and {m} rows of {n} elements would take {each}; use 'ring' or 'unfused'")
            return chosen, why
        if m <= AUTO_ROWS and each <= MOST_EACH and not cut.two_shot:
            return "packets", f"{m} rows are no more than {AUTO_ROWS}, and their terms are few enough for one hop"
        if GEMM_AR.choose("auto", group, m, n, dtype)[0] == "ring":
            return "ring", "gemm_ar hides its reduce-scatter behind the product at this size"
        return "unfused", "it has more rows or bytes than packets suit, and too few for a ring, or rows that do not divide"

    def plan(self, choice: Choice, agreed: NormedProduct, group: Group, *tensors: torch.Tensor | None) -> Plan:
        return _Ring(agreed, group, *tensors) if choice.method == "ring" else NormPackets(agreed, group, *tensors)

    def plan_of_unfused(self, agreed: NormedProduct, group: Group, *tensors: torch.Tensor | None) -> Plan:
        """A matmul, then all_reduce_rmsnorm."""
        if not agreed.m * agreed.n:
            return super().plan_of_unfused(agreed, group, *tensors)
        return _ProductThenNorm(agreed, group, *tensors)

    def unfused(self, agreed: NormedProduct, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                residual: torch.Tensor | None, norm_weight: torch.Tensor, out: torch.Tensor,
                residual_out: torch.Tensor) -> None:
        """A matmul and all_reduce, then torch."""
        if agreed.m * agreed.n:
            ALL_REDUCE_RMSNORM.unfused(agreed, group, products.product(x, weight), norm_weight, bias, residual, out, residual_out)

    def traffic(self, agreed: NormedProduct, group: Group) -> dict[int, int]:
        """Each piece of its product to every peer; what other methods leave to other ops is counted there."""
        if agreed.tiling is None:
            return {}
        return sizes.to_peers(agreed.m * agreed.n * agreed.dtype.itemsize * agreed.tiling.split, False, group)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> NormedProduct:
        return self._agreed(m, n, dtype, None, 0.0, "auto", group)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return dict(super().inputs(m, n, k, group), norm_weight=(n,))


class _ProductThenNorm(OfParts):
    """torch's matmul, then all_reduce_rmsnorm."""

    def __init__(self, agreed: NormedProduct, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                 residual: torch.Tensor | None, norm_weight: torch.Tensor, out: torch.Tensor | None,
                 residual_out: torch.Tensor | None):
        self._product = backend().maker((agreed.m, agreed.n), agreed.dtype)
        norm = ALL_REDUCE_RMSNORM.of_rows(agreed.m, agreed.n, agreed.dtype, agreed.eps, group, agreed.weight_bias)
        super().__init__(group, ALL_REDUCE_RMSNORM.part(group, norm, self._product(), norm_weight, bias, residual, out,
                                                        residual_out))

    def run(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
            residual: torch.Tensor | None, norm_weight: torch.Tensor, out: torch.Tensor, residual_out: torch.Tensor) -> None:
        try:
            backend().before_torch()
            product = self._product()
            products.product(x, weight, product)
        except BaseException as error:
            withdraw(group, self.agreed.op, error)
            raise
        self.run_part(self.parts[0], group, product, norm_weight, bias, residual, out, residual_out)


class _Ring(Ring):
    """gemm_ar by a ring, then a norm."""

    _norm: NormRows | None = None

    def __init__(self, agreed: NormedProduct, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                 residual: torch.Tensor | None, norm_weight: torch.Tensor, out: torch.Tensor | None,
                 residual_out: torch.Tensor | None, *given: Any):
        super().__init__(agreed, group, x, weight, bias, residual, residual_out, *given)
        self.compiles, self._asked = True, (agreed.eps, agreed.weight_bias)

    def compile(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None,
                *rest: torch.Tensor | None) -> None:
        super().compile(x, weight, bias, residual)
        norm_weight, *outputs = rest
        out, total = (absent(x) if t is None else t for t in outputs)       # where only dtype and alignment matter
        if served(weight.shape[0], x.dtype):
            self._norm = NormRows(x.shape[0], weight.shape[0], x.dtype, *self._asked)
            self._norm.compile(total, norm_weight, None, None, out)

    def resized(self, agreed: NormedProduct, group: Group, templates: dict, *tensors: torch.Tensor | None) -> Plan | None:
        found = super().resized(agreed, group, templates, *tensors)
        if found is None or self._norm is None:
            return found
        found._norm = self._norm.on(agreed.m)
        return None if found._norm is None else found

    def run(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
            residual: torch.Tensor | None, norm_weight: torch.Tensor, out: torch.Tensor, residual_out: torch.Tensor) -> None:
        super().run(group, x, weight, bias, residual, residual_out)
        if self._norm is not None:
            self._norm.launch(residual_out, norm_weight, None, None, out)
        else:
            backend().before_torch()
            rmsnorm(residual_out, norm_weight, *self._asked, out)


GEMM_AR_RMSNORM = GemmArRmsnorm()


@GEMM_AR_RMSNORM.public
def gemm_ar_rmsnorm(x: torch.Tensor, weight: torch.Tensor, norm_weight: torch.Tensor, *, bias: torch.Tensor | None = None,
                    residual: torch.Tensor | None = None, eps: float | None = 1e-6, norm_weight_bias: float = 0.0,
                    group: Any = None, out: torch.Tensor | None = None, residual_out: torch.Tensor | None = None,
                    method: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """residual_out = all_reduce(x @ weight^T) + bias + residual and out = rms_norm(residual_out) * norm_weight. Collective.

    A row-parallel linear of a decoder, and what follows it: gemm_ar and all_reduce_rmsnorm in one. For few rows it is one kernel.

    Args:
        x: [M, K_local] fp16, bf16 or fp32 on `triton_dist.device()`. M is equal on all ranks.
        weight: [N, K_local], same dtype: this rank's columns. N is equal on all ranks; K_local may differ and may be 0.
        norm_weight: [N], same dtype: of the norm. Pass the same on every rank.
        bias: [N] or None, same dtype: added once, to the sum. Pass the same on every rank.
        residual: [M, N] or None, same dtype: likewise. Pass the same on every rank.
        eps: added to the mean of the squares; None: torch.finfo(torch.float32).eps, as in torch.nn.RMSNorm.
        norm_weight_bias: a number that is added to `norm_weight` in fp32: 1 for models whose norm multiplies by 1 + weight.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: [M, N] contiguous, or None to allocate. Must not overlap what is read.
        residual_out: likewise; `residual_out=residual` adds in place.
        method: "packets" (one kernel: the product's terms travel in packets that carry their own flag, and programs that share
            a row exchange its sums of squares; for few rows), "ring" (gemm_ar by that method, then a kernel for the norm; M is a
            multiple of the group size), "unfused" (a matmul, then all_reduce_rmsnorm) or "auto" (by M and N). The same on all
            ranks.

    Returns (out, residual_out), both [M, N] and equal on every rank. Products accumulate in fp32. "packets" rounds each piece of
    a rank's product to the dtype, and sums these, bias and residual in fp32 with one rounding, in an order that depends on
    shapes and group only; the norm is in fp32, of the rounded sum, with another rounding: the same inputs give the same bits.
    "unfused" rounds the product, then as all_reduce_rmsnorm. "ring" rounds after each step.
    Gradients (without `out` and `residual_out`): as for gemm_ar: those of the outputs must be equal on all ranks, nothing is sent
    in the backward pass, and the gradients of bias, residual and norm_weight are equal on all ranks.
    In graphs: run the same call once before capture, else auto captures "unfused" and "packets" refuses.
    Under autocast all operands are cast and the outputs have its dtype.
    Raises InvalidArgument before anything is sent.

    Example:
        normed, x = gemm_ar_rmsnorm(hidden, o_proj.weight, norm.weight, residual=x)         # hidden [M, K_local], x [M, N]
    """
    known = GEMM_AR_RMSNORM.known((eps, norm_weight_bias, method), group, x, weight, out, bias, residual, residual_out,
                                  norm_weight)
    if known is None:
        return GEMM_AR_RMSNORM.record(x=x, weight=weight, norm_weight=norm_weight, bias=bias, residual=residual, eps=eps,
                                      norm_weight_bias=norm_weight_bias, group=group, out=out, residual_out=residual_out,
                                      method=method)
    if out is None:
        out = known.new_out()
    if residual_out is None:
        residual_out = known.new_out()
    known.plan.run(known.group, x, weight, bias, residual, norm_weight, out, residual_out)
    return out, residual_out

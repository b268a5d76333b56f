# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""rmsnorm_gemm: what is allowed, the ways to run it, and the call. Nothing is sent, so ranks need not call it alike."""
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.compat.torch import mark_constant
from triton_dist.ops import products, registry
from triton_dist.ops.all_reduce_rmsnorm.base import check_numbers
from triton_dist.ops.autograd import rmsnorm_gemm as gradients
from triton_dist.ops.calls import acts, checks
from triton_dist.ops.calls.plans import Plan
from triton_dist.ops.norm_rows.eps import eps_of
from triton_dist.ops.norm_rows.launch import MOST_ROW_BYTES, served
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.registry import Gradient
from triton_dist.ops.rmsnorm_gemm.plan import FewRows, NormThenTorch
from triton_dist.ops.rmsnorm_gemm.unfused import rmsnorm_gemm_unfused
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group

# Where auto takes the kernels, by what an H200 took (tests/unit/test_auto_on_h200.py): up to so many rows, of weights with at
# least so many rows.
AUTO = ((32, 3072), (64, 5120))
_AUTO_K = 2048                          # the fewest columns of a weight


@dataclass(frozen=True, kw_only=True)
class NormedRows(Agreed):
    """x is [m, k], the weight [n, k]. norm, adds: whether there is a norm, and a residual."""
    m: int
    n: int
    k: int
    eps: float
    weight_bias: float
    act: str | None
    norm: bool
    adds: bool

    @property
    def columns(self) -> int:
        """Of the result."""
        return acts.columns(self.act, self.n)


class RmsnormGemm(Op):
    """A norm and the linear layer behind it."""

    name = "rmsnorm_gemm"
    tensors = dict.fromkeys(("x", "weight", "bias", "residual", "norm_weight"), "local")
    outputs = {"out": "local", "residual_out": "local"}
    methods = ("portable", "unfused")
    schema = ("(Tensor x, Tensor weight, Tensor? norm_weight, Tensor? bias, Tensor? residual, float? eps, "
              "float norm_weight_bias, str? act, str method) -> (Tensor, Tensor)")
    gradient = Gradient(gradients.keep, gradients.backward)
    local = True
    autocasts = True

    def check(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
              residual: torch.Tensor | None, norm_weight: torch.Tensor | None, out: torch.Tensor | None,
              residual_out: torch.Tensor | None, eps: Any, norm_weight_bias: Any, act: Any, method: Any) -> NormedRows:
        checks.matrix("x", x)
        checks.matrix("weight", weight, like=x)
        products.check_columns(x, weight)
        (m, k), n = x.shape, weight.shape[0]
        acts.check(act, n)
        if m * max(n, k) >= 2**31:
            raise InvalidArgument(f"x: expected fewer than 2^31 elements of it and of the product, found {m} rows of {k} and "
                                  f"{n}; split the call")
        checks.vector("norm_weight", norm_weight, k, like=x)
        checks.vector("bias", bias, n, like=x)
        if residual is not None:
            checks.matrix("residual", residual, like=x)
            if residual.shape != x.shape:
                raise InvalidArgument(f"residual: expected None or a tensor of shape {[m, k]}, found {list(residual.shape)}; it "
                                      "is added to x")
        elif residual_out is not None:
            raise InvalidArgument("residual_out: expected None without a residual, found a tensor; it gets x + residual")
        check_numbers(eps, norm_weight_bias, "norm_weight_bias")
        checks.output("out", out, (m, acts.columns(act, n)), like=x)
        checks.output("residual_out", residual_out, (m, k), like=x)
        read = dict(x=x, weight=weight, bias=bias, residual=residual, norm_weight=norm_weight)
        checks.no_overlap("out", out, **read, residual_out=residual_out)
        checks.no_overlap("residual_out", residual_out, **read)         # every program reads all of it
        if out is not None or residual_out is not None:
            checks.no_grad(**read)
        return self._agreed(m, n, k, x.dtype, eps_of(eps, x.dtype), float(norm_weight_bias), act, norm_weight is not None,
                            residual is not None, method)

    def resized(self, agreed: NormedRows, group: Group, x: torch.Tensor, asked: tuple) -> NormedRows | None:
        if agreed.adds or x.shape[0] * max(agreed.n, agreed.k) >= 2**31:
            return None
        return self._agreed(x.shape[0], agreed.n, agreed.k, agreed.dtype, agreed.eps, agreed.weight_bias, agreed.act, agreed.norm,
                            False, asked[-1])

    def _agreed(self, m: int, n: int, k: int, dtype: torch.dtype, eps: float, weight_bias: float, act: str | None, norm: bool,
                adds: bool, method: Any) -> NormedRows:
        method, why = self._chosen(method, m, n, k, dtype, act, norm, adds)
        return NormedRows(op=self.name, dtype=dtype, method=method, why=why, m=m, n=n, k=k, eps=eps, weight_bias=weight_bias,
                          act=act, norm=norm, adds=adds)

    def _chosen(self, method: Any, m: int, n: int, k: int, dtype: torch.dtype, act: str | None, norm: bool,
                adds: bool) -> tuple[str, str]:
        """(the method of a call, why, for an "auto")."""
        wide = (norm or adds) and k * dtype.itemsize > MOST_ROW_BYTES
        reason = f"a row has more than {MOST_ROW_BYTES} bytes, which the norm's kernel holds in registers" if wide else None
        method, why = self.possible(method, reason)
        if method != "auto":
            return method, why
        if not _measured() or dtype.itemsize != 2:
            return "unfused", "it has not been measured on this device, or in this dtype"
        if act is None and not norm:
            return "unfused", "a product alone is as fast by torch"
        if _pays(m, n, k):
            return "portable", f"{m} rows are few, and the weight is not small"
        return "unfused", "it has more rows than the kernels suit, or a small weight"

    def candidates(self, agreed: NormedRows, group: Group) -> Sequence[Choice]:
        return [Choice(agreed.method if agreed.m * agreed.n * agreed.k else "unfused")]

    def plan(self, choice: Choice, agreed: NormedRows, group: Group, *tensors: torch.Tensor | None) -> Plan:
        return FewRows(agreed)

    def plan_of_unfused(self, agreed: NormedRows, group: Group, *tensors: torch.Tensor | None) -> Plan:
        """The norm's kernel, and torch's product and activation. By torch alone where the kernel cannot be compiled."""
        if not agreed.m or not (agreed.norm or agreed.adds) or not served(agreed.k, agreed.dtype):
            return super().plan_of_unfused(agreed, group, *tensors)
        return NormThenTorch(agreed)

    def unfused(self, agreed: NormedRows, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                residual: torch.Tensor | None, norm_weight: torch.Tensor | None, out: torch.Tensor,
                residual_out: torch.Tensor | None) -> None:
        """torch's norm, product and activation."""
        rmsnorm_gemm_unfused(x, weight, bias, residual, norm_weight, out, residual_out, agreed.eps, agreed.weight_bias,
                             agreed.act is not None)

    def shape_of_out(self, agreed: NormedRows, group: Group, *tensors: torch.Tensor | None) -> tuple:
        return tensors[0].shape[0], agreed.columns

    def filled(self, group: Group, agreed: NormedRows, tensors: Sequence) -> list:
        """residual_out is there only where there is a residual."""
        *inputs, out, residual_out = tensors
        x = inputs[0]
        if out is None:
            out = x.new_empty((agreed.m, agreed.columns))
        if residual_out is None and agreed.adds:
            residual_out = x.new_empty((agreed.m, agreed.k))
        return [*inputs, out, residual_out]

    def fake(self, **call: Any) -> tuple:
        x, weight = call["x"], call["weight"]
        registry.require(weight.shape[1] == x.shape[1], "weight: expected [N, K] with the K of x [M, K]")
        acts.check(call["act"], weight.shape[0])
        total = (0,) if call["residual"] is None else tuple(x.shape)
        return x.new_empty((x.shape[0], acts.columns(call["act"], weight.shape[0]))), x.new_empty(total)

    def bare(self, result: Any, given: dict) -> tuple:
        return (result, given["x"].new_empty(0)) if given.get("residual") is None else result

    def recorded(self, given: dict) -> Any:
        out, total = super().recorded(given)
        return out if given.get("residual") is None else (out, total)

    def shape(self, agreed: NormedRows, group: Group, local: int) -> Shape:
        more = "".join(f", {word}" for word in ("norm" if agreed.norm else "", agreed.act or "") if word)
        return Shape(self.name, str(agreed.dtype).removeprefix("torch.") + more, agreed.m, agreed.n, agreed.k)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> NormedRows:
        return self._agreed(m, n, k, dtype, eps_of(None, dtype), 0.0, None, True, False, "auto")

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return {"x": (m, k), "weight": (n, k), "norm_weight": (k,)}


RMSNORM_GEMM = RmsnormGemm()


def _measured() -> bool:
    """Whether anything was measured on this device. torch.compile does not trace it."""
    return backend().machine_model() is not None


mark_constant(_measured)


def _pays(m: int, n: int, k: int) -> bool:
    """Whether the kernels were measured to pay for m rows and a weight [n, k]. Sizes may be symbolic."""
    return k >= _AUTO_K and any([m <= rows and n >= least for rows, least in AUTO])


def joins(rows: int, weight: torch.Tensor, act: str | None, norm: bool) -> bool:
    """Whether auto has kernels for so many rows, this weight [N, K], activation and norm, as torch.compile can trace it too."""
    (n, k), joined = weight.shape, act is not None or norm
    fits = not norm or k * weight.dtype.itemsize <= MOST_ROW_BYTES
    return joined and fits and 0 < rows and weight.dtype.itemsize == 2 and _pays(rows, n, k) and _measured()


@RMSNORM_GEMM.public
def rmsnorm_gemm(x: torch.Tensor, weight: torch.Tensor, norm_weight: torch.Tensor | None = None, *,
                 bias: torch.Tensor | None = None, residual: torch.Tensor | None = None, eps: float | None = 1e-6,
                 norm_weight_bias: float = 0.0, act: str | None = None, out: torch.Tensor | None = None,
                 residual_out: torch.Tensor | None = None, method: str = "auto") -> Any:
    """act(rms_norm(x + residual) @ weight^T + bias): a norm of a decoder, by norm_weight, and the linear layer after it.

    Nothing is sent: each rank calls it independently, and ranks may make different calls. For few rows it is two kernels: one for
    addition and norm, and one for the product and the activation, which reads the weight at the rate of memory. Each may start
    while the kernel before it on the stream still runs.

    Args:
        x: [M, K] fp16, bf16 or fp32 on `triton_dist.device()`.
        weight: [N, K], same dtype, as nn.Linear stores it.
        norm_weight: [K], same dtype: of the norm. None: there is no norm, and x + residual is multiplied as it is.
        bias: [N] or None, same dtype, added to the product in fp32.
        residual: [M, K] or None, same dtype: added to x. Then the sum is returned as well.
        eps: added to the mean of the squares; None: torch.finfo(torch.float32).eps, as in torch.nn.RMSNorm.
        norm_weight_bias: a number that is added to `norm_weight` in fp32: 1 for models whose norm multiplies by 1 + weight.
        act: None, or "silu_mul" as for ag_gemm: the first N / 2 rows of weight are gate's, the others up's, and the result is
            silu(y @ gate^T + its bias) * (y @ up^T + its bias) of the normed y. N is even.
        out: [M, N], or [M, N / 2] with "silu_mul", contiguous, or None to allocate. Must not overlap what is read.
        residual_out: [M, K] contiguous, or None to allocate: gets the sum, and must not be the residual. Only with a residual.
        method: "portable" (Triton kernels for all devices; for few rows), "unfused" (a kernel for addition and norm, and torch's
            product and activation) or "auto" (by what was measured, "unfused" where nothing was).

    Returns out, or (out, residual_out) where there is a residual. The sum x + residual is rounded to the dtype, and so is the
    norm of that. The product accumulates in fp32. By "portable" it is rounded once, after bias and activation; "unfused" rounds
    the product, silu and the result. Same inputs give the same bits.
    Gradients (without `out` and `residual_out`): "silu_mul" multiplies once more for them. In graphs: both methods.
    Under autocast all operands are cast and the outputs have its dtype.
    Raises InvalidArgument for bad arguments; nothing has been written then.

    Example:
        hidden, total = rmsnorm_gemm(partial, gate_up.weight, norm.weight, residual=total, act="silu_mul")
        logits = rmsnorm_gemm(hidden, lm_head.weight, final_norm.weight)
    """
    known = RMSNORM_GEMM.known((eps, norm_weight_bias, act, method), None, x, weight, out, bias, residual, residual_out,
                               norm_weight)
    if known is None:
        return RMSNORM_GEMM.record(x=x, weight=weight, norm_weight=norm_weight, bias=bias, residual=residual, eps=eps,
                                   norm_weight_bias=norm_weight_bias, act=act, out=out, residual_out=residual_out, method=method)
    if out is None:
        out = known.new_out()
    if residual is None:
        known.plan.run(known.group, x, weight, bias, None, norm_weight, out, None)
        return out
    if residual_out is None:
        residual_out = x.new_empty(x.shape, dtype=out.dtype)
    known.plan.run(known.group, x, weight, bias, residual, norm_weight, out, residual_out)
    return out, residual_out

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce_rmsnorm_quant: what ranks agree on, its fused plan, and the call."""
from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

import torch

from triton_dist.ops.all_reduce_rmsnorm.base import Norm, NormedAllReduce
from triton_dist.ops.all_reduce_rmsnorm.unfused import all_reduce_and_add, rmsnorm
from triton_dist.ops.all_reduce_rmsnorm_quant.unfused import GROUP, quantized
from triton_dist.ops.calls import checks
from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.calls.pipeline import wants_grad
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group

FP8 = torch.float8_e4m3fn
QUANTS = {"fp8_tensor": "tensor", "fp8_row": "row", "fp8_1x128": "group"}       # by the kernel's words


class QuantizedNorm(NamedTuple):
    """The result of all_reduce_rmsnorm_quant. The norm is about out.float() * scales.

    `out` is float8_e4m3fn [..., N]: the norm divided by its scales. `scales` is fp32: the `scale` of the call for "fp8_tensor",
    [..., 1] for "fp8_row", and [..., N / 128 rounded up] for "fp8_1x128". `residual_out` [..., N] is the sum over ranks with bias
    and residual, in x's dtype. `norm_out` [..., N] is the norm before quantisation, in x's dtype; None if it was not asked for.
    """
    out: torch.Tensor
    scales: torch.Tensor
    residual_out: torch.Tensor
    norm_out: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class Quantized(Norm):
    """quant: how; keep: whether the norm is stored before it is quantised, too."""
    quant: str
    keep: bool

    @property
    def how(self) -> str:
        return QUANTS[self.quant]


class AllReduceRmsnormQuant(NormedAllReduce):
    """all_reduce_rmsnorm whose output is the fp8 input of the next linear."""

    name, agrees_on = "all_reduce_rmsnorm_quant", Quantized
    tensors = {"x": "partial", "weight": "equal", "bias": "equal", "residual": "equal", "scale": "equal"}
    outputs = {"out": "summed", "residual_out": "summed", "scales_out": "summed", "norm_out": "summed"}
    schema = ("(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, Tensor? scale, str quant, bool keep_norm, float? eps, "
              "float weight_bias, str group, str method) -> (Tensor, Tensor, Tensor, Tensor)")

    def check(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
              residual: torch.Tensor | None, scale: torch.Tensor | None, out: torch.Tensor | None,
              residual_out: torch.Tensor | None, scales_out: torch.Tensor | None, norm_out: torch.Tensor | None, quant: str,
              keep_norm: bool, eps: Any, weight_bias: Any, method: str) -> Quantized:
        self.check_inputs(x, weight, bias, residual, eps, weight_bias)
        check_quant(quant, scale, scales_out)
        if scale is not None:
            checks.tensor("scale", scale)
        shape = tuple(x.shape)
        checks.output("out", out, shape, like=torch.empty(0, dtype=FP8, device=x.device), any_dtype=True)
        checks.output("residual_out", residual_out, shape, like=x)
        checks.output("norm_out", norm_out, shape, like=x)
        check_scales(scales_out, scales_shape(shape, quant))
        self.check_outputs(residual, residual_out, {"out": out, "scales_out": scales_out, "norm_out": norm_out}, x=x,
                           weight=weight, bias=bias, scale=scale)
        return self.agreed_of(x, method, eps, group, weight_bias, quant=quant, keep=bool(keep_norm))

    def resized(self, agreed: Quantized, group: Group, x: torch.Tensor, asked: tuple, **more: Any) -> Quantized | None:
        return super().resized(agreed, group, x, asked, quant=agreed.quant, keep=agreed.keep)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Quantized:
        return self.of_rows(m, n, dtype, None, group, quant="fp8_row", keep=False)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return dict(super().inputs(m, n, k, group), quant="fp8_row")

    def args(self, x, weight, bias, residual, scale, out, residual_out, scales_out, norm_out) -> tuple:
        """The kernels store bytes, since not every target has the dtype."""
        if scales_out is not None and scales_out.ndim != 2:
            scales_out = scales_out.view(x.numel() // x.shape[-1], -1)
        return (x.contiguous(), weight, bias, None if residual is None else residual.contiguous(), norm_out, residual_out, None,
                scale, out.view(torch.int8), scales_out)

    def unfused(self, agreed: Quantized, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                residual: torch.Tensor | None, scale: torch.Tensor | None, out: torch.Tensor, residual_out: torch.Tensor,
                scales_out: torch.Tensor | None, norm_out: torch.Tensor | None) -> None:
        """all_reduce, then torch."""
        norm = torch.empty_like(x, memory_format=torch.contiguous_format) if norm_out is None else norm_out
        if agreed.m:
            all_reduce_and_add(x, self.sums(group), norm, residual_out, bias, residual)
            rmsnorm(residual_out, weight, agreed.eps, agreed.weight_bias, norm)
        quantized(norm, agreed.quant, scale, out, scales_out)

    def filled(self, group: Group, agreed: Quantized, tensors: Sequence) -> list:
        """Outputs are allocated only where the call gives them: no scales of a tensor, no norm that is not kept."""
        x, outputs = tensors[0], tensors[len(self.tensors):]
        return [*tensors[:len(self.tensors)],
                *[x.new_empty(shape, dtype=dtype) if t is None and shape is not None else t
                  for t, (shape, dtype) in zip(outputs, _results(x, agreed.quant, agreed.keep))]]

    def fake(self, **call: Any) -> tuple:
        x = call["x"]
        return tuple([x.new_empty((0,) if shape is None else shape, dtype=dtype)
                      for shape, dtype in _results(x, call["quant"], call["keep_norm"])])

    def bare(self, result: QuantizedNorm, given: dict) -> tuple:
        nothing = given["x"].new_empty
        scales = nothing(0, dtype=torch.float32) if given["quant"] == "fp8_tensor" else result.scales
        return result.out, result.residual_out, scales, nothing(0) if result.norm_out is None else result.norm_out

    def recorded(self, given: dict) -> QuantizedNorm:
        tensors = [given[name] for name in self.tensors]
        if wants_grad(tensors):
            raise InvalidArgument(f"{self.name}: an input requires grad, and a quantised output has no gradient; call it under "
                                  "torch.no_grad(), or use all_reduce_rmsnorm")
        check_quant(given["quant"], given["scale"], given["scales_out"])
        keep = bool(given["keep_norm"]) or given["norm_out"] is not None
        out, residual_out, scales, norm = super().recorded(dict(given, keep_norm=keep))
        return QuantizedNorm(out, given["scale"] if given["quant"] == "fp8_tensor" else scales, residual_out,
                             norm if keep else None)


def scales_shape(shape: Sequence, quant: str) -> tuple | None:
    """Shape of the scales of x of this shape; None where the caller gives the one scale."""
    if quant == "fp8_tensor":
        return None
    return (*shape[:-1], 1 if quant == "fp8_row" else -(-shape[-1] // GROUP))


def _results(x: torch.Tensor, quant: str, keep: bool) -> list:
    """(shape, dtype) of each output, a shape of None for what there is not."""
    shape = tuple(x.shape)
    return [(shape, FP8), (shape, x.dtype), (scales_shape(shape, quant), torch.float32), (shape if keep else None, x.dtype)]


def check_quant(quant: Any, scale: torch.Tensor | None, scales_out: torch.Tensor | None) -> None:
    """A known way to quantise, with a scale where it takes one."""
    if not isinstance(quant, str) or quant not in QUANTS:
        raise InvalidArgument(f"quant: expected one of {', '.join(QUANTS)}, found {quant!r}")
    if quant != "fp8_tensor":
        if scale is not None:
            raise InvalidArgument(f"scale: expected None, since {quant!r} finds its scales, found a scale; leave it out, or use "
                                  "'fp8_tensor'")
        return
    if not isinstance(scale, torch.Tensor) or scale.dtype != torch.float32 or scale.numel() != 1:
        found = f"{scale.dtype} of shape {list(scale.shape)}" if isinstance(scale, torch.Tensor) else type(scale).__name__
        raise InvalidArgument(f"scale: expected a float32 tensor of one element for 'fp8_tensor', found {found}; it is what "
                              "numbers of fp8 are multiplied with to give values")
    if scales_out is not None:
        raise InvalidArgument("scales_out: expected None for 'fp8_tensor', whose one scale the caller gives; leave it out")


def check_scales(scales: torch.Tensor | None, shape: tuple | None) -> None:
    """None, or fp32 of this shape to write to. A matrix may have its columns one after another, with gaps between them."""
    if scales is not None:
        columns = isinstance(scales, torch.Tensor) and scales.shape == shape and scales.ndim == 2 and (
            scales.stride(0) == 1 and scales.stride(1) >= max(1, shape[0]))
        like = torch.empty(0, dtype=torch.float32, device=scales.device if isinstance(scales, torch.Tensor) else None)
        checks.output("scales_out", scales[:, :1].t() if columns else scales, (1, shape[0]) if columns else shape, like=like)


ALL_REDUCE_RMSNORM_QUANT = AllReduceRmsnormQuant()


@ALL_REDUCE_RMSNORM_QUANT.public
def all_reduce_rmsnorm_quant(x: torch.Tensor, weight: torch.Tensor, *, quant: str = "fp8_row",
                             scale: torch.Tensor | None = None, bias: torch.Tensor | None = None,
                             residual: torch.Tensor | None = None, eps: float | None = 1e-6, weight_bias: float = 0.0,
                             keep_norm: bool = False, group: Any = None, out: torch.Tensor | None = None,
                             residual_out: torch.Tensor | None = None, scales_out: torch.Tensor | None = None,
                             norm_out: torch.Tensor | None = None, method: str = "auto") -> QuantizedNorm:
    """all_reduce_rmsnorm whose norm is quantised to fp8, as the next linear takes it. Collective over `group`.

    residual_out = all_reduce(x) + bias + residual; norm = rms_norm(residual_out) * (weight + weight_bias); out = norm / scales,
    to nearest, with ties to even, larger numbers cut to 448. One kernel does all of it; nothing is read back from memory.

    Args:
        x: fp16, bf16 or fp32 [..., N] on `triton_dist.device()`: this rank's partial sums. Equal shape and dtype on all ranks.
        weight: [N], same dtype: of the norm. Pass the same on every rank.
        quant: "fp8_tensor": one scale, which the caller gives; "fp8_row": a scale of each row; "fp8_1x128": a scale of each 128
            columns of a row, of the rest in the last. The same on all ranks.
        scale: for "fp8_tensor", a float32 tensor of one element, above 0: numbers of fp8 times it are values. Pass the same on
            every rank.
        bias: [N] or None, same dtype: added once, to the sum. Pass the same on every rank.
        residual: [..., N] or None, same dtype: likewise. Pass the same on every rank.
        eps: added to the mean of the squares; None: torch.finfo(torch.float32).eps, as in torch.nn.RMSNorm.
        weight_bias: as in all_reduce_rmsnorm.
        keep_norm: gives the norm before it was quantised as well.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous float8_e4m3fn [..., N], or None to allocate. Must not overlap what is read.
        residual_out: contiguous, of x's shape and dtype, or None to allocate; `residual_out=residual` adds in place, and it may
            be x.
        scales_out: float32 [..., 1] or [..., N / 128 rounded up], contiguous; a matrix may also have its columns one after
            another (stride(0) == 1), as some GEMMs want them. None to allocate.
        norm_out: likewise, and it may be x; asks for the norm. None to allocate if keep_norm.
        method: "one_shot", "two_shot", "unfused" or "auto", as in all_reduce_rmsnorm. The same on all ranks.

    Returns a QuantizedNorm (out, scales, residual_out, norm_out), equal on every rank. residual_out and the norm are what
    all_reduce_rmsnorm gives, bit by bit for the same method. What is quantised is the norm rounded to x's dtype. Scales are its
    largest size, at least 1e-10, over 448. A row, or a group of columns, in which the norm has a NaN or an infinity is NaN.
    It has no gradient: with inputs that require grad it raises unless called under torch.no_grad().
    In graphs: as all_reduce; without a call before capture auto captures "unfused".
    Raises InvalidArgument before anything is sent.

    Example:
        q, scales, x, _ = all_reduce_rmsnorm_quant(partial, norm.weight, residual=x, quant="fp8_row")
        y = torch._scaled_mm(q, w_fp8.t(), scale_a=scales, scale_b=w_scales, out_dtype=torch.bfloat16)
    """
    keep_norm = keep_norm or norm_out is not None
    known = ALL_REDUCE_RMSNORM_QUANT.known((quant, keep_norm, eps, weight_bias, method), group, x, weight, out, bias, residual,
                                           residual_out, scale, scales_out, norm_out)
    if known is None:
        return ALL_REDUCE_RMSNORM_QUANT.record(
            x=x, weight=weight, quant=quant, scale=scale, bias=bias, residual=residual, eps=eps, weight_bias=weight_bias,
            keep_norm=keep_norm, group=group, out=out, residual_out=residual_out, scales_out=scales_out, norm_out=norm_out,
            method=method)
    try:
        tensors = ALL_REDUCE_RMSNORM_QUANT.filled(known.group, known.plan.agreed, (
            x, weight, bias, residual, scale, out, residual_out, scales_out, norm_out))
    except BaseException as error:
        withdraw(known.group, ALL_REDUCE_RMSNORM_QUANT.name, error)
        raise
    known.plan.run(known.group, *tensors)
    _, _, _, _, _, out, residual_out, scales, norm_out = tensors
    return QuantizedNorm(out, scale if scales is None else scales, residual_out, norm_out)

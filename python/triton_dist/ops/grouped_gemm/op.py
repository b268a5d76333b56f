# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""grouped_gemm: the call, its operator, and its gradient. Nothing is sent, so it is no Op, and ranks need not call it alike."""
from typing import Any

import torch

from triton_dist.ops.calls import checks
from triton_dist.ops.calls.possible import precision
from triton_dist.ops.exchange.sizes import power_of_two
from triton_dist.ops.grouped_gemm.kernels import grouped_gemm_kernel, grouped_weight_kernel
from triton_dist.ops.registry import Gradient, Operator
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument

ACTS = ("silu_mul", )
METHODS = ("ws", "portable")
_BLOCK_R = 64  # rows that the gradient of a weight takes at a time


def grouped_gemm(x: torch.Tensor,
                 weight: torch.Tensor,
                 *,
                 offsets: torch.Tensor | None = None,
                 counts: torch.Tensor | None = None,
                 sources: torch.Tensor | None = None,
                 act: str | None = None,
                 row_weights: torch.Tensor | None = None,
                 method: str = "auto") -> torch.Tensor:
    """Multiplies rows by expert with the weight of their expert. No host waits for a number; works in graphs.

    Args:
        x: fp16, bf16 or fp32 [R, K], rows by expert; or [E, capacity, K], each expert's from row 0 on ("masked").
        weight: [E, N, K] of x's dtype, any strides: a row for each output column, as in nn.Linear.
        offsets: int32 or int64 [E + 1] on the device, contiguous: where each expert's rows begin, and the end.
        counts: int32 or int64 [E] on the device, contiguous: rows of each expert. None: up to where the next one begins. What
            goes beyond x is taken as cut off.
        sources: int32 [rows] or None: row r by expert is row sources[r] of x, as an "indexed" dispatch tells.
        act: "silu_mul": the result is silu(x @ the first N / 2 rows of the weight^T) * (x @ the others^T).
        row_weights: float32, one for each row by expert, or None: by which its result is multiplied.
        method: "auto", "ws" (the Hopper core: fp16 and bf16, tensors that TMA can read) or "portable" (a Triton kernel for all
            devices). "auto" takes the core where it can serve the call. Its rows are contiguous for each expert, so it copies
            rows that `sources` gathers first.

    Returns:
        [rows, N], or [E, capacity, N]; N / 2 columns with "silu_mul". Sums are in fp32 and rounded once. Rows of no expert, such
        as those between experts, are not written.
        Gradients flow through x, weight and row_weights; "silu_mul" multiplies once more for them.

    Example:
        came = ep_dispatch(x, ids, weights, num_experts=64, layout="expert")
        h = grouped_gemm(came.x, w13, offsets=came.expert_offsets, counts=came.expert_rows, act="silu_mul")
        y = grouped_gemm(h, w2, offsets=came.expert_offsets, counts=came.expert_rows)
    """
    _check(x, weight, offsets, counts, sources, act, row_weights, method)
    return GROUPED_GEMM(x, weight, offsets, counts, sources, act, row_weights, method)


def _check(x: Any, weight: Any, offsets: Any, counts: Any, sources: Any, act: Any, row_weights: Any,
           method: Any) -> None:
    if torch.compiler.is_compiling():
        return
    if method not in ("auto", *METHODS):
        raise InvalidArgument(f"method: expected one of auto, {', '.join(METHODS)}, found {method!r}")
    checks.tensor("x", x)
    checks.tensor("weight", weight, like=x, ndim=3)
    experts, n, k = weight.shape
    if x.ndim not in (2, 3) or x.shape[-1] != k or x.ndim == 3 and x.shape[0] != experts:
        raise InvalidArgument(
            f"x: expected [R, {k}] or [{experts}, capacity, {k}] to match weight {list(weight.shape)}, found "
            f"{list(x.shape)}")
    if x.ndim == 3 and (counts is None or offsets is not None or sources is not None):
        raise InvalidArgument("counts: expected with rows [E, capacity, K], without offsets and sources")
    if x.ndim == 2 and offsets is None:
        raise InvalidArgument(
            "offsets: expected where each expert's rows begin, found None; pass ep_dispatch's expert_offsets")
    for name, t, shape in (("offsets", offsets, (experts + 1, )), ("counts", counts, (experts, ))):
        if t is not None:
            checks.counts(name, t, shape)
    if sources is not None:
        checks.counts("sources", sources, tuple(getattr(sources, "shape", (0, ))[:1]))
    if act is not None and act not in ACTS:
        raise InvalidArgument(f"act: expected None or one of {', '.join(ACTS)}, found {act!r}")
    if act is not None and n % 2:
        raise InvalidArgument(f"weight: expected an even number of rows for {act!r}, found {n}")
    rows = x.shape[:-1].numel() if sources is None else sources.shape[0]
    if row_weights is not None and (not isinstance(row_weights, torch.Tensor) or row_weights.dtype != torch.float32 or
                                    row_weights.numel() != rows or not row_weights.is_contiguous()):
        raise InvalidArgument(f"row_weights: expected None or {rows} contiguous float32, one for each row by expert")


def _out(x: torch.Tensor, weight: torch.Tensor, sources: torch.Tensor | None, act: str | None) -> torch.Tensor:
    shape = x.shape[:-1] if sources is None else sources.shape
    return x.new_empty((*shape, weight.shape[1] // (1 if act is None else 2)))


def _call(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor | None, counts: torch.Tensor | None,
          sources: torch.Tensor | None, act: str | None, row_weights: torch.Tensor | None, method: str) -> torch.Tensor:
    out = _out(x, weight, sources, act)
    experts, k, n = weight.shape[0], weight.shape[2], out.shape[-1]
    if not out.numel():
        return out
    if not k:
        return out.zero_()
    flat = checks.rows_contiguous(x if x.ndim == 2 else x.flatten(0, 1))
    room = x.shape[1] if x.ndim == 3 else out.shape[0]
    way, _ = chosen(flat, weight, sources, out.view(-1, n), act, method)
    config, lists = way.config, _lists(offsets, counts, sources, out)
    scale, options = out if row_weights is None else row_weights, _options(x, counts, experts)
    options.update(WEIGHTED=row_weights is not None)
    if way.method == "ws":
        backend().core("grouped_gemm").launch(config, flat, weight, *lists[:2], sources, scale, out.view(-1, n), room,
                                              act is not None, **options)
        return out
    block_n = config.block_n if act is None else max(16, config.block_n // 2)
    programs = min(backend().num_sms(), _most_tiles(out.shape[:-1].numel(), experts, n, config.block_m, block_n))
    grouped_gemm_kernel[(programs, )](flat, weight, *lists, scale, out, n, k, flat.stride(0), *weight.stride(), experts, room,
                                      SILU=act is not None, GATHER=sources is not None, EVEN_K=k % config.block_k == 0,
                                      BLOCK_M=config.block_m, BLOCK_N=block_n, BLOCK_K=config.block_k,
                                      **_launch(x.dtype, config), **options)
    return out


def candidates(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, act: str | None) -> tuple[list[Choice], str | None]:
    """(the ways to multiply x [rows, K], the faster first; why the Hopper core is none of them, or None)."""
    rows = max(1, out.shape[0] // weight.shape[0])
    ways, core = [Choice("portable", backend().gemm_config(x.dtype, rows))], backend().core("grouped_gemm")
    if core is None:
        return ways, "this device has no Hopper core"
    config = core.config(x.dtype, rows, act is not None)
    reason = core.refuses(x, weight, out, config, act is not None)
    if reason is None:
        ways.insert(0 if core.preferred else 1, Choice("ws", config))
    return ways, reason


def chosen(x: torch.Tensor, weight: torch.Tensor, sources: torch.Tensor | None, out: torch.Tensor, act: str | None,
           method: str) -> tuple[Choice, str]:
    """(the way that `method` takes, why)."""
    rows = x if sources is None else x.new_empty(0, x.shape[1]) if not x.numel() else x[:1].contiguous()
    ways, reason = candidates(rows, weight, out, act)
    if method == "auto":
        return ways[0], reason or "it is what this device prefers"
    for way in ways:
        if way.method == method:
            return way, "it was asked for"
    raise InvalidArgument(f"method: {method!r} is not possible here: {reason}; use 'auto' or 'portable'")


def _lists(offsets: torch.Tensor | None, counts: torch.Tensor | None, sources: torch.Tensor | None, none: torch.Tensor) -> tuple:
    """begins, counts and sources of a kernel; `none` stands for sources that there are not."""
    return (counts if offsets is None else offsets, offsets if counts is None else counts,
            none if sources is None else sources)


def _options(x: torch.Tensor, counts: torch.Tensor | None, experts: int) -> dict:
    """What all kernels are told of the experts' rows."""
    return dict(EXPERTS=power_of_two(experts), MASKED=x.ndim == 3, COUNTED=counts is not None)


def _launch(dtype: torch.dtype, config: Any) -> dict:
    """How the portable kernels are launched."""
    return dict(PRECISION=precision(dtype), num_warps=config.num_warps, num_stages=config.num_stages)


def _most_tiles(rows: int, experts: int, n: int, block_m: int, block_n: int) -> int:
    return (-(-rows // block_m) + experts) * -(-n // block_n)


def _weight_call(grad: torch.Tensor, x: torch.Tensor, offsets: torch.Tensor | None, counts: torch.Tensor | None,
                 sources: torch.Tensor | None, experts: int) -> torch.Tensor:
    n, k = grad.shape[-1], x.shape[-1]
    out = x.new_empty((experts, n, k))
    if not out.numel():
        return out
    if not grad.numel() or not x.numel():
        return out.zero_()
    room = x.shape[1] if x.ndim == 3 else grad.shape[0]
    flat, to = (checks.rows_contiguous(t if t.ndim == 2 else t.flatten(0, 1)) for t in (x, grad))
    config = backend().gemm_config(x.dtype, n)
    tiles = experts * -(-n // config.block_m) * -(-k // config.block_n)
    grouped_weight_kernel[(min(backend().num_sms(), tiles), )](
        to, flat, *_lists(offsets, counts, sources, out), out, n, k, to.stride(0), flat.stride(0), experts, room,
        BLOCK_N=config.block_m, BLOCK_K=config.block_n, BLOCK_R=_BLOCK_R, GATHER=sources is not None,
        **_launch(x.dtype, config), **_options(x, counts, experts))
    return out


def _keep(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    x, weight, offsets, counts, sources, act, row_weights, _ = inputs
    ctx.save_for_backward(x, weight, offsets, counts, sources, row_weights)
    ctx.act = act


def _backward(ctx: Any, grad: torch.Tensor | None) -> tuple:
    """grad: as the result. Rows of no expert get zeros."""
    x, weight, offsets, counts, sources, row_weights = ctx.saved_tensors
    needs, found = ctx.needs_input_grad, [None] * 8
    if grad is None:
        return tuple(found)
    grad = grad.contiguous()
    product = None
    if ctx.act is not None or needs[6]:
        product = GROUPED_GEMM(x.detach(), weight.detach(), offsets, counts, sources, None, None, "auto")
        if needs[6]:
            plain = product if ctx.act is None else _silu_mul(product)
            there = _there(grad, offsets, counts)
            found[6] = torch.where(there, (grad.float() * plain.float()).sum(-1), 0.0).view(row_weights.shape)
    if row_weights is not None:
        grad = (grad.float() * row_weights.view(grad.shape[:-1])[..., None]).to(grad.dtype)
    if ctx.act is not None:
        gate, up = product.float().chunk(2, -1)
        sigmoid, grad_h = gate.sigmoid(), grad.float()
        grad = torch.cat([grad_h * up * sigmoid * (1 + gate * (1 - sigmoid)), grad_h * gate * sigmoid], -1).to(x.dtype)
    if needs[1]:
        found[1] = torch.ops.triton_dist.grouped_gemm_weight(grad, x.detach(), offsets, counts, sources,
                                                             weight.shape[0])
    if needs[0]:
        to_rows = GROUPED_GEMM(grad, weight.detach().transpose(1, 2), offsets, counts, None, None, None, "auto")
        to_rows = torch.where(_there(grad, offsets, counts)[..., None], to_rows, 0.0)
        if sources is not None:  # a row of x may be that of several experts; others have no source
            there = _there(grad, offsets, counts)
            to_rows = x.new_zeros(x.shape[0] + 1, x.shape[1],
                                  dtype=torch.float32).index_add_(0, torch.where(there, sources, x.shape[0]),
                                                                  to_rows.float())[:-1].to(x.dtype)
        found[0] = to_rows
    return tuple(found)


def _there(grad: torch.Tensor, offsets: torch.Tensor | None, counts: torch.Tensor | None) -> torch.Tensor:
    """bool, for each row by expert whether it is one."""
    rows = torch.arange(grad.shape[-2], device=grad.device)
    if grad.ndim == 3:
        return rows < counts[:, None]  # pyright: ignore[reportOptionalSubscript]
    begins = offsets[:-1]  # pyright: ignore[reportOptionalSubscript]
    expert = torch.searchsorted(offsets, rows.to(offsets.dtype), right=True) - 1  # pyright: ignore
    inside = (expert >= 0) & (expert < len(begins))
    expert = expert.clamp(0, len(begins) - 1)
    rows_of = torch.diff(offsets) if counts is None else counts  # pyright: ignore
    return inside & (rows - begins[expert] < rows_of[expert])


def _silu_mul(product: torch.Tensor) -> torch.Tensor:
    gate, up = product.float().chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


GROUPED_GEMM = Operator(
    "grouped_gemm",
    "(Tensor x, Tensor weight, Tensor? offsets, Tensor? counts, Tensor? sources, str? act, Tensor? row_weights, "
    "str method) -> Tensor", _call,
    lambda x, weight, offsets, counts, sources, act, row_weights, method: _out(x, weight, sources, act),
    Gradient(_keep, _backward))
# The gradient of the weights as an operator of its own: [E, N, K] from the gradient of the result and x.
GROUPED_GEMM_WEIGHT = Operator(
    "grouped_gemm_weight",
    "(Tensor grad, Tensor x, Tensor? offsets, Tensor? counts, Tensor? sources, SymInt experts) -> Tensor", _weight_call,
    lambda grad, x, offsets, counts, sources, experts: x.new_empty((experts, grad.shape[-1], x.shape[-1])))

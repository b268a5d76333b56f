# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce_rmsnorm: plan and dispatch."""
import math
from typing import Any

import torch

from triton_dist.ops import _plan, _recent
from triton_dist.ops.calls import checks
from triton_dist.ops.exchange import sizes
from triton_dist.ops.all_reduce.op import all_reduce
from triton_dist.ops.all_reduce_rmsnorm.kernels import one_hop_rmsnorm, two_hops_rmsnorm
from triton_dist.ops.all_reduce_rmsnorm.reference import all_reduce_rmsnorm_reference
from triton_dist.ops.registry import record
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import team

METHODS = ("one_shot", "two_shot", "unfused")
_MOST_THREADS = 1024
_MOST_ROW_BYTES = 8 * _MOST_THREADS * sizes.VECTOR      # that one program holds in registers


def all_reduce_rmsnorm(x: torch.Tensor, weight: torch.Tensor, *, bias: torch.Tensor | None = None,
                       residual: torch.Tensor | None = None, eps: float | None = 1e-6, group: Any = None,
                       out: torch.Tensor | None = None, residual_out: torch.Tensor | None = None,
                       method: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """residual_out = all_reduce(x) + bias + residual and out = rms_norm(residual_out) * weight. Collective over `group`.

    What follows a row-parallel linear in a decoder, fused as serving engines do it.

    Args:
        x: fp16, bf16 or fp32 [..., N] on `triton_dist.device()`: this rank's partial sums. Equal shape and dtype on all ranks.
        weight: [N], same dtype: of the norm. Pass the same on every rank.
        bias: [N] or None, same dtype: added once, to the sum. Pass the same on every rank.
        residual: [..., N] or None, same dtype: likewise. Pass the same on every rank.
        eps: added to the mean of the squares; None: that of x's dtype (torch.finfo), as in torch.nn.RMSNorm.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous, of x's shape and dtype, or None to allocate. Must not overlap what is read.
        residual_out: likewise; `residual_out=residual` adds in place.
        method: "one_shot" (one kernel of self-flagged stores, everything to everyone), "two_shot" (the same, each rank
            sums some rows and sends them), "unfused" (all_reduce, then torch) or "auto" (by size). The same on all ranks.

    Returns (out, residual_out), both equal on every rank. The sum, bias and residual are added in fp32 in an order that all
    ranks share, with one rounding to the dtype; the norm is in fp32, of the rounded sum, with another rounding: the same inputs
    give the same bits. "unfused" rounds after each step.
    Gradients (without `out` and `residual_out`): outputs are tensors that all ranks hold, and so are their gradients, which must
    be equal on all ranks. Then nothing is sent in the backward pass, and all gradients are equal on all ranks.
    In graphs: as all_reduce; without a call before capture auto captures "unfused".
    Raises InvalidArgument before anything is sent.
    """
    known = _CALLS.known((eps, method), group, x, weight, out, bias, residual, residual_out)
    if known is None:
        return record(all_reduce_rmsnorm, x, weight, bias=bias, residual=residual, eps=eps, group=group, out=out,
                      residual_out=residual_out, method=method)
    if out is None:
        out = known.new_out()
    if residual_out is None:
        residual_out = known.new_out()
    known.plan.run(known.group, x, weight, bias, residual, out, residual_out)
    return out, residual_out


def _checked(group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None,
             out: torch.Tensor | None, residual_out: torch.Tensor | None, eps: Any, method: str) -> dict:
    """Refuses bad arguments; of good ones, what all ranks must agree on."""
    checks.tensor("x", x)
    if x.ndim == 0:
        raise InvalidArgument("x: expected at least 1 dimension, the last of which is normalised, found a scalar")
    n = x.shape[-1]
    if weight is None:
        raise InvalidArgument(f"weight: expected a torch.Tensor of shape [{n}], found NoneType; pass ones for a norm without a "
                              "weight")
    checks.vector("weight", weight, n, like=x, optional=False)
    checks.vector("bias", bias, n, like=x)
    if residual is not None:
        checks.tensor("residual", residual, like=x)
        if residual.shape != x.shape:
            raise InvalidArgument(f"residual: expected None or a tensor of shape {list(x.shape)}, found {list(residual.shape)}; "
                                  "it is added to the sum")
    if eps is not None and (isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < math.inf):
        raise InvalidArgument(f"eps: expected None or a number of at least 0, found {eps!r}; 1e-6 is usual")
    checks.output("out", out, tuple(x.shape), like=x)
    checks.output("residual_out", residual_out, tuple(x.shape), like=x)
    checks.no_overlap("out", out, x=x, weight=weight, bias=bias, residual=residual, residual_out=residual_out)
    in_place = checks.same_memory(residual_out, residual)
    checks.no_overlap("residual_out", residual_out, x=x, weight=weight, bias=bias, residual=None if in_place else residual)
    checks.no_grad(x=x, weight=weight, bias=bias, residual=residual)
    m = x.numel() // n if n else 0
    if m * n >= 2**31:
        raise InvalidArgument(f"x: expected fewer than 2^31 elements, found shape {list(x.shape)}; split the call")
    chosen = sizes.choose("all_reduce_rmsnorm", method, METHODS, group, m * n * x.element_size())
    if chosen != "unfused" and n * x.element_size() > _MOST_ROW_BYTES:
        if method != "auto":
            raise InvalidArgument(f"method: {method!r} takes rows of at most {_MOST_ROW_BYTES} bytes, found "
                                  f"{n * x.element_size()}; use 'auto' or 'unfused'")
        chosen = "unfused"
    return dict(op="all_reduce_rmsnorm", m=m, n=n, dtype=x.dtype, eps=float(torch.finfo(x.dtype).eps if eps is None else eps),
                method=chosen)


def _make_plan(group: Group, agreed: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
               residual: torch.Tensor | None, out: torch.Tensor | None, residual_out: torch.Tensor | None) -> Any:
    """How calls like this one run. Collective at the first use of a shape."""
    meet = _plan.agree_once(group, agreed)
    if not agreed["m"]:
        plan: Any = _Empty()
    elif group.size == 1 or agreed["method"] == "unfused":
        plan = _Unfused(agreed["eps"])
    else:
        outputs = (torch.empty(x.shape, dtype=x.dtype, device=x.device) if t is None else t for t in (out, residual_out))
        plan = _Fused(group, agreed, x, weight, bias, residual, *outputs)
        meet()
    plan.out_shape = x.shape
    return plan


class _Empty(_plan.Plan):
    """No elements."""

    def run(self, group, x, weight, bias, residual, out, residual_out):
        pass


class _Unfused(_plan.Unfused):
    """all_reduce, then torch."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def run(self, group, x, weight, bias, residual, out, residual_out):
        def reduce(part: torch.Tensor, total: torch.Tensor) -> None:
            all_reduce(part, group=group, out=total)
            backend().before_torch()
        backend().before_torch()
        all_reduce_rmsnorm_reference(x, weight, reduce, out, residual_out, self.eps, bias, residual)


class _Fused(_plan.OnWorkspace):
    """One kernel of self-flagged stores. Holds all that does not change from call to call."""

    def __init__(self, group: Group, agreed: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                 residual: torch.Tensor | None, out: torch.Tensor, residual_out: torch.Tensor):
        m, n, two_shot = agreed["m"], agreed["n"], agreed["method"] == "two_shot"
        vectors = sizes.vectors(n, x.dtype)
        threads = min(max(sizes.power_of_two(vectors), 4 * backend().warp_size), _MOST_THREADS)
        programs, each = min(m, sizes.most_programs()), -(-vectors // threads)
        terms = group.size * (-(-m // group.size) if two_shot else m)
        space, slots, half = sizes.self_flagged(group, (terms + m * two_shot) * vectors)
        super().__init__(space)
        args = self.args(x, weight, bias, residual, out, residual_out)
        options = dict(EPS=agreed["eps"], HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, WORLD=group.size,
                       THREADS=threads, EACH=each, num_warps=threads // backend().warp_size, num_stages=1,
                       WHOLE=sizes.whole_vectors(n, *(t for t in args if t is not None)))
        if not two_shot:
            options["ALL_FIRST"] = programs == m
        self.launch = backend().prepare(two_hops_rmsnorm if two_shot else one_hop_rmsnorm, (programs,),
                                        (*args, slots, half, space.control, team(group), m, n), options, varying=len(args))

    def args(self, x, weight, bias, residual, out, residual_out) -> tuple:
        return (x.contiguous(), weight, out if bias is None else bias, out if residual is None else residual.contiguous(), out,
                residual_out)


_CALLS = _recent.Calls("all_reduce_rmsnorm", "x weight bias residual out second", _checked, _make_plan)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce_rmsnorm: what ranks agree on, its fused plan, and the call."""
import math
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.ops.all_reduce.op import all_reduce
from triton_dist.ops.all_reduce_rmsnorm.kernels import one_hop_rmsnorm, two_hops_rmsnorm
from triton_dist.ops.all_reduce_rmsnorm.unfused import all_reduce_rmsnorm_unfused
from triton_dist.ops.autograd import norm
from triton_dist.ops.calls import checks
from triton_dist.ops.calls.plans import OnWorkspace, Plan, present
from triton_dist.ops.exchange import sizes
from triton_dist.ops.exchange.sizes import KIB, MIB
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.registry import Gradient
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import team

_MOST_THREADS = 1024
_MOST_ROW_BYTES = 8 * _MOST_THREADS * sizes.VECTOR      # that one program holds in registers


@dataclass(frozen=True, kw_only=True)
class Norm(Agreed):
    """x has m rows of n elements."""
    m: int
    n: int
    eps: float


class AllReduceRmsnorm(Op):
    """What follows a row-parallel linear in a decoder."""

    name = "all_reduce_rmsnorm"
    tensors = {"x": "partial", "weight": "equal", "bias": "equal", "residual": "equal"}
    outputs = {"out": "summed", "residual_out": "summed"}
    methods = ("one_shot", "two_shot", "unfused")
    schema = "(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, float? eps, str group, str method) -> (Tensor, Tensor)"
    gradient = Gradient(norm.keep, norm.backward)
    steps = {2: ((16 * MIB, "one_shot"),), 64: ((64 * KIB, "one_shot"), (8 * MIB, "two_shot"))}

    def check(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
              residual: torch.Tensor | None, out: torch.Tensor | None, residual_out: torch.Tensor | None, eps: Any,
              method: str) -> Norm:
        checks.tensor("x", x)
        if x.ndim == 0:
            raise InvalidArgument("x: expected at least 1 dimension, the last of which is normalised, found a scalar")
        n = x.shape[-1]
        if weight is None:
            raise InvalidArgument(f"weight: expected a torch.Tensor of shape [{n}], found NoneType; pass ones for a norm without "
                                  "a weight")
        checks.vector("weight", weight, n, like=x, optional=False)
        checks.vector("bias", bias, n, like=x)
        if residual is not None:
            checks.tensor("residual", residual, like=x)
            if residual.shape != x.shape:
                raise InvalidArgument(f"residual: expected None or a tensor of shape {list(x.shape)}, found "
                                      f"{list(residual.shape)}; it is added to the sum")
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
        return self._agreed(m, n, x.dtype, method, eps, group)

    def _agreed(self, m: int, n: int, dtype: torch.dtype, method: str, eps: float | None, group: Group) -> Norm:
        chosen, why = sizes.choose(self, method, group, m * n * dtype.itemsize)
        if chosen != "unfused" and n * dtype.itemsize > _MOST_ROW_BYTES:
            if method != "auto":
                raise InvalidArgument(f"method: {method!r} takes rows of at most {_MOST_ROW_BYTES} bytes, found "
                                      f"{n * dtype.itemsize}; use 'auto' or 'unfused'")
            chosen, why = "unfused", f"a row has more than {_MOST_ROW_BYTES} bytes"
        return Norm(op=self.name, dtype=dtype, method=chosen, why=why, m=m, n=n,
                    eps=float(torch.finfo(dtype).eps if eps is None else eps))

    def candidates(self, agreed: Norm, group: Group) -> Sequence[Choice]:
        return [Choice("unfused" if group.size == 1 or not agreed.m else agreed.method)]

    def plan(self, choice: Choice, agreed: Norm, group: Group, *tensors: torch.Tensor | None) -> Plan:
        return _Fused(agreed, group)

    def unfused(self, agreed: Norm, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                residual: torch.Tensor | None, out: torch.Tensor, residual_out: torch.Tensor) -> None:
        """all_reduce, then torch."""
        if not agreed.m:
            return

        def reduce(part: torch.Tensor, total: torch.Tensor) -> None:
            all_reduce(part, group=group, out=total)
            backend().before_torch()
        all_reduce_rmsnorm_unfused(x, weight, reduce, out, residual_out, agreed.eps, bias, residual)

    def traffic(self, agreed: Norm, group: Group) -> dict[int, int]:
        """All rows to every peer; in two hops the rows that a peer sums, and to all the sums of the own ones."""
        row, m = agreed.n * agreed.dtype.itemsize, agreed.m
        own = [len(range(index, m, group.size)) for index in range(group.size)]         # rows that each member sums
        rows = [own[index] + own[group.rank] if agreed.method == "two_shot" else m for index in range(group.size)]
        return {rank: rows[index] * row for index, rank in enumerate(group.world_ranks) if index != group.rank}

    def shape(self, agreed: Norm, group: Group, local: int) -> Shape:
        return Shape(self.name, str(agreed.dtype).removeprefix("torch."), agreed.m, agreed.n, 1)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Norm:
        return self._agreed(m, n, dtype, "auto", None, group)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return {"x": (m, n), "weight": (n,)}


class _Fused(OnWorkspace):
    """One kernel of self-flagged stores. Holds all that does not change from call to call."""

    def __init__(self, agreed: Norm, group: Group):
        self.agreed, self.group = agreed, group
        m, n, two_shot = agreed.m, agreed.n, agreed.method == "two_shot"
        vectors = sizes.vectors(n, agreed.dtype)
        threads = min(max(sizes.power_of_two(vectors), 4 * backend().warp_size), _MOST_THREADS)
        self.programs, each = min(m, sizes.most_programs()), -(-vectors // threads)
        terms = group.size * (-(-m // group.size) if two_shot else m)
        space, self.slots, self.half = sizes.self_flagged(group, (terms + m * two_shot) * vectors)
        super().__init__(space)
        self.kernel = two_hops_rmsnorm if two_shot else one_hop_rmsnorm
        self.options = dict(EPS=agreed.eps, WORLD=group.size, THREADS=threads, EACH=each, num_stages=1,
                            num_warps=threads // backend().warp_size)
        if not two_shot:
            self.options["ALL_FIRST"] = self.programs == m

    def compile(self, x, weight, bias, residual, out, residual_out):
        given, agreed = (x, weight, bias, residual, out, residual_out), self.agreed
        args = self.args(*given)
        self.plain = all(arg is t for arg, t in zip(args, given))
        varying, tensors = present(*args)
        options = dict(self.options, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None,
                       WHOLE=sizes.whole_vectors(agreed.n, *[t for t in args if t is not None]))
        rest = (self.slots, self.half, self.space.control, team(self.group), agreed.m, agreed.n)
        self.launch = backend().prepare(self.kernel, (self.programs,), (*tensors, *rest), options, varying)

    def args(self, x, weight, bias, residual, out, residual_out) -> tuple:
        return x.contiguous(), weight, bias, None if residual is None else residual.contiguous(), out, residual_out


ALL_REDUCE_RMSNORM = AllReduceRmsnorm()


@ALL_REDUCE_RMSNORM.public
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

    Example:
        normed, x = all_reduce_rmsnorm(partial, norm.weight, residual=x)
    """
    known = ALL_REDUCE_RMSNORM.known((eps, method), group, x, weight, out, bias, residual, residual_out)
    if known is None:
        return ALL_REDUCE_RMSNORM.record(x=x, weight=weight, bias=bias, residual=residual, eps=eps, group=group, out=out,
                                         residual_out=residual_out, method=method)
    if out is None:
        out = known.new_out()
    if residual_out is None:
        residual_out = known.new_out()
    known.plan.run(known.group, x, weight, bias, residual, out, residual_out)
    return out, residual_out

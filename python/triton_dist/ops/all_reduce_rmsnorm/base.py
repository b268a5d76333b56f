# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the ops share that norm an all-reduced tensor: what ranks agree on, the ways to run it, and the fused plan."""
import functools
import math
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Sequence

import torch

from triton_dist.ops.all_reduce.op import ALL_REDUCE, all_reduce
from triton_dist.ops.all_reduce_rmsnorm.kernels import one_hop_rmsnorm, two_hops_rmsnorm
from triton_dist.ops.calls import checks
from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.calls.plans import OfParts, OnWorkspace, Plan, present
from triton_dist.ops.exchange import sizes
from triton_dist.ops.exchange.sizes import KIB, MIB
from triton_dist.ops.norm_rows.eps import eps_of
from triton_dist.ops.norm_rows.launch import MOST_ROW_BYTES, MOST_THREADS, NormRows, served
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import team


@dataclass(frozen=True, kw_only=True)
class Norm(Agreed):
    """x has m rows of n elements. weight_bias: what is added to the norm's weight.

    how: how the kernels quantise the norm: "", "tensor", "row" or "group".
    """
    how: ClassVar[str] = ""
    m: int
    n: int
    eps: float
    weight_bias: float = 0.0


def check_numbers(eps: Any, weight_bias: Any, name: str = "weight_bias") -> None:
    """Refuses what is no eps of a norm, and no number that is added to its weight. name: what users call the latter."""
    if eps is not None and (isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < math.inf):
        raise InvalidArgument(f"eps: expected None or a number of at least 0, found {eps!r}; 1e-6 is usual")
    if isinstance(weight_bias, bool) or not isinstance(weight_bias, (int, float)) or not abs(weight_bias) < math.inf:
        raise InvalidArgument(f"{name}: expected a number, found {weight_bias!r}; it is added to the norm's weight: 0, or 1 for "
                              "models whose norm multiplies by 1 + weight")


class NormedAllReduce(Op):
    """All-reduce, bias, residual and a norm of rows. A subclass says which norm, and what the op gives beside it.

    Attributes:
        agrees_on: the type of what ranks agree on.
        center: whether the norm is of differences from the mean.
        steps: which method "auto" takes, as of collectives (exchange/sizes.py by_size). On 2 H200 (bf16, graphs, us a call) one
            hop takes 14.9 for 256 x 8192 and 14.8 for 512 x 4096, two hops 15.3 and 15.1.
    """

    agrees_on: type[Norm] = Norm
    center = False
    residual_has_rows = True
    methods = ("one_shot", "two_shot", "unfused")
    steps = {2: ((4 * MIB, "one_shot"), (16 * MIB, "two_shot")), 64: ((64 * KIB, "one_shot"), (8 * MIB, "two_shot"))}

    def check_inputs(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None,
                     eps: Any, weight_bias: Any = 0.0) -> None:
        """Refuses what no norm of an all-reduced x takes."""
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
        check_numbers(eps, weight_bias)
        if x.numel() >= 2**31:
            raise InvalidArgument(f"x: expected fewer than 2^31 elements, found shape {list(x.shape)}; split the call")

    def check_outputs(self, residual: torch.Tensor | None, residual_out: torch.Tensor | None,
                      outputs: dict[str, torch.Tensor | None], **inputs: torch.Tensor | None) -> None:
        """Refuses outputs that share memory with an input or another output.

        An output may be x itself, and residual_out the residual: a program reads its row before it writes it.

        outputs: the others. inputs: the others.
        """
        read = dict(inputs, residual=residual)
        for name, t in outputs.items():
            others = {other: tensor for other, tensor in outputs.items() if other != name}
            checks.no_overlap(name, t, **_but(t, read, "x"), **others, residual_out=residual_out)
        checks.no_overlap("residual_out", residual_out, **_but(residual_out, read, "x", "residual"))
        checks.no_grad(**read)

    def resized(self, agreed: Norm, group: Group, x: torch.Tensor, asked: tuple, **more: Any) -> Any:
        if x.ndim < 2 or not 0 < x.numel() < 2**31:
            return None
        m, n = x.numel() // agreed.n, agreed.n
        return self.of_rows(m, n, agreed.dtype, agreed.eps, group, agreed.weight_bias, asked[-1], **more)

    def agreed_of(self, x: torch.Tensor, method: str, eps: float | None, group: Group, weight_bias: float = 0.0,
                  **more: Any) -> Any:
        """What ranks agree on in a call with this x, which is checked. more: fields that the op adds."""
        n = x.shape[-1]
        return self.of_rows(x.numel() // n if n else 0, n, x.dtype, eps, group, weight_bias, method, **more)

    def of_rows(self, m: int, n: int, dtype: torch.dtype, eps: float | None, group: Group, weight_bias: float = 0.0,
                method: str = "auto", **more: Any) -> Any:
        """The same in a call with m rows of n elements."""
        chosen, why = sizes.choose(self, method, group, m * n * dtype.itemsize)
        if chosen != "unfused" and n * dtype.itemsize > MOST_ROW_BYTES:
            if method != "auto":
                raise InvalidArgument(f"method: {method!r} takes rows of at most {MOST_ROW_BYTES} bytes, found "
                                      f"{n * dtype.itemsize}; use 'auto' or 'unfused'")
            chosen, why = "unfused", f"a row has more than {MOST_ROW_BYTES} bytes"
        return self.agrees_on(op=self.name, dtype=dtype, method=chosen, why=why, m=m, n=n, eps=eps_of(eps, dtype),
                              weight_bias=float(weight_bias), **more)

    def candidates(self, agreed: Norm, group: Group) -> Sequence[Choice]:
        return [Choice("unfused" if group.size == 1 or not agreed.m else agreed.method)]

    def args(self, *tensors: torch.Tensor | None) -> tuple:
        """What the kernels take of the op's tensors, of which the last ones may be left out: x, weight, bias, residual, out,
        residual_out, shift, scale, quantised, scales.
        """
        raise NotImplementedError

    def plan(self, choice: Choice, agreed: Norm, group: Group, *tensors: torch.Tensor | None) -> Plan:
        return _Fused(self, agreed, group)

    def plan_of_unfused(self, agreed: Norm, group: Group, *tensors: torch.Tensor | None) -> Plan:
        """Two kernels. By torch where a kernel cannot be compiled, or does not hold a row."""
        if not agreed.m or not served(agreed.n, agreed.dtype):
            return super().plan_of_unfused(agreed, group, *tensors)
        return _SumThenNorm(self, agreed, group, *tensors)

    def sums(self, group: Group) -> Callable:
        """What gives the sum over ranks of x to `unfused`: a function (x, out=)."""
        return functools.partial(all_reduce, group=group)

    def traffic(self, agreed: Norm, group: Group) -> dict[int, int]:
        """All rows to every peer; in two hops the rows that a peer sums, and to all the sums of the own ones."""
        row, m = agreed.n * agreed.dtype.itemsize, agreed.m
        own = [len(range(index, m, group.size)) for index in range(group.size)]         # rows that each member sums
        rows = [own[index] + own[group.rank] if agreed.method == "two_shot" else m for index in range(group.size)]
        return {rank: rows[index] * row for index, rank in enumerate(group.world_ranks) if index != group.rank}

    def shape(self, agreed: Norm, group: Group, local: int) -> Shape:
        return Shape(self.name, str(agreed.dtype).removeprefix("torch."), agreed.m, agreed.n, 1)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Norm:
        return self.of_rows(m, n, dtype, None, group)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return {"x": (m, n), "weight": (n,)}


def _but(out: torch.Tensor | None, read: dict[str, torch.Tensor | None], *names: str) -> dict[str, torch.Tensor | None]:
    """`read` without those of `names` that `out` is in memory, as a whole."""
    return {name: None if name in names and checks.same_memory(out, t) else t for name, t in read.items()}


class _Fused(OnWorkspace):
    """One kernel of self-flagged stores. Holds all that does not change from call to call."""

    def __init__(self, op: NormedAllReduce, agreed: Norm, group: Group):
        self.agreed, self.group, self.args = agreed, group, op.args
        m, n, two_shot = agreed.m, agreed.n, agreed.method == "two_shot"
        vectors = sizes.vectors(n, agreed.dtype)
        threads = min(max(sizes.power_of_two(vectors), 4 * backend().warp_size), MOST_THREADS)
        # One hop: one program on an SM norms its row while another's is on its way (256 x 8192 on 2 H200: 14.9 us for 15.4).
        self.programs, each = min(m, sizes.most_programs(1 if two_shot else 2)), -(-vectors // threads)
        terms = group.size * (-(-m // group.size) if two_shot else m)
        space, self.slots, self.half = sizes.self_flagged(group, (terms + m * two_shot) * vectors)
        super().__init__(space)
        self.kernel = two_hops_rmsnorm if two_shot else one_hop_rmsnorm
        self.options = dict(EPS=agreed.eps, WEIGHT_BIAS=agreed.weight_bias, CENTER=op.center, QUANT=agreed.how, WORLD=group.size,
                            THREADS=threads, EACH=each, num_stages=1, num_warps=threads // backend().warp_size)
        if not two_shot:
            self.options["ONE_ROW"] = self.programs == m

    def compile(self, *given: torch.Tensor | None) -> None:
        agreed, args = self.agreed, self.args(*given)
        self.plain = len(args) == len(given) and all(arg is t for arg, t in zip(args, given))
        varying, tensors = present(*args, *[None] * (10 - len(args)))
        x, weight, bias, residual, out, total, shift, _, quantised, scales = (*args, *[None] * (10 - len(args)))
        whole = sizes.whole_vectors(agreed.n, *[t for t in (x, weight, bias, residual, out, total, shift) if t is not None])
        whole = whole and (quantised is None or quantised.data_ptr() % sizes.VECTOR == 0)
        options = dict(self.options, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, HAS_SHIFT=shift is not None,
                       HAS_OUT=out is not None, WHOLE=whole)
        steps = (0, 0) if scales is None else (scales.stride(0), scales.stride(1))
        rest = (self.slots, self.half, self.space.control, team(self.group), agreed.m, agreed.n, *steps)
        self.launch = backend().prepare(self.kernel, (self.programs,), (*tensors, *rest), options, varying)


class _SumThenNorm(OfParts):
    """all_reduce, then a kernel for the rest. Of one rank x is the sum."""

    compiles = True

    def __init__(self, op: NormedAllReduce, agreed: Norm, group: Group, x: torch.Tensor, *others: torch.Tensor | None,
                 norm: NormRows | None = None, templates: dict | None = None):
        self._op, self._args, self._room, parts = op, op.args, backend().maker(tuple(x.shape), agreed.dtype), ()
        if group.size > 1:
            given = [t for t in others[len(op.tensors) - 1:] if t is not None and t.dtype == agreed.dtype]
            where = min([self._room(), *given], key=_alignment)     # all that matters of where the sum goes, beside its dtype
            parts = ALL_REDUCE.part(group, ALL_REDUCE.at(agreed.m, agreed.n, 1, agreed.dtype, group), x.contiguous(), where,
                                    templates=templates),
        super().__init__(group, *parts)
        self._norm = norm or NormRows(agreed.m, agreed.n, agreed.dtype, agreed.eps, agreed.weight_bias, op.center, agreed.how)

    def compile(self, *given: torch.Tensor | None) -> None:
        args = self._args(*given)
        self._norm.compile(*self._of_sum(args, self._where(args)))

    def resized(self, agreed: Norm, group: Group, templates: dict, *tensors: torch.Tensor | None) -> Plan | None:
        norm = self._norm.on(agreed.m)
        if norm is None:
            return None
        found = _SumThenNorm(self._op, agreed, group, *tensors, norm=norm, templates=templates)
        found.compiles, found.variants = False, self.variants
        return found

    def _where(self, args: tuple) -> torch.Tensor:
        """Where the sum over ranks goes: into the result, unless that is the residual, which is still needed."""
        x, _, _, residual, out, total, *_ = args
        if not self.parts:
            return x
        if residual is None or residual.data_ptr() != total.data_ptr():
            return total
        return self._room() if out is None else out

    @staticmethod
    def _of_sum(args: tuple, where: torch.Tensor) -> tuple:
        """What the kernel takes."""
        _, weight, bias, residual, out, total, *rest = args
        kept = None if where is total and bias is None and residual is None else total
        return where, weight, bias, residual, out, kept, *rest

    def run(self, group: Group, *given: torch.Tensor | None) -> None:
        try:
            args = self._args(*given)
            where = self._where(args)
        except BaseException as error:
            withdraw(group, self.agreed.op, error)
            raise
        if self.parts:
            self.run_part(self.parts[0], group, args[0], where)
        self._norm.launch(*self._of_sum(args, where))


def _alignment(t: torch.Tensor) -> int:
    """The largest power of two that divides its address."""
    return t.data_ptr() & -t.data_ptr()

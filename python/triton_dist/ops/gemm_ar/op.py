# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_ar: what ranks agree on, the ways to run it, what they move, and the call."""
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Sequence

import torch

from triton_dist.ops import products, registry
from triton_dist.ops.all_gather.op import ALL_GATHER
from triton_dist.ops.all_reduce.op import ALL_REDUCE, all_reduce
from triton_dist.ops.autograd import gemms as gradients
from triton_dist.ops.calls import checks, possible
from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.calls.plans import OfParts, Plan
from triton_dist.ops.exchange import sizes
from triton_dist.ops.gemm_ar.packets import Packets, Tiling, tiling
from triton_dist.ops.gemm_ar.unfused import gemm_ar_unfused
from triton_dist.ops.gemm_rs.op import GEMM_RS
from triton_dist.ops.norm_rows.launch import NormRows, served
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.registry import Gradient
from triton_dist.ops.tuning import model
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.device import absent
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group

AUTO_ROWS = 16                          # that auto gives to packets, by what 2 H200 took (tests/unit/test_auto_on_h200.py)
# Bytes of out up to which auto takes packets, by number of ranks (the next larger one listed).
MOST_BYTES = {2: 2 << 20, 4: 1 << 20, 64: 1 << 19}


@dataclass(frozen=True, kw_only=True)
class Product(Agreed):
    """out is [m, n]. tiling: how packets cut it."""
    m: int
    n: int
    tiling: Tiling | None = None


def refuse_method(method: str, m: int, nbytes: int, group: Group) -> None:
    """Raises InvalidArgument if `method` cannot bring m rows, `nbytes` of output, to every rank."""
    if method == "packets" and nbytes > sizes.MOST_PACKET_BYTES:
        raise InvalidArgument(f"method: 'packets' carries at most {sizes.MOST_PACKET_BYTES} bytes, found {nbytes}; use "
                              "'ring' or 'unfused'")
    if method == "ring" and m % group.size:
        raise InvalidArgument(f"method: 'ring' needs a number of rows divisible by the group size {group.size}, found "
                              f"{m}; pad the rows or use 'auto'")


class RowParallel(Op):
    """What the ops share that sum a product over ranks, for every rank."""

    methods = ("packets", "ring", "unfused")
    autocasts = residual_has_rows = True
    local_axis = "k"

    def check_inputs(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                     residual: torch.Tensor | None) -> tuple[int, int]:
        """Refuses what no product with a residual takes; its shape."""
        checks.matrix("x", x)
        checks.matrix("weight", weight, like=x)
        products.check_columns(x, weight)
        m, n = x.shape[0], weight.shape[0]
        if m * n >= 2**31:
            raise InvalidArgument(f"x: expected an output of fewer than 2^31 elements, found shape {[m, n]}; split the call")
        checks.vector("bias", bias, n, like=x)
        if residual is not None:
            checks.matrix("residual", residual, like=x)
            if tuple(residual.shape) != (m, n):
                raise InvalidArgument(f"residual: expected None or a tensor of shape {[m, n]}, found {list(residual.shape)}; it "
                                      "is added to the sum over ranks")
        return m, n

    def resized(self, agreed: Any, group: Group, x: torch.Tensor, asked: tuple) -> Any:
        m = x.shape[0]
        return self._agreed(m, agreed.n, agreed.dtype, *asked, group) if 0 < m * agreed.n < 2**31 else None

    def candidates(self, agreed: Any, group: Group) -> Sequence[Choice]:
        if group.size == 1 or not agreed.m * agreed.n:
            return [Choice("unfused")]
        return [Choice(agreed.method)]

    def out_shape(self, world: int, x: torch.Tensor, weight: torch.Tensor, *_: torch.Tensor | None) -> tuple:
        registry.require(weight.shape[1] == x.shape[1], "weight: expected [N, K_local] with the K of x [M, K_local]")
        return x.shape[0], weight.shape[0]

    def shape(self, agreed: Any, group: Group, local: int) -> Shape:
        return Shape(self.name, str(agreed.dtype).removeprefix("torch."), agreed.m, agreed.n, local)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return {"x": (m, products.part(k, group)), "weight": (n, products.part(k, group))}


class GemmAr(RowParallel):
    """A row-parallel linear whose output every rank has."""

    name = "gemm_ar"
    tensors = {"x": "sharded", "weight": "sharded", "bias": "equal", "residual": "equal"}
    outputs = {"out": "summed"}
    schema = "(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, str group, str method) -> Tensor"
    gradient = Gradient(gradients.keep_gemm_ar, gradients.gemm_ar_backward)

    def check(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
              residual: torch.Tensor | None, out: torch.Tensor | None, method: str) -> Product:
        m, n = self.check_inputs(x, weight, bias, residual)
        checks.output("out", out, (m, n), like=x)
        in_place = checks.same_memory(out, residual)
        checks.no_overlap("out", out, x=x, weight=weight, bias=bias, residual=None if in_place else residual)
        checks.no_grad(x=x, weight=weight, bias=bias, residual=residual)
        return self._agreed(m, n, x.dtype, method, group)

    def _agreed(self, m: int, n: int, dtype: torch.dtype, method: Any, group: Group) -> Product:
        chosen, why = self.choose(method, group, m, n, dtype)
        cut = tiling(m, n, dtype, group.size) if chosen == "packets" and m * n else None
        return Product(op=self.name, dtype=dtype, method=chosen, why=why, m=m, n=n, tiling=cut)

    def choose(self, method: Any, group: Group, m: int, n: int, dtype: torch.dtype) -> tuple[str, str]:
        """(the method of a call that has no plan yet, why, for an "auto")."""
        nbytes, reason = m * n * dtype.itemsize, possible.no_kernel(group)
        chosen, why = self.possible(method, None if method == "ring" else reason)
        refuse_method(chosen, m, nbytes, group)
        if chosen != "auto":
            return chosen, why
        most = next(most for world, most in MOST_BYTES.items() if group.size <= world)
        if m <= AUTO_ROWS and nbytes <= most:
            return "packets", f"{m} rows are no more than {AUTO_ROWS}, and {nbytes} bytes of output no more than {most}"
        if m % group.size == 0 and possible.fusing_pays(group.size, nbytes - nbytes // group.size):
            return "ring", ("hiding the reduce-scatter behind the GEMM pays at this size, and rows are divisible by the group "
                            "size")
        return "unfused", "it has more rows or bytes than packets suit, and too few for a ring, or rows that do not divide"

    def plan(self, choice: Choice, agreed: Product, group: Group, *tensors: torch.Tensor | None) -> Plan:
        return Ring(agreed, group, *tensors) if choice.method == "ring" else Packets(agreed.tiling, group, *tensors)

    def collective_of_unfused(self, agreed: Product, group: Group, x: torch.Tensor, weight: torch.Tensor,
                              bias: torch.Tensor | None, residual: torch.Tensor | None, out: torch.Tensor | None) -> Plan | None:
        if not agreed.m * agreed.n:
            return None
        total = backend().maker((agreed.m, agreed.n), agreed.dtype)() if out is None or residual is not None else out
        return ALL_REDUCE.part(group, ALL_REDUCE.at(agreed.m, agreed.n, 1, agreed.dtype, group), total, total)

    def unfused(self, agreed: Product, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                residual: torch.Tensor | None, out: torch.Tensor, collective: Callable | None = None) -> None:
        """A matmul, then all_reduce."""
        if not agreed.m * agreed.n:
            return

        run = collective or partial(all_reduce, group=group)

        def reduce(total: torch.Tensor) -> None:
            run(total, out=total)
            backend().before_torch()
        gemm_ar_unfused(x, weight, reduce, out, bias, residual)

    def traffic(self, agreed: Product, group: Group) -> dict[int, int]:
        """Its product to every peer, or in two hops a part of it twice; a ring's is counted at the ops that it calls."""
        if agreed.tiling is None:
            return {}
        return sizes.to_peers(agreed.m * agreed.n * agreed.dtype.itemsize, agreed.tiling.two_shot, group)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Product:
        return self._agreed(m, n, dtype, "auto", group)

    def estimates(self, agreed: Product, group: Group, shape: Shape, ways: Sequence[Choice]) -> dict:
        machine = backend().machine_model()
        if machine is None or possible.across_nodes(group):
            return {}
        k, itemsize = -(-shape.k // group.size), agreed.dtype.itemsize
        found = model.gemm_ar_estimates(machine, agreed.m, agreed.n, k, group.size, itemsize)
        return {Choice(each.method): each for each in found}


class Ring(OfParts):
    """gemm_rs, then an all-gather of its rows, to which those of a residual have been added. `agreed` has m, n and dtype."""

    fills = False
    _add: NormRows | None = None

    def __init__(self, agreed: Any, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                 residual: torch.Tensor | None, out: torch.Tensor | None, like: "Ring | None" = None,
                 templates: dict | None = None):
        whole = agreed.m, agreed.n, x.shape[1] * group.size, agreed.dtype, group
        self._each, self.compiles = agreed.m // group.size, residual is not None
        self._first = group.rank * self._each
        self._rows = backend().maker((self._each, agreed.n), agreed.dtype)
        rows = self._rows()
        product = GEMM_RS.at(*whole) if like is None else like.parts[0].agreed.of_rows(self._each)
        self._multiply = GEMM_RS.part(group, product, x, weight, bias, rows, templates=templates)
        # Of an output that there is not yet, only dtype and alignment matter, which those of `rows` are.
        self._gather = ALL_GATHER.part(group, ALL_GATHER.at(*whole), rows, rows if out is None else out, templates=templates)
        super().__init__(group, self._multiply, self._gather)

    def resized(self, agreed: Any, group: Group, templates: dict, *tensors: torch.Tensor | None) -> Plan | None:
        found = type(self)(agreed, group, *tensors, self, templates)
        found.compiles, found.variants = False, self.variants
        if self._add is not None:
            residual = tensors[3]
            if (found._first - self._first) * residual.stride(0) * residual.element_size() % 16:
                return None                             # its own rows would be aligned otherwise
            found._add = self._add.on(found._each)
        return found if (found._add is None) == (self._add is None) else None

    def compile(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None,
                *_: torch.Tensor | None) -> None:
        if residual is not None and served(residual.shape[1], residual.dtype):
            rows = absent(residual)                 # of which only dtype and alignment matter
            self._add = NormRows(self._each, residual.shape[1], residual.dtype)
            self._add.compile(rows, None, None, self._own(residual), None, rows)

    def _own(self, residual: torch.Tensor) -> torch.Tensor:
        """This rank's rows of it."""
        return checks.rows_contiguous(residual.narrow(0, self._first, self._each))

    def run(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
            residual: torch.Tensor | None, out: torch.Tensor) -> None:
        try:
            rows, own = self._rows(), None if residual is None else self._own(residual)        # which may be copied
        except BaseException as error:
            withdraw(group, self.agreed.op, error)
            raise
        self.run_part(self._multiply, group, x, weight, bias, rows)
        if self._add is not None:
            self._add.launch(rows, None, None, own, None, rows)
        elif own is not None:
            backend().before_torch()
            rows += own
        self.run_part(self._gather, group, rows, out)


GEMM_AR = GemmAr()


@GEMM_AR.public
def gemm_ar(x: torch.Tensor, weight: torch.Tensor, *, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None,
            group: Any = None, out: torch.Tensor | None = None, method: str = "auto") -> torch.Tensor:
    """all_reduce(x @ weight^T) + bias + residual: a row-parallel linear whose output every rank has. Collective over `group`.

    Args:
        x: [M, K_local] fp16, bf16 or fp32 on `triton_dist.device()`. M is equal on all ranks.
        weight: [N, K_local], same dtype: this rank's columns. N is equal on all ranks; K_local may differ and may be 0.
        bias: [N] or None, same dtype: added once, to the sum. Pass the same on every rank.
        residual: [M, N] or None, same dtype: likewise. Pass the same on every rank.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: [M, N] contiguous, or None to allocate. `out=residual` adds in place.
        method: "packets" (one kernel: tiles of the product travel in packets that carry their own flag; for few rows), "ring"
            (gemm_rs, then an all-gather; M is a multiple of the group size), "unfused" (a matmul, then all_reduce) or "auto"
            (by M and N). The same on all ranks.

    Returns out [M, N], equal on every rank. Products accumulate in fp32. "packets" rounds each rank's product to the dtype, and
    sums these, bias and residual in fp32 with one rounding, in an order that depends on shapes and group only: the same inputs
    give the same bits. The others round after each step.
    Gradients (without `out`): the output is one tensor that all ranks hold, and so is its gradient, which must be equal on all
    ranks. Then nothing is sent in the backward pass, and the gradients of bias and residual are equal on all ranks.
    In graphs: run the same call once before capture, else auto captures "unfused" and "packets" refuses. Replays and eager
    calls may follow each other in any order, all on one stream or on streams that wait for each other.
    Under autocast operands are cast and the output has its dtype, as for nn.Linear; `out` must have that dtype.
    Raises InvalidArgument before anything is sent.

    Example:
        x = gemm_ar(hidden, down_proj.weight, residual=x)   # hidden [M, K_local] -> [M, N] on every rank
    """
    known = GEMM_AR.known((method,), group, x, weight, out, bias, residual)
    if known is None:
        return GEMM_AR.record(x=x, weight=weight, bias=bias, residual=residual, group=group, out=out, method=method)
    if out is None:
        out = known.new_out()
    known.plan.run(known.group, x, weight, bias, residual, out)
    return out

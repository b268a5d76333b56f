# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_ar: plan and dispatch."""
from dataclasses import dataclass, replace
from typing import Any

import torch

from triton_dist.ops import _plan, _recent
from triton_dist.ops.calls import checks
from triton_dist.ops.exchange import sizes
from triton_dist.ops.device.boxes import boxes, can_read
from triton_dist.ops.all_gather.op import all_gather
from triton_dist.ops.all_reduce.op import all_reduce
from triton_dist.ops.gemm_ar.kernels import gemm_ar_kernel
from triton_dist.ops.gemm_ar.reference import gemm_ar_reference
from triton_dist.ops.gemm_rs.op import gemm_rs
from triton_dist.ops.registry import record
from triton_dist.runtime.backend import backend
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import MAX_PROGRAMS, team

METHODS = ("auto", "packets", "ring", "unfused")
MOST_ROWS = 64                          # of a tile of packets: where there are no more, weights are read once
AUTO_ROWS = 32                          # that auto gives to packets, and to MOST_ROWS where tiles are not narrowed: on 2 H200
# Bytes of out up to which auto takes packets, by number of ranks (the next larger one listed).
MOST_BYTES = {2: 2 << 20, 4: 1 << 20, 64: 1 << 19}
_MOST_TERMS = 32                        # of a tile, over ranks and pieces: more packets, and more threads that sum them


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
            (gemm_rs, then an all-gather; M divides by the group size), "unfused" (a matmul, then all_reduce) or "auto" (by M
            and N). The same on all ranks.

    Returns out [M, N], equal on every rank. Products accumulate in fp32. "packets" rounds each rank's product to the dtype, and
    sums these, bias and residual in fp32 with one rounding, in an order that depends on shapes and group only: the same inputs
    give the same bits. The others round after each step.
    Gradients (without `out`): the output is one tensor that all ranks hold, and so is its gradient, which must be equal on all
    ranks. Then nothing is sent in the backward pass, and the gradients of bias and residual are equal on all ranks.
    In graphs: run the same call once before capture, else auto captures "unfused" and "packets" refuses. Replays and eager
    calls may follow each other in any order, all on one stream or on streams that wait for each other.
    Under autocast operands are cast and the output has its dtype, as for nn.Linear; `out` must have that dtype.
    Raises InvalidArgument before anything is sent.
    """
    known = _CALLS.known((method,), group, x, weight, out, bias, residual)
    if known is None:
        return record(gemm_ar, x, weight, bias=bias, residual=residual, group=group, out=out, method=method)
    if out is None:
        out = known.new_out()
    known.plan.run(known.group, x, weight, bias, residual, out)
    return out


@dataclass(frozen=True)
class Tiling:
    """How packets cut the product: the GEMM's tiling, pieces of a tile along K, and whether tiles are summed in two hops."""
    config: GemmConfig
    split: int
    two_shot: bool

    def pieces(self, m: int, n: int) -> int:
        """Pieces of a product [m, n]."""
        return -(-m // self.config.block_m) * -(-n // self.config.block_n) * self.split


def tiling(m: int, n: int, dtype: torch.dtype, world: int) -> Tiling:
    """The tiling of a product [m, n]: of those below, the first that keeps nine of ten SMs busy, or most of them.

    The order is that of times on 2 H200 for 1 to 64 rows. Each piece of a tile sends a term, so bytes count once for each.
    """
    config, sms = backend().few_rows_config(dtype, min(m, MOST_ROWS)), backend().num_sms()
    most_pieces = max(1, _MOST_TERMS // sizes.power_of_two(world))
    best, most = None, 0.0
    for narrower, split in ((1, 1), (1, 2), (2, 2), (1, 4), (2, 4), (1, 8), (2, 8), (4, 8)):
        split = min(split, most_pieces)
        two_shot = sizes.by_size("all_reduce", world, m * n * dtype.itemsize * split) != "one_shot"
        found = Tiling(replace(config, block_n=config.block_n // narrower), split, two_shot)
        pieces = found.pieces(m, n)
        busy = pieces / (-(-pieces // sms) * sms)
        if most < 0.9 and busy > most:
            best, most = found, busy
    return best


def _checked(group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None,
             out: torch.Tensor | None, method: str) -> dict:
    """Refuses bad arguments; of good ones, what all ranks must agree on."""
    checks.matrix("x", x)
    checks.matrix("weight", weight, like=x)
    if weight.shape[1] != x.shape[1]:
        raise InvalidArgument(f"weight: expected [N, {x.shape[1]}] to match x {list(x.shape)}, found {list(weight.shape)}; it "
                              "has a row for each output column, as in nn.Linear")
    m, n = x.shape[0], weight.shape[0]
    if m * n >= 2**31:
        raise InvalidArgument(f"x: expected an output of fewer than 2^31 elements, found shape {[m, n]}; split the call")
    checks.vector("bias", bias, n, like=x)
    if residual is not None:
        checks.matrix("residual", residual, like=x)
        if tuple(residual.shape) != (m, n):
            raise InvalidArgument(f"residual: expected None or a tensor of shape {[m, n]}, found {list(residual.shape)}; it is "
                                  "added to the output")
    checks.output("out", out, (m, n), like=x)
    in_place = checks.same_memory(out, residual)
    checks.no_overlap("out", out, x=x, weight=weight, bias=bias, residual=None if in_place else residual)
    checks.no_grad(x=x, weight=weight, bias=bias, residual=residual)
    chosen, _ = choose(method, group, m, n, x.dtype)
    agreed = dict(op="gemm_ar", m=m, n=n, dtype=x.dtype, method=chosen)
    return dict(agreed, tiling=tiling(m, n, x.dtype, group.size)) if chosen == "packets" and m * n else agreed


def choose(method: Any, group: Group, m: int, n: int, dtype: torch.dtype) -> tuple[str, str]:
    """(the method of a call that has no plan yet, why). Every argument is equal on all ranks, so the answer is."""
    if not isinstance(method, str) or method not in METHODS:
        raise InvalidArgument(f"method: expected one of {', '.join(METHODS)}, found {method!r}; leave it out for 'auto'")
    nbytes, reason = m * n * dtype.itemsize, _plan.no_kernel(group)
    if method == "packets":
        if reason is not None:
            raise InvalidArgument(f"method: 'packets' is not possible here: {reason}; use 'auto' or 'unfused'")
        if nbytes > sizes.MOST_PACKET_BYTES:
            raise InvalidArgument(f"method: 'packets' carries at most {sizes.MOST_PACKET_BYTES} bytes, found {nbytes}; use "
                                  "'ring' or 'unfused'")
    if method == "ring" and m % group.size:
        raise InvalidArgument(f"method: 'ring' needs a number of rows that divides by the group size {group.size}, found {m}; "
                              "pad the rows or use 'auto'")
    if method != "auto":
        return method, "it was asked for"
    if reason is not None:
        return "unfused", reason
    most = next(most for world, most in MOST_BYTES.items() if group.size <= world)
    rows = AUTO_ROWS
    if m * n and tiling(m, n, dtype, group.size).config.block_n == backend().few_rows_config(dtype, MOST_ROWS).block_n:
        rows = MOST_ROWS
    if m <= rows and nbytes <= most:
        return "packets", f"{m} rows are no more than {rows}, and {nbytes} bytes of output no more than {most}"
    if m % group.size == 0 and _plan.pays(group.size, nbytes - nbytes // group.size):
        return "ring", "hiding the reduce-scatter behind the GEMM pays at this size, and the rows divide by the group size"
    return "unfused", "it has more rows or bytes than packets suit, and too few for a ring, or rows that do not divide"


def _make_plan(group: Group, agreed: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
               residual: torch.Tensor | None, out: torch.Tensor | None) -> _plan.Plan:
    """How calls like this one run. Collective at the first use of a shape."""
    meet, shape = _plan.agree_once(group, agreed), (agreed["m"], agreed["n"])
    if 0 in shape:
        plan: _plan.Plan = _Empty()
    elif group.size == 1 or agreed["method"] == "unfused":
        plan = _Unfused()
    elif agreed["method"] == "ring":
        plan = _Ring()
    else:
        plan = Packets(x, weight, group, agreed["tiling"])
        plan.compile(x, weight, bias, residual, x.new_empty(shape) if out is None else out)
        meet()
    plan.out_shape = shape
    return plan


class _Empty(_plan.Plan):
    """No rows or no columns."""

    def run(self, group, x, weight, bias, residual, out):
        pass


class _Unfused(_plan.Unfused):
    """A matmul, then all_reduce."""

    def run(self, group, x, weight, bias, residual, out):
        def reduce(total: torch.Tensor) -> None:
            all_reduce(total, group=group, out=total)
            backend().before_torch()
        backend().before_torch()
        gemm_ar_reference(x, weight, reduce, out, bias, residual)


class _Ring(_plan.Plan):
    """gemm_rs, then an all-gather of its rows."""

    def run(self, group, x, weight, bias, residual, out):
        rows = gemm_rs(x, weight, group=group, bias=bias)
        if residual is not None:
            backend().before_torch()
            rows += residual.tensor_split(group.size)[group.rank]
        all_gather(rows, group=group, out=out)


class Packets(_plan.OnWorkspace):
    """One kernel on the workspace of packets. Holds all that does not change from call to call. copies: whether it needs some."""

    copies = True

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, group: Group, cut: Tiling):
        self.group, self.cut, config = group, cut, cut.config
        self.m, (self.n, self.k) = x.shape[0], weight.shape
        pieces = cut.pieces(self.m, self.n)
        share = -(-sizes.words(min(self.m, config.block_m) * config.block_n, x.dtype) // cut.split)
        terms = group.size * cut.split
        pairs = (terms + group.size) * -(-share // group.size) if cut.two_shot else terms * share
        self.programs = min(pieces, backend().num_sms(), MAX_PROGRAMS)
        space, self.slots, self.half = sizes.packets(group, pieces * pairs)
        super().__init__(space)

    def compile(self, x, weight, bias, residual, out):
        """Makes ready what the first call would have to wait for."""
        config, group = self.cut.config, self.group
        varying = self.args(x, weight, bias, residual, out)
        self.copies = any(t is not None and all(t is not v for v in varying) for t in (x, weight, residual))
        x, weight = varying[:2]
        by_boxes = backend().copies_boxes() and can_read(x, weight)
        used = [t.contiguous() for t in (out, bias, residual) if t is not None]
        options = dict(WORLD=group.size, RANKS=sizes.power_of_two(group.size), TWO_SHOT=self.cut.two_shot,
                       SPLIT=self.cut.split, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None,
                       WHOLE=sizes.whole_words(self.n, *used), BOXES=by_boxes, EVEN_K=self.k % config.block_k == 0,
                       PRECISION=_plan.precision(x.dtype), THREADS=config.num_warps * backend().warp_size, **config.options())
        del options["GROUP_M"]
        rest = (self.slots, self.half, self.space.control, team(group), self.m, self.n, self.k, x.stride(0), weight.stride(0))
        if by_boxes:
            varying = (boxes(x, config.block_m, config.block_k), boxes(weight, config.block_n, config.block_k), *varying[2:])
        self.launch = backend().prepare(gemm_ar_kernel, (self.programs,), varying + rest, options, varying=len(varying))

    def args(self, x, weight, bias, residual, out) -> tuple:
        if self.copies:
            x, weight = checks.rows_contiguous(x), checks.rows_contiguous(weight)
            residual = None if residual is None else residual.contiguous()
        return x, weight, out if bias is None else bias, out if residual is None else residual, out


_CALLS = _recent.Calls("gemm_ar", "x weight bias residual out", _checked, _make_plan, autocasts=True)

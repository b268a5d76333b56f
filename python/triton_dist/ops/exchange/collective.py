# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How every collective is called: checks, the plan of a call, and the plans that all of them share."""
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Callable

import torch

from triton_dist.ops import _plan, _recent
from triton_dist.ops.calls import checks
from triton_dist.ops.exchange import sizes
from triton_dist.ops.calls.carriers import carrier_of, flat
from triton_dist.ops.exchange.kernels import one_hop_packets, one_hop_push, one_hop_self_flagged
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import CountedWorkspace, team


@dataclass(frozen=True)
class Collective:
    """What distinguishes one collective from another.

    scatter: x has a row for each rank, else all get the same. reduction: what is done to what arrives ("sum", where a call does
    not say another), or None: out has a row from each rank, and elements are only moved, so that they may be of any dtype.
    library: the group's own collective, on contiguous tensors (x, group, out) or, with a reduction, (x, group, out, reduction).
    plans: methods of its own, beside those of one hop.
    """
    name: str
    scatter: bool
    reduction: str | None
    library: Callable
    plans: dict = field(default_factory=dict)

    @property
    def methods(self) -> tuple:
        """Names that `method` may have, beside auto."""
        return tuple(dict.fromkeys(("one_shot", *self.plans, "push", "nccl")))

    @property
    def reduces(self) -> bool:
        """Whether what arrives is reduced, else moved."""
        return self.reduction is not None

    @cached_property
    def calls(self) -> _recent.Calls:
        """Its calls."""
        return _recent.Calls(self.name, "x out", partial(_checked, self), partial(_make_plan, self), "nccl")

    def out_shape(self, shape: tuple, world: int) -> tuple:
        """Of out, for x of `shape`: rows are along the first dimension."""
        if self.scatter and self.reduces:
            return (shape[0] // world, *shape[1:])
        if not self.scatter and not self.reduces:
            return (shape[0] * world, *shape[1:])
        return tuple(shape)

    def in_place(self, x: torch.Tensor, out: Any, group: Group) -> bool:
        """Whether out is x, or where one of them has one row, this rank's row of the other."""
        if not (isinstance(out, torch.Tensor) and checks.has_memory(x) and checks.has_memory(out) and x.is_contiguous()
                and out.is_contiguous() and x.dtype == out.dtype):
            return False
        shift = group.rank * min(x.numel(), out.numel()) * x.element_size() if x.numel() != out.numel() else 0
        return out.data_ptr() - x.data_ptr() == (shift if x.numel() > out.numel() else -shift)


def call(op: Collective, x: torch.Tensor, group: Any, out: torch.Tensor | None, method: str,
         reduction: Any = None) -> torch.Tensor | None:
    """One call of a collective. Returns out. Raises InvalidArgument before anything is sent.

    None for a call that is to be made as an operator (`_recent.Calls.known`).

    reduction: what the caller asks for; None where the op only moves elements.
    """
    known = op.calls.known((method, reduction), group, x, None, out)
    if known is None:
        return None
    if out is None:
        out = known.new_out()
    known.plan.run(known.group, x, out)
    return out


def _checked(op: Collective, group: Group, x: torch.Tensor, out: torch.Tensor | None, method: str, reduction: Any) -> dict:
    """Refuses bad arguments; of good ones, what all ranks must agree on."""
    checks.tensor("x", x, any_dtype=True)
    if x.ndim == 0 and (op.scatter or not op.reduces):
        raise InvalidArgument(f"x: expected at least 1 dimension for {op.name}, found a scalar; pass x.view(1)")
    if op.scatter and x.shape[0] % group.size:
        raise InvalidArgument(f"x: expected a number of rows that divides by the group size {group.size}, found {x.shape[0]}; "
                              "pad the rows")
    n, rows = x.numel() // (group.size if op.scatter else 1), 1 if op.reduces and not op.scatter else group.size
    checks.output("out", out, op.out_shape(tuple(x.shape), group.size), like=x, any_dtype=True)
    if not op.in_place(x, out, group):
        checks.no_overlap("out", out, x=x)
    checks.no_grad(x=x)
    unserved = None
    if op.reduces:
        reduction = sizes.reduction(reduction)
        if reduction == "avg" and x.dtype == torch.bool:
            raise InvalidArgument("op: 'avg' is of numbers, found torch.bool; convert x with .to()")
        unserved = None if x.dtype in sizes.REDUCED else f"kernels reduce no {x.dtype}"
    chosen = sizes.choose(op.name, method, op.methods, group, n * rows * x.element_size(), unserved)
    if n * rows * carrier_of(x.dtype)[1] >= 2**31 and chosen != "nccl":
        raise InvalidArgument(f"method: {method!r} carries fewer than 2^31 elements over all ranks, found shape {list(x.shape)}; "
                              "use 'auto' or 'nccl', or split the call")
    return dict(op=op.name, n=n, dtype=x.dtype, method=chosen, reduction=reduction)


def _make_plan(op: Collective, group: Group, agreed: dict, x: torch.Tensor, out: torch.Tensor | None) -> Any:
    """Decides how calls like this one run. Collective at the first use of a shape."""
    meet, method, op = _plan.agree_once(group, agreed), agreed["method"], replace(op, reduction=agreed["reduction"])
    shape = op.out_shape(tuple(x.shape), group.size)
    if group.size == 1 or agreed["n"] == 0:
        plan: Any = Alone()
    elif method == "nccl":
        plan = Library(op)
    else:
        out = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
        one_shot = OneHopSelfFlagged if op.reduces and x.dtype in sizes.SELF_FLAGGED else OneHopPackets
        make = op.plans.get(method) or {"one_shot": one_shot, "push": OneHopPush}[method]
        carrier, each = (x.dtype, 1) if op.reduces else carrier_of(x.dtype)
        plan = make(op, flat(x, carrier), flat(out, carrier), each * agreed["n"], group, meet)
        plan.copies, plan.carrier = not x.is_contiguous(), None if carrier == x.dtype else carrier
    plan.out_shape = shape
    return plan


class Alone(_plan.Plan):
    """One rank, or nothing to send."""

    def run(self, group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
        backend().before_torch()
        if out.data_ptr() != x.data_ptr():
            out.copy_(x)


class Library(_plan.Plan):
    """The group's own collective."""

    def __init__(self, op: Collective):
        self.op, self.captured = op, backend().is_capturing()                   # capture may be why it was chosen

    def run(self, group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
        backend().before_torch()
        if self.op.reduces:
            self.op.library(x.contiguous(), group, out, self.op.reduction)
        else:
            dtype = x.dtype if x.dtype in checks.DTYPES else torch.uint8        # libraries do not take them all
            self.op.library(flat(x, dtype), group, flat(out, dtype))


class Kernel(_plan.OnWorkspace):
    """One kernel on a workspace. Holds all that does not change from call to call.

    copies: whether x has gaps. carrier: the dtype that the kernel takes the tensors' bytes for, where that is not their own.
    """

    copies, carrier = False, None

    def __init__(self, space: CountedWorkspace, kernel: Any, programs: int, x: torch.Tensor, out: torch.Tensor, rest: tuple,
                 options: dict, meet: Callable[[], None]):
        super().__init__(space)
        self.launch = backend().prepare(kernel, (programs,), (x, out, *rest), dict(options, num_stages=1), varying=2)
        meet()

    def args(self, x: torch.Tensor, out: torch.Tensor) -> tuple:
        if self.carrier is not None:
            return flat(x, self.carrier), flat(out, self.carrier)
        return x.contiguous() if self.copies else x, out


class OneHopSelfFlagged(Kernel):
    """Self-flagged stores to every peer, of what is reduced in fp32."""

    def __init__(self, op: Collective, x: torch.Tensor, out: torch.Tensor, n: int, group: Group, meet: Callable[[], None]):
        vectors = sizes.vectors(n, x.dtype)
        programs, rounds, options = sizes.grid_of_vectors(vectors, group.size)
        space, slots, half = sizes.self_flagged(group, group.size * vectors)
        super().__init__(space, one_hop_self_flagged, programs, x, out,
                         (slots, half, space.control, team(group), n, vectors, rounds),
                         dict(options, SCATTER=op.scatter, OP=op.reduction, WORLD=group.size,
                              WHOLE=sizes.whole_vectors(n, x, out)), meet)


class OneHopPackets(Kernel):
    """Packets to every peer, of what must arrive bit by bit."""

    def __init__(self, op: Collective, x: torch.Tensor, out: torch.Tensor, n: int, group: Group, meet: Callable[[], None]):
        words = sizes.words(n, x.dtype)
        programs, options = sizes.grid_of_packets(words, group.size)
        space, slots, half = sizes.packets(group, group.size * words)
        super().__init__(space, one_hop_packets, programs, x, out, (slots, half, space.control, team(group), n, words),
                         dict(SCATTER=op.scatter, OP=op.reduction, **options, WHOLE=sizes.whole_words(n, x, out)), meet)


class OneHopPush(Kernel):
    """Plain stores to every peer, a flag behind each block."""

    def __init__(self, op: Collective, x: torch.Tensor, out: torch.Tensor, n: int, group: Group, meet: Callable[[], None]):
        blocks, programs, rounds, options = sizes.grid_of_blocks(n, x.dtype, group.size)
        space, data, flags = sizes.pushes(group, "one hop", x.dtype, group.size * blocks * options["BLOCK"],
                                                rounds * programs * group.size)
        super().__init__(space, one_hop_push, programs, x, out,
                         (data, data.numel() // 2, flags, flags.numel() // 2, space.control, team(group), n, blocks, rounds),
                         dict(SCATTER=op.scatter, OP=op.reduction, **options), meet)

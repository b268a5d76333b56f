# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Collectives in which every rank sends something to every rank: what they share as ops, and their plans."""
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.ops import registry
from triton_dist.ops.autograd.collectives import must_be_linear
from triton_dist.ops.calls import checks
from triton_dist.ops.calls.carriers import carrier_of, flat
from triton_dist.ops.calls.plans import OnWorkspace, Plan
from triton_dist.ops.exchange import sizes
from triton_dist.ops.exchange.kernels import one_hop_packets, one_hop_push, one_hop_self_flagged
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import CountedWorkspace, team


@dataclass(frozen=True, kw_only=True)
class Row(Agreed):
    """A rank sends n elements to each rank. reduction: what is done to what arrives; None: it is kept."""
    varies = "n"
    n: int
    reduction: str | None


class Collective(Op):
    """What distinguishes one collective from another.

    Attributes:
        scatter: whether x has a row for each rank; else all get the same.
        reduces: whether what arrives is reduced. Else out has a row from each rank, and elements are only moved, so that they may
            be of any dtype.
        steps: what "auto" takes, by number of ranks (the next larger one listed): (up to how many bytes of tensor, method); above
            the last, the group's own collective.
        packet_steps: the same for a reduction of data that travels in packets; None: steps. A packet is half flag, so stores with
            separate flags are faster from fewer bytes on.
    """

    methods = ("one_shot", "push", "unfused")
    scatter = reduces = False
    steps: dict
    packet_steps: dict | None = None

    def library(self, x: torch.Tensor, group: Group, out: torch.Tensor, *reduction: str) -> Any:
        """The group's own collective, on contiguous tensors. reduction: where the op reduces."""
        raise NotImplementedError

    def check(self, group: Group, x: torch.Tensor, out: torch.Tensor | None, method: str, reduction: Any = None) -> Row:
        checks.tensor("x", x, any_dtype=True)
        if x.ndim == 0 and (self.scatter or not self.reduces):
            raise InvalidArgument(f"x: expected at least 1 dimension for {self.name}, found a scalar; pass x.view(1)")
        if self.scatter and x.shape[0] % group.size:
            raise InvalidArgument(f"x: expected a number of rows divisible by the group size {group.size}, found "
                                  f"{x.shape[0]}; pad the rows")
        n = x.numel() // (group.size if self.scatter else 1)
        checks.output("out", out, self.out_shape(group.size, x), like=x, any_dtype=True)
        if not self.in_place(x, out, group):
            checks.no_overlap("out", out, x=x)
        checks.no_grad(x=x)
        unserved = None
        if self.reduces:
            reduction = sizes.reduction(reduction)
            if reduction == "avg" and x.dtype == torch.bool:
                raise InvalidArgument("op: 'avg' is of numbers, found torch.bool; convert x with .to()")
            unserved = None if x.dtype in sizes.REDUCED else f"kernels reduce no {x.dtype}"
        agreed = self._agreed(n, x.dtype, method, reduction, group, unserved)
        if self._bytes(n, x.dtype, group) // x.dtype.itemsize * carrier_of(x.dtype)[1] >= 2**31 and agreed.method != "unfused":
            raise InvalidArgument(f"method: {method!r} carries fewer than 2^31 elements over all ranks, found shape "
                                  f"{list(x.shape)}; use 'auto' or 'unfused', or split the call")
        return agreed

    def resized(self, agreed: Row, group: Group, x: torch.Tensor, asked: tuple) -> Row | None:
        n = x.numel() // (group.size if self.scatter else 1)
        known = 0 < self._bytes(n, x.dtype, group) < 2**31 and (x.dtype in sizes.REDUCED or not self.reduces)
        if not known or self.scatter and x.shape[0] % group.size:
            return None
        return self._agreed(n, x.dtype, asked[0], agreed.reduction, group)

    def _agreed(self, n: int, dtype: torch.dtype, method: str, reduction: str | None, group: Group,
                unserved: str | None = None) -> Row:
        steps = None if dtype in sizes.SELF_FLAGGED else self.packet_steps
        chosen, why = sizes.choose(self, method, group, self._bytes(n, dtype, group), unserved, steps)
        return Row(op=self.name, dtype=dtype, method=chosen, why=why, n=n, reduction=reduction)

    def _bytes(self, n: int, dtype: torch.dtype, group: Group) -> int:
        """Of the larger of x and out."""
        return n * dtype.itemsize * (1 if self.reduces and not self.scatter else group.size)

    def candidates(self, agreed: Row, group: Group) -> Sequence[Choice]:
        return [Choice("unfused" if group.size == 1 or not agreed.n else agreed.method)]

    def kind(self, method: str, agreed: Row, group: Group) -> type["Kernel"]:
        """The plans of a fused method."""
        if method == "push":
            return OneHopPush
        return OneHopSelfFlagged if self.reduces and agreed.dtype in sizes.SELF_FLAGGED else OneHopPackets

    def plan(self, choice: Choice, agreed: Row, group: Group, x: torch.Tensor, out: torch.Tensor | None) -> Plan:
        return self.kind(choice.method, agreed, group)(self, agreed, group)

    def unfused(self, agreed: Row, group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
        """The group's own collective; a copy where there is one rank, or nothing to send."""
        if group.size == 1 or not agreed.n:
            if out.data_ptr() != x.data_ptr():
                out.copy_(x)
        elif self.reduces:
            self.library(x.contiguous(), group, out, str(agreed.reduction))
        else:
            dtype = x.dtype if x.dtype in checks.DTYPES else torch.uint8        # libraries do not take them all
            self.library(flat(x, dtype), group, flat(out, dtype))

    def out_shape(self, world: int, x: torch.Tensor) -> tuple:
        """Rows are along the first dimension."""
        if self.scatter and self.reduces:
            registry.require(x.shape[0] % world == 0,
                             "x: expected a number of rows divisible by the group size; pad the rows")
            return (x.shape[0] // world, *x.shape[1:])
        if not self.scatter and not self.reduces:
            return (x.shape[0] * world, *x.shape[1:])
        return tuple(x.shape)

    def traffic(self, agreed: Row, group: Group) -> dict[int, int]:
        """Its row to every peer."""
        return sizes.to_peers(agreed.n * agreed.dtype.itemsize, False, group)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Row:
        """m x n: the larger of x and out. k does not matter."""
        each = 1 if self.reduces and not self.scatter else group.size
        return self._agreed(m * n // each, dtype, "auto", "sum" if self.reduces else None, group)

    def shape(self, agreed: Row, group: Group, local: int) -> Shape:
        return Shape(self.name, str(agreed.dtype).removeprefix("torch."), 1, agreed.n, 1)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return {"x": (m // group.size if not self.scatter and not self.reduces else m, n)}

    def recorded(self, given: dict) -> Any:
        if self.reduces:
            x, given["op"] = given["x"], sizes.reduction(given["op"])
            if x.requires_grad and torch.is_grad_enabled():
                must_be_linear(self.name, given["op"])
        return registry.call_recorded(self, given)

    def in_place(self, x: torch.Tensor, out: Any, group: Group) -> bool:
        """Whether out is x, or where one of them has one row, this rank's row of the other."""
        if not (isinstance(out, torch.Tensor) and checks.has_memory(x) and checks.has_memory(out) and x.is_contiguous()
                and out.is_contiguous() and x.dtype == out.dtype):
            return False
        shift = group.rank * min(x.numel(), out.numel()) * x.element_size() if x.numel() != out.numel() else 0
        return out.data_ptr() - x.data_ptr() == (shift if x.numel() > out.numel() else -shift)


class Kernel(OnWorkspace):
    """One kernel on a workspace. Holds all that does not change from call to call. A subclass makes room and arguments of it.

    n: elements to each rank, of the dtype that the kernel takes; `each` make one of the tensors. carrier: that dtype, where it is
    not the tensors' own: then their bytes are taken for it.
    """

    kernel: Any

    def __init__(self, op: Collective, agreed: Row, group: Group):
        self.op, self.group, self.reduction = op, group, agreed.reduction
        self.dtype, self.each = (agreed.dtype, 1) if op.reduces else carrier_of(agreed.dtype)
        self.carrier, self.n = None if self.dtype == agreed.dtype else self.dtype, self.each * agreed.n
        super().__init__(self.room())

    def room(self) -> CountedWorkspace:
        """The workspace, with room for a call. Sets programs and options, and of the kernel's arguments buffers and counts."""
        raise NotImplementedError

    def compile(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self.plain = self.carrier is None and x.is_contiguous()
        x, out = flat(x, self.dtype), flat(out, self.dtype)
        self.launch = backend().prepare(self.kernel, (self.programs,), (x, out, *self._rest(), *self.counts),
                                        dict(self.options, **self.whole(x, out), num_stages=1), varying=2)

    def resize(self, agreed: Row, x: torch.Tensor, out: torch.Tensor | None) -> tuple[tuple, dict] | None:
        if type(self) is not self.op.kind(self.choice.method, agreed, self.group):
            return None
        out = x if out is None else out                         # of which only the alignment matters, and is no worse
        options, whole = self.options, self.whole(x, out)
        self.n = self.each * agreed.n
        self.room()
        if self.options != options or self.whole(x, out) != whole:
            return None
        return (self.programs,), dict(enumerate(self.counts, 2 + len(self._rest())))

    def _rest(self) -> tuple:
        return *self.buffers, self.space.control, team(self.group)

    def whole(self, x: torch.Tensor, out: torch.Tensor) -> dict:
        """The option that depends on the tensors' addresses."""
        return {}

    def args(self, x: torch.Tensor, out: torch.Tensor) -> tuple:
        if self.carrier is not None:
            return flat(x, self.carrier), flat(out, self.carrier)
        return x.contiguous(), out


class SelfFlagged(Kernel):
    """Stores that are their own flags, of what is reduced in fp32."""

    def whole(self, x: torch.Tensor, out: torch.Tensor) -> dict:
        return dict(WHOLE=sizes.whole_vectors(self.n, x, out))


class Packets(Kernel):
    """Packets, of what must arrive bit by bit."""

    def whole(self, x: torch.Tensor, out: torch.Tensor) -> dict:
        return dict(WHOLE=sizes.whole_words(self.n, x, out))


class OneHopSelfFlagged(SelfFlagged):
    """Self-flagged stores to every peer."""

    @property
    def kernel(self) -> Any:
        return one_hop_self_flagged

    def room(self) -> CountedWorkspace:
        vectors, world = sizes.vectors(self.n, self.dtype), self.group.size
        self.programs, rounds, options = sizes.grid_of_vectors(vectors, world)
        space, slots, half = sizes.self_flagged(self.group, world * vectors)
        self.buffers, self.counts = (slots, half), (self.n, vectors, rounds)
        self.options = dict(options, SCATTER=self.op.scatter, OP=self.reduction, WORLD=world)
        return space


class OneHopPackets(Packets):
    """Packets to every peer."""

    @property
    def kernel(self) -> Any:
        return one_hop_packets

    def room(self) -> CountedWorkspace:
        words = sizes.words(self.n, self.dtype)
        self.programs, options = sizes.grid_of_packets(words, self.group.size)
        space, slots, half = sizes.packets(self.group, self.group.size * words)
        self.buffers, self.counts = (slots, half), (self.n, words)
        self.options = dict(options, SCATTER=self.op.scatter, OP=self.reduction)
        return space


class OneHopPush(Kernel):
    """Plain stores to every peer, a flag after each block."""

    @property
    def kernel(self) -> Any:
        return one_hop_push

    def room(self) -> CountedWorkspace:
        space, self.programs, self.buffers, blocks, options = sizes.pushes(self.group, "one hop", self.dtype, self.n)
        self.counts = self.n, *blocks
        self.options = dict(options, SCATTER=self.op.scatter, OP=self.reduction)
        return space

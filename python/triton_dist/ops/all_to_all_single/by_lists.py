# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_single of unequal parts that the hosts know, by the group's own collective.

No kernel of our own: the room that a rank needs is known to its host alone, and buffers that peers store into are agreed on.
"""
from dataclasses import dataclass, field
from typing import Any

import torch

from triton_dist.ops.calls import checks
from triton_dist.ops.calls.carriers import rows_of_bytes
from triton_dist.ops.op import Agreed, Op
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state


@dataclass(frozen=True, kw_only=True)
class Parts(Agreed):
    """A row has `row` elements. received, sent: rows from and for each rank, which differ between ranks."""
    row: int
    received: tuple = field(compare=False)
    sent: tuple = field(compare=False)


class ByLists(Op):
    """The calls of all_to_all_single with split sizes. Not an op of its own: it is not entered."""

    name, outputs = "all_to_all_single by lists", {"out": "sharded"}
    kept = False                    # no plan is kept: lists differ from call to call

    def check(self, group: Group, x: torch.Tensor, out: torch.Tensor | None, received: Any, sent: Any, method: str) -> Parts:
        checks.tensor("x", x, any_dtype=True)
        if x.ndim == 0:
            raise InvalidArgument("x: expected at least 1 dimension, the first of which is split, found a scalar; pass x.view(1)")
        if method not in ("auto", "unfused"):
            raise InvalidArgument(f"method: expected 'auto' or 'unfused' where there are split sizes, found {method!r}; "
                                  "all_to_all_vdev takes splits on the device")
        for name, sizes in (("output_split_sizes", received), ("input_split_sizes", sent)):
            if not isinstance(sizes, (list, tuple)) or len(sizes) != group.size:
                raise InvalidArgument(f"{name}: expected a list of {group.size} numbers of rows, found {sizes!r}; give both "
                                      "lists or none")
            for size in sizes:
                checks.size(name, size)
        if sum(sent) != x.shape[0]:
            raise InvalidArgument(f"input_split_sizes: expected {x.shape[0]} rows together, as x has, found {sum(sent)}")
        checks.output("out", out, (sum(received), *x.shape[1:]), like=x, any_dtype=True)
        checks.no_overlap("out", out, x=x)
        if out is not None:
            checks.no_grad(x=x)
        return Parts(op=self.name, dtype=x.dtype, method="unfused", row=x.shape[1:].numel(), received=tuple(received),
                     sent=tuple(sent))

    def unfused(self, agreed: Parts, group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
        """The group's own collective."""
        if state().debug:
            _must_match(group, agreed.received, agreed.sent)
        group.all_to_all_tensor(rows_of_bytes(out), rows_of_bytes(x), list(agreed.received), list(agreed.sent))

    def shape_of_out(self, agreed: Parts, group: Group, x: torch.Tensor, *_: torch.Tensor | None) -> tuple:
        return (sum(agreed.received), *x.shape[1:])


def _must_match(group: Group, received: tuple, sent: tuple) -> None:
    """Collective: raises on all ranks where one expects other rows than its peer has for it."""
    every = group.all_gather_object((received, sent))
    for receiver, (expected, _) in enumerate(every):
        for sender, (_, given) in enumerate(every):
            if expected[sender] != given[receiver]:
                raise InvalidArgument(
                    f"output_split_sizes: rank {group.world_ranks[receiver]} expects {expected[sender]} rows of rank "
                    f"{group.world_ranks[sender]}, whose input_split_sizes have {given[receiver]} for it")


BY_LISTS = ByLists()

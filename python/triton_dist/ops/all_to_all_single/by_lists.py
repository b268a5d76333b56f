# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_single of unequal parts that the hosts know, by the group's own collective.

No kernel of our own: the room that a rank needs is known to its host alone, and buffers that peers store into are agreed on.
"""
from typing import Any

import torch

from triton_dist.ops import _plan, _recent
from triton_dist.ops.calls import checks
from triton_dist.ops.calls.carriers import rows_of_bytes
from triton_dist.runtime import ambient
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.state import state

_NAME = "all_to_all_single by lists"


def all_to_all_by_lists(x: torch.Tensor, output_split_sizes: Any, input_split_sizes: Any, group: Any, out: torch.Tensor | None,
                        method: str) -> torch.Tensor | None:
    """One call. Returns out, or None where it is to be made as an operator. Raises InvalidArgument before anything is sent."""
    if ambient.is_recorded((x, out)):
        return None
    members = resolve(group)
    _plan.checked(_NAME, members, lambda: ambient.refuse(_NAME, (x, out)))
    agreed = _plan.checked(_NAME, members, lambda: _checked(x, output_split_sizes, input_split_sizes, members, out, method))
    if _recent.wants_grad((x,)) and out is None:
        return None
    _plan.same_call(members, agreed)                    # no plan is kept: lists differ from call to call
    _plan.agree_once(members, agreed)
    if state().debug:
        _must_match(members, output_split_sizes, input_split_sizes)
    if out is None:
        out = torch.empty((sum(output_split_sizes), *x.shape[1:]), dtype=x.dtype, device=x.device)
    backend().before_torch()
    members.all_to_all_tensor(rows_of_bytes(out), rows_of_bytes(x), list(output_split_sizes), list(input_split_sizes))
    return out


def _checked(x: torch.Tensor, output_split_sizes: Any, input_split_sizes: Any, group: Group, out: torch.Tensor | None,
             method: str) -> dict:
    """Refuses bad arguments; of good ones, what all ranks must agree on."""
    checks.tensor("x", x, any_dtype=True)
    if x.ndim == 0:
        raise InvalidArgument("x: expected at least 1 dimension, the first of which is split, found a scalar; pass x.view(1)")
    if method not in ("auto", "nccl"):
        raise InvalidArgument(f"method: expected 'auto' or 'nccl' where there are split sizes, found {method!r}; all_to_all_vdev "
                              "takes splits on the device")
    for name, sizes in (("output_split_sizes", output_split_sizes), ("input_split_sizes", input_split_sizes)):
        if not isinstance(sizes, (list, tuple)) or len(sizes) != group.size:
            raise InvalidArgument(f"{name}: expected a list of {group.size} numbers of rows, found {sizes!r}; give both lists or "
                                  "none")
        for size in sizes:
            checks.size(name, size)
    if sum(input_split_sizes) != x.shape[0]:
        raise InvalidArgument(f"input_split_sizes: expected {x.shape[0]} rows together, as x has, found {sum(input_split_sizes)}")
    checks.output("out", out, (sum(output_split_sizes), *x.shape[1:]), like=x, any_dtype=True)
    checks.no_overlap("out", out, x=x)
    if out is not None:
        checks.no_grad(x=x)
    return dict(op=_NAME, row=x.shape[1:].numel(), dtype=x.dtype, method="nccl")


def _must_match(group: Group, output_split_sizes: Any, input_split_sizes: Any) -> None:
    """Collective: raises on all ranks where one expects other rows than its peer has for it."""
    every = group.all_gather_object((list(output_split_sizes), list(input_split_sizes)))
    for receiver, (expected, _) in enumerate(every):
        for sender, (_, given) in enumerate(every):
            if expected[sender] != given[receiver]:
                raise InvalidArgument(
                    f"output_split_sizes: rank {group.world_ranks[receiver]} expects {expected[sender]} rows of rank "
                    f"{group.world_ranks[sender]}, whose input_split_sizes have {given[receiver]} for it")

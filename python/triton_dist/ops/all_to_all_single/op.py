# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_single: the op and its call."""
from typing import Any

import torch

from triton_dist.ops.all_to_all_single.by_lists import BY_LISTS
from triton_dist.ops.all_to_all_single.unfused import all_to_all_single_unfused
from triton_dist.ops.autograd import collectives as gradients
from triton_dist.ops.exchange.collective import Collective
from triton_dist.ops.exchange.sizes import MIB
from triton_dist.ops.registry import Gradient
from triton_dist.runtime.groups import Group


class AllToAllSingle(Collective):
    """Every rank's rows for every rank."""

    name, outputs = "all_to_all_single", {"out": "sharded"}
    schema = "(Tensor x, SymInt[]? output_split_sizes, SymInt[]? input_split_sizes, str group, str method) -> Tensor"
    gradient = Gradient(gradients.keep, gradients.all_to_all_single_backward)
    scatter = True
    steps = {64: ((1 * MIB, "one_shot"), (256 * MIB, "push"))}

    def library(self, x: torch.Tensor, group: Group, out: torch.Tensor) -> torch.Tensor:
        return all_to_all_single_unfused(x, group, out)

    def fake(self, **call: Any) -> torch.Tensor:
        x, sizes = call["x"], call["output_split_sizes"]
        return x.new_empty(x.shape if sizes is None else (sum(sizes), *x.shape[1:]))


ALL_TO_ALL_SINGLE = AllToAllSingle()


@ALL_TO_ALL_SINGLE.public
def all_to_all_single(x: torch.Tensor, *, output_split_sizes: list | None = None, input_split_sizes: list | None = None,
                      group: Any = None, out: torch.Tensor | None = None, method: str = "auto") -> torch.Tensor:
    """Rows of x for every rank: out has those that each rank had for this one. Collective over `group`.

    Args:
        x: of any dtype, [W * rows, ...] on `triton_dist.device()`. Equal shape and dtype on all ranks.
        output_split_sizes, input_split_sizes: numbers of rows from each rank and for each rank, as torch's all_to_all_single
            takes them; then rows may differ between ranks, and the group's own collective serves the call. None: all equal.
            What a rank expects must be what its peer has for it: TRITON_DIST_DEBUG=1 compares. Splits that only the device
            knows: all_to_all_vdev.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous, of x's shape and dtype (with split sizes: of their sum of rows), or None to allocate. `out=x` exchanges
            in place, without split sizes; else they must not overlap.
        method: "one_shot" (packets that carry their own flag: the lowest latency), "push" (plain stores and flags, for large
            tensors), "unfused" (the group's own collective) or "auto" (by size, from measurements). The same on all ranks.

    Returns out, rows in the order of the ranks that sent them.
    The gradient (without `out`) is the exchange back.
    In graphs: as all_reduce. Raises InvalidArgument before anything is sent.

    Example:
        received = all_to_all_single(x)                     # rows [rank * rows:] of x go to that rank
    """
    if output_split_sizes is not None or input_split_sizes is not None:
        done = BY_LISTS.call((output_split_sizes, input_split_sizes, method), group, x, out)
    else:
        done = ALL_TO_ALL_SINGLE.call((method, None), group, x, out)
    return done if done is not None else ALL_TO_ALL_SINGLE.record(
        x=x, output_split_sizes=output_split_sizes, input_split_sizes=input_split_sizes, group=group, out=out, method=method)

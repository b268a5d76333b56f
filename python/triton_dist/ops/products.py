# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the ops that multiply have in common on the host: methods, the rule without figures, predictions, traffic over nodes."""
from dataclasses import replace
from typing import Any, Callable, Sequence

import torch

from triton_dist.ops.calls import possible
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state


def product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None, step: int = 1) -> torch.Tensor:
    """x [M, K] @ weight^T for weight [N, K], by torch. All M of an op are multiples of `step`."""
    asked = state().products
    if asked is not None and not backend().is_capturing():
        asked.note(x, weight, step)
    return torch.matmul(x, weight.t(), out=out)


def part(total: int, group: Group) -> int:
    """This rank's part of `total`; where it does not divide, the first ranks have one more."""
    return total // group.size + (group.rank < total % group.size)


def resolved(op: Any, agreed: Any, group: Group, needs_stream_memory_ops: bool, uncaptured: str, core: Any) -> Any:
    """`agreed` by a method that is possible: an "auto" that can be nothing else is "unfused", which is warned of once.

    uncaptured: why a call without a plan cannot be captured. core: the device's, if it serves the call.
    """
    reason = None if agreed.method == possible.UNFUSED else possible.no_kernel_over_nodes(
        group, needs_stream_memory_ops, uncaptured)
    method, why = op.possible(agreed.method, reason)
    if method == "ws" and core is None:
        raise InvalidArgument(f"method: 'ws' needs a device with a warp-specialised core for {op.name}, 2-byte operands and rows "
                              "of a multiple of 16 bytes; use 'auto' or 'portable'")
    if why:
        op.warn_unfused(why)
        return replace(agreed, method=method, why=why)
    return agreed


def rule(op: Any, agreed: Any, group: Group, ways: Sequence[Choice], bytes_in: int,
         scatters: bool = False) -> tuple[Choice, str]:
    """(the way to take where none has been measured, why). bytes_in: what the collective brings to each rank, a reduce-scatter
    where it `scatters`, else an all-gather."""
    usual = {choice.method: choice for choice in reversed(ways)}                # the first of each method
    if len(usual) == 1:
        return ways[0], agreed.why or "it is what this method does without figures"
    if possible.UNFUSED in usual and not possible.fusing_pays(group.size, bytes_in, scatters):
        return usual[possible.UNFUSED], f"the collective brings only {bytes_in / 1e6:.1f} MB to a rank"
    reason = (f"the collective's {bytes_in / 1e6:.1f} MB a rank hide behind the GEMM" if backend().machine_model() else
              "the device has not been measured, and fusing is what it usually gains by")
    if "scatter" in usual and not possible.switched():
        return usual["scatter"], reason + ", and there is no switch: each peer has a link of its own"
    return usual["ws" if "ws" in usual and backend().core(op.name).preferred else "portable"], reason


def estimates(model: Callable, agreed: Any, group: Group, ways: Sequence[Choice], m: int, n: int, k: int) -> dict:
    """{way: its predicted Estimate} for x [m, .] and weight [n, k] of a rank, by a model of all methods; {} without one."""
    machine, found = backend().machine_model(), {}
    if machine is None or possible.across_nodes(group):         # rates are those inside a node
        return {}
    for way in ways:
        config = way.config or backend().gemm_config(agreed.dtype, m)           # of the unfused method it says nothing
        methods = model(machine, m, n, k, group.size, agreed.dtype.itemsize, config, way.method == "ws")
        found[way] = next(each for each in methods if each.method == way.method)
    return found


def gathered_over_nodes(group: Group, nbytes: int) -> dict[int, int]:
    """Bytes to each rank: a part to the equal place of each other node, and of each node one to every rank of the own."""
    nodes, me, place = group.nodes, group.rank, group.local_rank
    beside = [index for index in nodes[group.node] if index != me]
    across = [members[place] for members in nodes if members is not nodes[group.node]]
    found = {**dict.fromkeys(beside, len(nodes) * nbytes), **dict.fromkeys(across, nbytes)}
    return {group.world_ranks[index]: each for index, each in found.items()}


def summed_over_nodes(group: Group, nbytes: int) -> dict[int, int]:
    """Bytes to each rank: a chunk to the equal place of each other node, and all nodes' chunks along the own node's ring."""
    nodes, place = group.nodes, group.local_rank
    own = nodes[group.node]
    across = [members[place] for members in nodes if members is not own]
    following = {own[(place + 1) % len(own)]: (len(own) - 1) * len(nodes) * nbytes} if len(own) > 1 else {}
    return {group.world_ranks[index]: each for index, each in (*following.items(), *dict.fromkeys(across, nbytes).items())}


def check_columns(x: torch.Tensor, weight: torch.Tensor) -> None:
    """weight [N, K_local] has a column for each of x [M, K_local]."""
    if weight.shape[1] != x.shape[1]:
        raise InvalidArgument(f"weight: expected [N, {x.shape[1]}] to match x {list(x.shape)}, found {list(weight.shape)}; it "
                              "has a row for each output column, as in nn.Linear")

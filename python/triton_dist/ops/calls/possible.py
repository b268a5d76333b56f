# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which methods are possible where a call is made. The answers are equal on all ranks, since all that enters is."""
import torch

from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.heap import heap
from triton_dist.runtime.state import state

UNFUSED = "unfused"             # the way of each op that runs anywhere: the group's own collective and torch's product
# The words of `method` over all ops, beside "auto".
METHODS = {
    "ws": "fused; the device's own warp-specialised GEMM core",
    "portable": "fused; a Triton kernel that runs on every device",
    "scatter": "fused; a Triton kernel that stores each tile straight to the rank that sums it: for machines without a switch",
    "packets": "fused; tiles of a product of few rows travel in packets that carry their own flag",
    "ring": "two fused ops: the product with a reduce-scatter, then an all-gather",
    "one_shot": "one kernel, everything to everyone in data that is its own flag, or in packets: the lowest latency",
    "two_shot": "the same in two hops: each rank reduces a part and sends the result",
    "self_flagged": "one kernel, a row to each rank that needs it in data that is its own flag: the lowest latency",
    "push": "one kernel, plain stores and separate flags: for large tensors",
    "two_level": "SHMEM between nodes, loads and stores inside each",
    UNFUSED: "torch's product and the group's own collective, one after the other",
}
BEFORE_CAPTURE = "it has not run with these arguments before this graph capture"


def across_nodes(group: Group) -> bool:
    """Whether loads and stores do not reach all members."""
    return group.size > 1 and not (state().heap or heap()).reachable(group)


def no_kernel(group: Group) -> str | None:
    """Why no kernel that loads and stores peers' memory can serve a call that has no plan yet; None where one can."""
    if across_nodes(group):
        return f"not all of ranks {list(group.world_ranks)} can load and store each other's memory"
    return BEFORE_CAPTURE if backend().is_capturing() else None


def no_kernel_over_nodes(group: Group, needs_stream_memory_ops: bool, uncaptured: str = BEFORE_CAPTURE) -> str | None:
    """The same of kernels that serve several nodes as well. uncaptured: why a call without a plan cannot be captured."""
    if backend().is_capturing():
        return "it cannot be captured over nodes" if across_nodes(group) else uncaptured
    if across_nodes(group):
        if group.ranks_per_node is None:
            return f"ranks {list(group.world_ranks)} are not equally many of each node, side by side"
        if (reason := backend().no_shmem()) is not None:
            return f"ranks {list(group.world_ranks)} are on {len(group.nodes)} nodes, and {reason}"
    elif needs_stream_memory_ops and group.size > 1 and not backend().has_stream_memory_ops():
        return "this device has no stream memory operations"
    return None


def fusing_pays(world: int, bytes_in: int, scatters: bool = False) -> bool:
    """Whether hiding an all-gather, or a reduce-scatter, of `bytes_in` bytes a rank has been measured to pay.

    Only what all ranks agree on enters: the size of the other operand may differ between them.
    """
    machine = backend().machine_model()
    if machine is None or world == 1:
        return True
    return bytes_in >= (machine.fuse_scatter_bytes if scatters else machine.fuse_gather_bytes)


def switched() -> bool:
    """Whether one peer can have the whole rate of a device's links. So it is where nothing else is known."""
    machine = backend().machine_model()
    return machine is None or machine.switched


def precision(dtype: torch.dtype) -> str:
    """tl.dot's input_precision: fp32 follows torch's allow_tf32."""
    return "tf32" if dtype == torch.float32 and backend().allow_tf32() else "ieee"

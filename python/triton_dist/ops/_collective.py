# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the collectives share: which method serves a call, and how packets are laid over programs and threads."""
from typing import Any

import torch

from triton_dist.ops import _plan
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import MAX_PROGRAMS, CountedWorkspace, workspace

KIB, MIB = 1 << 10, 1 << 20
WORD = 8                                # bytes of data in a pair of packets, which takes twice as many
MOST_PACKET_BYTES = 64 * MIB            # of a tensor that packets may carry; addresses of packets fit int32

# What "auto" takes, by op and by number of ranks (the next larger one listed): (up to how many bytes of tensor, method); above
# the last, "nccl". From measurements on 2 and 4 GPUs, rows for more are extrapolated.
STEPS = {
    "all_reduce": {
        2: ((512 * KIB, "one_shot"), (8 * MIB, "push")),
        4: ((64 * KIB, "one_shot"), (1 * MIB, "two_shot"), (8 * MIB, "push")),
        64: ((32 * KIB, "one_shot"), (1 * MIB, "two_shot"), (8 * MIB, "push")),
    },
}


def by_size(op: str, world: int, nbytes: int) -> str:
    """The method that `auto` takes for a tensor of `nbytes` on `world` ranks."""
    steps = next(steps for most, steps in STEPS[op].items() if world <= most)
    return next((method for most, method in steps if nbytes <= most), "nccl")


def choose(op: str, method: Any, methods: tuple, group: Group, nbytes: int) -> str:
    """The method of a call that has no plan yet. Every argument is equal on all ranks, so the answer is.

    Inside graph capture kernels run by plans that are there already: without one, auto is "nccl".
    """
    if not isinstance(method, str) or method not in ("auto", *methods):
        raise InvalidArgument(f"method: expected one of auto, {', '.join(methods)}, found {method!r}; leave it out for 'auto'")
    reason = None
    if _plan.across_nodes(group):
        reason = _plan.unreachable(group)
    elif backend().is_capturing():
        reason = "it has not run with these arguments before this graph capture"
    if reason is not None and method not in ("auto", "nccl"):
        raise InvalidArgument(f"method: {method!r} is not possible here: {reason}; use 'auto' or 'nccl'")
    if method == "auto":
        method = "nccl" if reason is not None else by_size(op, group.size, nbytes)
    elif method.endswith("_shot") and nbytes > MOST_PACKET_BYTES:
        raise InvalidArgument(f"method: {method!r} carries at most {MOST_PACKET_BYTES} bytes, found {nbytes}; use 'push' or "
                              "'nccl'")
    return method


def packets(group: Group) -> CountedWorkspace:
    """The workspace of everything that packets carry on `group`: each op that uses it has every rank send to every peer."""
    return workspace(group, "packets", CountedWorkspace)


def pushes(group: Group) -> CountedWorkspace:
    """The workspace of data that plain stores push; a word of it may look like a packet, so it is another one."""
    return workspace(group, "pushes", CountedWorkspace)


def power_of_two(value: int) -> int:
    """`value`, at least 1, rounded up to a power of two."""
    return 1 << (value - 1).bit_length()


def grid_of_packets(words: int, ranks: int) -> tuple[int, int]:
    """(programs, warps a program) for `words` words that each of `ranks` lanes exchanges with a rank of its own.

    One pair of packets a thread, on all SMs, in as few warps as that takes; more pairs a thread where that is not enough.
    """
    threads, sms = words * ranks, backend().num_sms()
    warps = 4
    while warps * backend().warp_size < 1024 and warps * backend().warp_size * sms < threads:
        warps *= 2
    programs = -(-threads // (warps * backend().warp_size))
    return max(1, min(programs, sms, MAX_PROGRAMS)), warps


def whole_words(*tensors: torch.Tensor) -> bool:
    """Whether contiguous tensors consist of whole words at multiples of their size."""
    return all(t.data_ptr() % WORD == 0 and t.numel() * t.element_size() % WORD == 0 for t in tensors)

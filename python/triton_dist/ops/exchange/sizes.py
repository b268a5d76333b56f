# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the collectives share: which method serves a call, and how packets are laid over programs and threads."""
from typing import Any

import torch

from triton_dist.ops import _plan
from triton_dist.ops.calls import checks
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import MAX_PROGRAMS, CountedWorkspace, SelfFlaggedWorkspace, workspace

KIB, MIB = 1 << 10, 1 << 20
WORD = 8                                # bytes of data in a pair of packets, which takes twice as many
REDUCTIONS = ("sum", "avg", "max", "min")
SELF_FLAGGED = checks.DTYPES            # dtypes of which a word of zeros can be marked: all are reduced in fp32
REDUCED = (*checks.DTYPES, torch.float64, torch.int32, torch.int64)         # dtypes that kernels reduce
VECTOR = 16                             # bytes of data in a self-flagged store
MOST_EACH = 4                           # vectors that a thread holds at a time
MOST_PACKET_BYTES = 64 * MIB            # of a tensor that packets may carry; addresses of packets fit int32

# What "auto" takes, by op and by number of ranks (the next larger one listed): (up to how many bytes of tensor, method); above
# the last, the group's own collective. Measured on 4 and 2 H200 up to 256 MiB (all_reduce 128); larger worlds are extrapolated.
STEPS = {
    "all_reduce": {
        2: ((2 * MIB, "one_shot"), (16 * MIB, "two_shot"), (256 * MIB, "push")),
        4: ((64 * KIB, "one_shot"), (1 * MIB, "two_shot"), (256 * MIB, "push")),
        64: ((32 * KIB, "one_shot"), (1 * MIB, "two_shot"), (8 * MIB, "push")),
    },
    "all_gather": {64: ((1 * MIB, "one_shot"), (256 * MIB, "push"))},
    "reduce_scatter": {2: ((32 * MIB, "one_shot"), (256 * MIB, "push")), 64: ((1 * MIB, "one_shot"), (256 * MIB, "push"))},
    "all_to_all_single": {64: ((1 * MIB, "one_shot"), (256 * MIB, "push"))},
    "all_to_all_vdev": {64: ((1 << 62, "push"),)},
    "all_reduce_rmsnorm": {2: ((16 * MIB, "one_shot"),), 64: ((64 * KIB, "one_shot"), (8 * MIB, "two_shot"))},
}


def by_size(op: str, world: int, nbytes: int, above: str = "nccl") -> str:
    """The method that `auto` takes for a tensor of `nbytes` on `world` ranks; `above` the last step, that one."""
    steps = next(steps for most, steps in STEPS[op].items() if world <= most)
    return next((method for most, method in steps if nbytes <= most), above)


def choose(op: str, method: Any, methods: tuple, group: Group, nbytes: int, unserved: str | None = None) -> str:
    """The method of a call that has no plan yet. Every argument is equal on all ranks, so the answer is.

    unserved: why no kernel serves it, if none does wherever it runs.
    The last of `methods` runs anywhere: auto is that one where no kernel can run, and inside graph capture without a plan.
    """
    anywhere = methods[-1]
    if not isinstance(method, str) or method not in ("auto", *methods):
        raise InvalidArgument(f"method: expected one of auto, {', '.join(methods)}, found {method!r}; leave it out for 'auto'")
    reason = unserved or _plan.no_kernel(group)
    if reason is not None and method not in ("auto", anywhere):
        raise InvalidArgument(f"method: {method!r} is not possible here: {reason}; use 'auto' or {anywhere!r}")
    if method == "auto":
        method = anywhere if reason is not None else by_size(op, group.size, nbytes, anywhere)
    elif method.endswith("_shot") and nbytes > MOST_PACKET_BYTES:
        others = " or ".join(repr(name) for name in methods if not name.endswith("_shot"))
        raise InvalidArgument(f"method: {method!r} carries at most {MOST_PACKET_BYTES} bytes, found {nbytes}; use {others}")
    return method


def reduction(op: Any) -> str:
    """The name of `op` as users give it: a name, or one of torch's ReduceOp."""
    name = op if isinstance(op, str) else getattr(op, "name", getattr(op, "__name__", None))
    name = name.lower() if isinstance(name, str) else name
    if name not in REDUCTIONS:
        raise InvalidArgument(f"op: expected one of {', '.join(REDUCTIONS)}, found {op!r}; use torch.distributed for others")
    return name


def words(n: int, dtype: torch.dtype) -> int:
    """Words that `n` elements take."""
    return -(-n * dtype.itemsize // WORD)


def whole_words(n: int, *tensors: torch.Tensor) -> bool:
    """Whether rows of `n` elements of contiguous tensors consist of whole words at multiples of their size."""
    return all(t.data_ptr() % WORD == 0 and n * t.element_size() % WORD == 0 for t in tensors)


def vectors(n: int, dtype: torch.dtype) -> int:
    """Vectors that `n` elements take."""
    return -(-n * dtype.itemsize // VECTOR)


def whole_vectors(n: int, *tensors: torch.Tensor) -> bool:
    """Whether rows of `n` elements of contiguous tensors consist of whole vectors at multiples of their size."""
    return all(t.data_ptr() % VECTOR == 0 and n * t.element_size() % VECTOR == 0 for t in tensors)


def self_flagged(group: Group, count: int) -> tuple[CountedWorkspace, torch.Tensor, int]:
    """(workspace, int32 slots, slots of a buffer) of what self-flagged stores carry on `group`, with room for `count` vectors.

    All ops share it, since each has every rank send to every peer and empties what it takes. It grows to powers of two.
    """
    space = workspace(group, "self-flagged", SelfFlaggedWorkspace)
    space.reserve(power_of_two(VECTOR * count))
    slots = space.data.view(torch.int32)
    return space, slots, slots.numel() // 2


def packets(group: Group, pairs: int) -> tuple[CountedWorkspace, torch.Tensor, int]:
    """(workspace, slots, slots of a half) of what packets carry on `group`, with room for `pairs` in a half.

    All ops share it, since each has every rank send to every peer. It grows to powers of two, so that it moves seldom.
    """
    space = workspace(group, "packets", CountedWorkspace)
    space.reserve(power_of_two(2 * WORD * pairs))
    slots = space.data.view(torch.int64)
    return space, slots, slots.numel() // 2


def pushes(group: Group, hops: str, dtype: torch.dtype, elements: int, flags: int) -> tuple:
    """(workspace, data, flags) of what plain stores push on `group`, with room for `elements` and `flags` in a half.

    Not that of packets, since a word of data may look like one. Ops that push in one hop share one, and so do those of two.
    """
    space = workspace(group, f"pushes in {hops}", CountedWorkspace)
    space.reserve(elements * dtype.itemsize, 2 * flags,
                  writer=lambda flag: flag % (space.flags.numel() // 2) % group.size)
    return space, space.data.view(dtype), space.flags


def power_of_two(value: int) -> int:
    """`value`, at least 1, rounded up to a power of two."""
    return 1 << (value - 1).bit_length()


def grid_of_packets(words: int, world: int) -> tuple[int, dict]:
    """(programs, options) for `words` words that each of `world` lanes, rounded up, exchanges with a rank of its own.

    One pair of packets a thread, on all SMs, in as few warps as that takes; more pairs a thread where that is not enough.
    """
    ranks, lanes, sms = power_of_two(world), backend().warp_size, backend().num_sms()
    warps = 4
    while warps * lanes < 1024 and warps * lanes * sms < words * ranks:
        warps *= 2
    programs = max(1, min(-(-words * ranks // (warps * lanes)), sms, MAX_PROGRAMS))
    return programs, dict(WORLD=world, RANKS=ranks, THREADS=warps * lanes, num_warps=warps)


def most_programs() -> int:
    """Of a kernel of self-flagged stores: one on each SM, as far as the epoch is counted."""
    return min(backend().num_sms(), SelfFlaggedWorkspace.control_words)


def grid_of_vectors(count: int, world: int) -> tuple[int, int, dict]:
    """(programs, rounds, options) for `count` vectors that are sent to every peer.

    One vector a thread on all SMs, in as few warps as that takes; then more vectors a thread, all sent before one is awaited.
    With more ranks a thread needs more registers.
    """
    lanes, programs = backend().warp_size, most_programs()
    most_threads, most_each = (1024, MOST_EACH) if world == 2 else (512, MOST_EACH if world <= 4 else 1)
    warps, each = 4, 1
    while warps * lanes < most_threads and warps * lanes * programs < count:
        warps *= 2
    while each < most_each and warps * lanes * programs * each < count:
        each *= 2
    programs = max(1, min(-(-count // (warps * lanes * each)), programs))
    rounds = -(-count // (warps * lanes * each * programs))
    return programs, rounds, dict(THREADS=warps * lanes, EACH=each, num_warps=warps)


def grid_of_blocks(n: int, dtype: torch.dtype, world: int) -> tuple[int, int, int, dict]:
    """(blocks, programs, rounds, options) of a push of `n` elements to each of `world` ranks.

    Sizes are those that were fastest for all_reduce on 2 and on 4 H200, with 0.25 to 128 MiB to a rank. Of two programs on an SM
    one stores while the other waits.
    """
    small = n * dtype.itemsize < 2 * MIB
    if world == 2:
        block_bytes, warps = (8 * KIB, 8) if small else (16 * KIB, 16)
    else:
        block_bytes, warps = 4 * KIB if small else 8 * KIB, 8
    block = min(block_bytes // dtype.itemsize, power_of_two(n))
    blocks = -(-n // block)
    programs = min(blocks, 2 * backend().num_sms(), MAX_PROGRAMS)
    return blocks, programs, -(-blocks // programs), dict(WORLD=world, RANKS=power_of_two(world), BLOCK=block, num_warps=warps)

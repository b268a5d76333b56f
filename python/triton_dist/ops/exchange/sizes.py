# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Sizes that the collectives share: which method serves a call, and how packets are laid over programs and threads."""
from typing import Any

import torch

from triton_dist.ops.calls import checks
from triton_dist.ops.calls.possible import UNFUSED, no_kernel
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


def by_size(steps: dict, world: int, nbytes: int) -> tuple[str, str]:
    """(the method that "auto" takes for a tensor of `nbytes` on `world` ranks, why). See Collective.steps.

    Steps were measured on 4 and 2 H200 up to 256 MiB (all_reduce 128); those of larger worlds are extrapolated.
    """
    for worlds, found in steps.items():
        if world <= worlds:
            break
    for most, method in found:
        if nbytes <= most:
            return method, f"{nbytes} bytes are no more than {most}"
    return UNFUSED, f"{nbytes} bytes are more than {most}"


def choose(op: Any, method: Any, group: Group, nbytes: int, unserved: str | None = None,
           steps: dict | None = None) -> tuple[str, str]:
    """(the method of a call that has no plan yet, why, for an "auto"). Every argument is equal on all ranks, so the answer is.

    unserved: why no kernel serves it, if none does wherever it runs. steps: where they are not the op's usual ones.
    "auto" is the unfused method where no kernel can run, and inside graph capture without a plan.
    """
    chosen, why = op.possible(method, unserved or no_kernel(group))
    if chosen == "auto":
        return by_size(steps or op.steps, group.size, nbytes)
    if chosen.endswith("_shot") and nbytes > MOST_PACKET_BYTES:
        others = " or ".join(repr(name) for name in op.methods if not name.endswith("_shot"))
        raise InvalidArgument(f"method: {method!r} carries at most {MOST_PACKET_BYTES} bytes, found {nbytes}; use {others}")
    return chosen, why


def to_peers(nbytes: int, two_hops: bool, group: Group) -> dict[int, int]:
    """Bytes to each other rank of what all of them get; in two hops each gets a part, and sends its result."""
    nbytes = 2 * -(-nbytes // group.size) if two_hops else nbytes
    return {rank: nbytes for rank in group.world_ranks if rank != group.world_ranks[group.rank]}


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
    for t in tensors:
        if t.data_ptr() % WORD or n * t.element_size() % WORD:
            return False
    return True


def vectors(n: int, dtype: torch.dtype) -> int:
    """Vectors that `n` elements take."""
    return -(-n * dtype.itemsize // VECTOR)


def whole_vectors(n: int, *tensors: torch.Tensor) -> bool:
    """Whether rows of `n` elements of contiguous tensors consist of whole vectors at multiples of their size."""
    for t in tensors:
        if t.data_ptr() % VECTOR or n * t.element_size() % VECTOR:
            return False
    return True


def self_flagged(group: Group, count: int) -> tuple[CountedWorkspace, torch.Tensor, int]:
    """(workspace, int32 slots, slots of a buffer) of what self-flagged stores carry on `group`, with room for `count` vectors.

    All ops share it, since each has every rank send to every peer and empties what it takes. It grows to powers of two.
    """
    space = workspace(group, "self-flagged", SelfFlaggedWorkspace)
    space.reserve(power_of_two(VECTOR * count))
    return space, *whole(space, torch.int32)


def packets(group: Group, pairs: int) -> tuple[CountedWorkspace, torch.Tensor, int]:
    """(workspace, slots, slots of a half) of what packets carry on `group`, with room for `pairs` in a half.

    All ops share it, since each has every rank send to every peer. It grows to powers of two, so that it moves seldom.
    """
    space = workspace(group, "packets", CountedWorkspace)
    space.reserve(power_of_two(2 * WORD * pairs))
    return space, *whole(space, torch.int64)


def pushes(group: Group, hops: str, dtype: torch.dtype, part: int) -> tuple:
    """(workspace, programs, buffers and flags, (blocks, rounds), options) of kernels that push by plain stores.

    part: elements that each rank gets in a hop.
    Not the workspace of packets, since a word of data may look like one. Ops that push in one hop share one, and so do those of
    two.
    """
    blocks, programs, rounds, options = grid_of_blocks(part, dtype, group.size)
    space = workspace(group, f"pushes in {hops}", CountedWorkspace)
    space.reserve(group.size * blocks * options["BLOCK"] * dtype.itemsize, 2 * rounds * programs * group.size,
                  writer=lambda flag: flag % (space.flags.numel() // 2) % group.size)
    return space, programs, (*whole(space, dtype), space.flags, space.flags.numel() // 2), (blocks, rounds), options


def whole(space: CountedWorkspace, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
    """(both halves of a workspace as `dtype`, elements of one)."""
    return space.derived(("whole", dtype), lambda: (space.data.view(dtype), space.half_bytes // dtype.itemsize))


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


def most_programs(an_sm: int = 1) -> int:
    """Of a kernel of self-flagged stores: so many on each SM, as far as the epoch is counted."""
    return min(an_sm * backend().num_sms(), SelfFlaggedWorkspace.control_words)


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

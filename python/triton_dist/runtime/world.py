# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Joining and leaving a world: process group, device, symmetric heap, context."""
import atexit
import gc
import logging
import math
import os
import sys
from datetime import timedelta
from functools import cache
from itertools import count
from threading import get_ident
from typing import Any, Mapping

import torch

from triton_dist.runtime import ambient, threads
from triton_dist.runtime.backend import backend
from triton_dist.runtime.console import whole_lines
from triton_dist.runtime.context import MAX_WORLD, Context
from triton_dist.runtime.environment import heap_size, nodes, number, prebuilt, wait_timeout
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument, NotInitialized, describe
from triton_dist.runtime.groups import Group, SoloGroup, TorchGroup, expect_equal, nodes_by_reach
from triton_dist.runtime.hang_table import last_words
from triton_dist.runtime.heap import SymmetricHeap
from triton_dist.runtime.state import RankState, state

_TIMEOUT = timedelta(seconds=1800)
_worlds = count()               # process groups that this process has made: as many on every rank


def initialize_distributed(seed: int | None = None, initialize_shmem: bool = True, aot: bool | str | None = None) -> Any:
    """Joins the world that torchrun (or launch.sh) started, or makes a world of one.

    Collective. Binds this process to GPU LOCAL_RANK, or to torch's current device where that variable is not set, makes torch's
    default process group unless there is one, and reserves the symmetric heap. A second call does nothing that is done already.

    Args:
        seed: torch is seeded with seed + rank. None: it is not seeded.
        initialize_shmem: False leaves the symmetric heap to a later call.
        aot: True, or the folder of a library: ops launch its kernels, which were compiled ahead of time, and compile those that
            it lacks. The binaries are those that would be compiled here. None: USE_TRITON_DISTRIBUTED_AOT decides.

    Returns:
        torch's default process group if there is one, otherwise a HeldGroup of this world of one rank. Both have `rank()` and
        `size()`, and work as `group=`.

    Raises:
        InvalidArgument: ranks ask for different heaps or nodes, nodes do not fit the world, or there are more than 64 ranks.
        NotInitialized: this process is a fork of one that has joined a world.

    Example:
        triton_dist.initialize_distributed()
        x = torch.randn(1024, 4096, dtype=torch.bfloat16, device=triton_dist.device())
    """
    me = state()
    if seed is not None and (not isinstance(seed, int) or not -2**63 <= seed < 2**63):
        raise InvalidArgument(f"seed: expected None or a whole number of 64 bits, found {seed!r}")
    if me.forked:
        raise NotInitialized(me.forked)
    if aot is not None and not isinstance(aot, (bool, str)):
        raise InvalidArgument(f"aot: expected None, a bool or the folder of a library, found {aot!r}")
    if not me.turn:
        me.thread, me.turn = get_ident(), threads.this.number
    with ambient.clean():
        joins = me.world is None
        if joins:
            _join(me)
        if joins or aot is not None:
            library = prebuilt() if aot is None else None if aot is False else "" if aot is True else aot
            backend().use_prebuilt(library, me.world.world_ranks[me.world.rank] == 0)
        if initialize_shmem and me.heap is None:
            attach_heap(me)
    world: Any = state().world
    if seed is not None:
        torch.manual_seed(seed + world.rank)
    if isinstance(world, TorchGroup):
        import torch.distributed as dist
        return dist.group.WORLD
    return world.held


def _join(me: RankState) -> None:
    import torch.distributed as dist
    local_rank = int(number("LOCAL_RANK", -1, least=0, kind=int))
    backend().check_join()
    backend().set_device(None if local_rank < 0 else local_rank)
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            if (words := _alone_by_mistake(os.environ)) is not None:
                logging.getLogger("triton_dist").warning("triton_dist: %s", words)
            me.world = SoloGroup()
            return
        whole_lines()
        device, (store, rank, size) = backend().device(), _rendezvous()
        own = dist.PrefixStore(f"triton_dist/{next(_worlds)}", store)       # an earlier world's addresses are in the store
        dist.init_process_group(backend().torch_backend(), store=own, rank=rank, world_size=size, timeout=_TIMEOUT,
                                device_id=device if "nccl" in backend().torch_backend() else None)
        me.owns_process_group = True
    if me.owns_process_group:
        atexit.register(_leave)
    me.world = TorchGroup(dist.group.WORLD)


def _alone_by_mistake(environ: Mapping[str, str]) -> str | None:
    """What the first process says where srun or mpirun have started several, each of which becomes a world of its own."""
    for processes, rank in (("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
                            ("PMI_SIZE", "PMI_RANK")):
        if environ.get(processes, "1") not in ("", "1") and environ.get(rank, "0") == "0":
            return (f"RANK is not set, so this process is a world of one rank, but {processes}={environ[processes]}; start "
                    "torchrun or launch.sh once on each node, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT")
    return None


@cache
def _rendezvous() -> tuple:
    """(store, rank, world size) of the processes that a launcher started. The store serves all worlds of this process."""
    import torch.distributed as dist
    rank, size = number("RANK", 0, 0, int), number("WORLD_SIZE", math.inf, 1, int)
    if rank >= size:                            # it would wait for the others in vain
        raise InvalidArgument(f"RANK={rank}: expected a number below WORLD_SIZE={size}; start ranks by launch.sh or torchrun")
    number("MASTER_PORT", 0, 0, int)
    found = next(dist.rendezvous("env://", timeout=_TIMEOUT))
    found[0].set_timeout(_TIMEOUT)
    return found


def attach_heap(me: RankState) -> None:
    """Collective over the world: reserves the arena and tells device code about it."""
    world: Group = me.world
    if world.size > MAX_WORLD:
        raise InvalidArgument(f"world size: at most {MAX_WORLD} ranks fit into a context, found {world.size}; start fewer")
    nbytes, count = _settings(me)
    each = world.size // count
    arena = backend().reserve_arena(nbytes, world)
    arena.cut(range(world.rank // each * each, (world.rank // each + 1) * each))
    me.nodes = nodes_by_reach(world.all_gather_object([bool(base) for base in arena.bases]))
    me.heap = SymmetricHeap(arena)
    backend().set_context(Context(rank=world.rank, world_size=world.size, bases=list(arena.bases), nodes=me.nodes,
                                  barrier_pad=me.heap.base, wait_timeout_ns=int(wait_timeout() * 1e9)))
    world.barrier()


def _settings(me: RankState) -> tuple[int, int]:
    """(bytes of heap, number of nodes), the same on all ranks. Collective: where one rank cannot read its own, all raise."""
    world: Group = me.world
    found, error = {}, None
    try:
        found["TRITON_DIST_HEAP_SIZE"] = heap_size(backend().default_heap_size)
        found["TRITON_DIST_NODES"] = me.nodes_asked or nodes(world.size)
        found["TRITON_DIST_DEBUG"] = me.debug           # ranks that have it make more collectives
    except InvalidArgument as wrong:
        error = wrong
    told = world.all_gather_object((found, str(error or "")))
    if error is not None:
        raise error
    for rank, (_, words) in zip(world.world_ranks, told):
        if words:
            raise InvalidArgument(f"rank {rank}: {words}")
    for name in found:
        expect_equal(world, name, [theirs[name] for theirs, _ in told])
    return found["TRITON_DIST_HEAP_SIZE"], found["TRITON_DIST_NODES"]


def finalize_distributed() -> None:
    """Collective: leaves the world. Waits for all ranks' work, unmaps the heap, ends the process group if we made it.

    While an exception is handled, say in `finally`, it waits for nobody: one line names the error, this rank leaves alone,
    and the exception goes on. Peers may never come to their own finalize_distributed, so waiting would hide the error. Nor does
    it wait where ranks have made different calls, after which collectives may not pair.

    The CUDA graphs of functions that torch.compile has made are dropped: such functions compile again. Where a rank holds others,
    the process group stays until a world ends without them, or the process: NCCL would wait for the end of each graph that has
    captured its collectives.
    """
    me = state()
    if me.world is None:
        return
    if (error := sys.exception()) is not None:
        if me.world.size > 1:
            last_words(f"rank {me.world.world_ranks[me.world.rank]} leaves the world by {describe(error)}")
        _leave(error)
        return
    if me.over:                            # collectives may not pair any more, so peers cannot be waited for
        _leave(CollectiveMismatch(me.over))
        return
    with ambient.clean():
        backend().synchronize()
        with_graphs = any(me.world.all_gather_object(backend().end_graphs()))      # a peer may still be storing into this heap
        if me.heap is not None:
            me.heap.arena.part()
    _leave(with_graphs=with_graphs)


def _leave(error: BaseException | None = None, with_graphs: bool | None = None) -> None:
    """What is left to do at exit, also when peers have died or this rank leaves by an error: no collective, no words.

    with_graphs: whether any rank holds graphs; None: what this one holds counts.
    """
    me = state()
    if me.world is None and not me.owns_process_group:      # of a child of fork at its exit, which must not touch the device
        return
    if with_graphs is None:
        with_graphs = error is None and backend().end_graphs()
    arena, rests = me.heap.arena if me.heap else None, True
    owns, of_torch = me.owns_process_group, isinstance(me.world, TorchGroup)
    for name, value in vars(RankState()).items():
        setattr(me, name, value)
    atexit.unregister(_leave)
    if arena is not None:
        backend().left_world(None if error is None else describe(error))
        rests = backend().close_arena(arena)
    if owns and rests and (error is None or not backend().is_in_collective()):
        import torch.distributed as dist
        if with_graphs:
            me.owns_process_group = True        # for the next world
        elif dist.is_initialized():
            dist.destroy_process_group()
    if of_torch:     # plans hold groups in cycles; gloo's threads live as long as a group, and must not outlive the interpreter
        gc.collect()

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Warp specialisation: every partition of a CTA is an actor with its own warps; the default one is the program."""
import dataclasses
from typing import Any, Callable

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import fault, invalid, site, twin, unsupported
from triton_dist.backends.emulator.engine.scheduler import Actor, Waiting
from triton_dist.backends.emulator.memory import gluon_smem
from triton_dist.backends.emulator.twins import gluon_tma, gluon_wgmma
from triton_dist.backends.emulator.values.tensors import Tensor

_MAX_WARPS = 32          # of a CTA; workers are padded to whole warp groups


def leave() -> None:
    """The running program ends: nothing that it started may still use its shared memory."""
    actor = scheduler.active().current
    found = actor.__dict__.get("cta_block")
    if found is not None:
        _leave_partition(actor)
        for load in found.loads:
            raise fault(f"the CTA ends while the {load.what} issued at {load.issued_at} is in flight", "race")


def _leave_partition(actor: Actor) -> None:
    gluon_wgmma.leave(actor)
    gluon_tma.leave(actor)


@twin("gluon_core.warp_specialize")
def warp_specialize(functions_and_args: Any, worker_num_warps: Any, worker_num_regs: Any = None) -> Any:
    """Runs all partitions to their end; what the default one returns, a tuple or nothing."""
    running = scheduler.active()
    program, workers = running.current, list(functions_and_args[1:])
    warps = [gluon_smem.static(n, "warp_specialize") for n in worker_num_warps]
    if program.kind == "partition":
        raise invalid("warp_specialize inside a partition")
    if len(warps) != len(workers) or worker_num_regs is not None and len(worker_num_regs) != len(workers):
        raise invalid(f"warp_specialize of {len(workers)} workers: worker_num_warps {list(warps)} and worker_num_regs "
                      f"{worker_num_regs and list(worker_num_regs)} must have one entry for each")
    if any(n < 1 or n & n - 1 for n in warps) or program.cta.num_warps + -(-sum(warps) // 4) * 4 > _MAX_WARPS:
        raise invalid(f"warp_specialize: {program.cta.num_warps} warps and workers of {list(warps)}: expected powers of "
                      f"two, {_MAX_WARPS} in all")
    for fn, args in functions_and_args:
        if not isinstance(args, tuple):
            raise invalid(f"warp_specialize: the arguments of {fn.__name__} must be a tuple, found {args!r}")
    shared, started = gluon_smem.block(), []
    running.observer.barrier()
    for (fn, args), n in zip(workers, warps):
        if any(isinstance(x, Tensor) for x in args):
            raise invalid(f"worker {fn.__name__} takes a tensor: only the default partition can")
        worker = Actor(fn.__name__, program.rank, "partition", dataclasses.replace(program.cta, num_warps=n))
        worker.cta_block, worker.tdist = shared, getattr(program, "tdist", True)
        started.append(running.spawn(worker, _partition, fn, args))
    fn, args = functions_and_args[0]
    result = fn(*args)
    if result is not None and not isinstance(result, tuple):
        raise invalid(f"{fn.__name__} must return a tuple or nothing: it is the default partition")
    where = site()
    for worker in started:
        running.block(worker, lambda: worker.done, Waiting("partition", site=where, text=f"partition {worker.name}"))
        running.observer.joined(worker)
    return result


def _partition(fn: Callable, args: Any) -> None:
    fn(*args)
    _leave_partition(scheduler.active().current)


@twin("gluon_core.num_warps")
def num_warps() -> int:
    return scheduler.active().current.cta.num_warps


@twin("gluon_core.num_ctas")
def num_ctas() -> int:
    return scheduler.active().current.cta.num_ctas


@twin("gluon_core.thread_barrier", "gluon_core.barrier")
def thread_barrier(*, cluster: bool = False) -> None:
    """Of the threads of one partition, which act as one here."""
    if cluster:
        raise unsupported("barrier(cluster=True): the emulator has no clusters")
    scheduler.active().point()
    scheduler.active().observer.barrier()

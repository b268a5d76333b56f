# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Virtual worlds: all ranks in one process, in an order fixed by (seed, mode).

Each rank's host script is a thread, of which one runs at a time under the hub's token: torch keeps grad mode, autocast
and the autograd engine per thread, so host scripts do not see each other's. Kernels run on the hub's own thread.
"""
import contextvars
import ctypes
import threading
from typing import Any, Callable, Optional, Sequence

import torch
from torch.distributed import GroupMember, HashStore

from triton_dist.backends.emulator.engine.actors import Actor, Waiting
from triton_dist.backends.emulator.engine.observer import Observer
from triton_dist.backends.emulator.engine.scheduler import Scheduler, activated
from triton_dist.backends.emulator.worlds import ledger
from triton_dist.backends.emulator.worlds.machine import Machine, default_sms
from triton_dist.backends.emulator.worlds.meeting import Meetings, VirtualGroup
from triton_dist.backends.emulator.worlds.process_group import RankTorch, become, installed
from triton_dist.runtime import backend as registry, state as rank_state
from triton_dist.runtime.errors import InvalidArgument


_LOOK = 0.5             # seconds after which the hub looks again at a script that runs


class Cancelled(BaseException):
    """Ends the host scripts of a world in which another rank has failed."""


class _Host(Actor):
    """The host script of one rank, on a thread of its own. fail(rank, error) raises an error in it at its next wait."""

    def __init__(self, rank: int, script: Callable[[], Any], fail: Callable[[int, BaseException], None]):
        super().__init__("host", rank, "host")
        self._fail = fail
        self.result: Any = None
        self._go, self._back = threading.Lock(), threading.Lock()        # held, but where the other thread is told to go on
        self._go.acquire()
        self._back.acquire()
        self._inside = False                     # the thread has been told to go on, and has not come back
        self._rng = torch.get_rng_state()        # each rank draws its own numbers, as a process would
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._live, script), name=f"rank {rank}", daemon=True)
        self._thread.start()

    def enter(self, hub: Any) -> None:
        self._back.acquire(blocking=False)       # a signal may have come before the last turn took it
        self._inside = True
        self._go.release()
        while self._inside:
            try:                                 # a signal that comes just before `acquire` does not end it
                # A thread that ends just after the time is up has come back. One that has died inside has been interrupted.
                if not self._back.acquire(timeout=_LOOK) and not self._thread.is_alive() and self._inside:
                    self._inside, self.done, self.error = False, True, self.error or KeyboardInterrupt()
            except BaseException as error:       # of a signal's handler, like KeyboardInterrupt
                self._take(error)
        if self.done:                            # what the thread still lets go of must not race with the hub
            self._thread.join()

    def _take(self, error: BaseException) -> None:
        """What interrupts the hub belongs to the script that runs, as only one thread may run at a time."""
        if self._inside:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(type(error)))
        else:
            self._fail(self.rank, error)

    def leave(self, hub: Any) -> None:
        self._rng = torch.get_rng_state()
        self._inside = False
        self._back.release()
        self._go.acquire()
        torch.set_rng_state(self._rng)

    def _live(self, script: Callable[[], Any]) -> None:
        self._go.acquire()
        torch.set_rng_state(self._rng)
        try:
            if not self.errors:
                self.result = script()
        except BaseException as error:
            self.error = error
        finally:
            self.done = True
            self._inside = False
            self._back.release()


class World(Scheduler):
    """Scheduler of a virtual world; the caller of run_ranks owns the hub and belongs to no rank."""

    def __init__(self, size: int, seed: int, mode: str, num_sms: int):
        super().__init__(seed, mode, num_sms, rank=-1)
        self.main.kind = "runner"
        self.hosts = {}
        self.failure: Optional[tuple] = None     # (rank, error) that ended the world
        self.size = size
        self._running = 0                        # host scripts that have not ended

    def start(self, rank: int, script: Callable[[], Any]) -> None:
        self.hosts[rank] = host = _Host(rank, script, self.fail)
        self._running += 1
        self._ready.add(host)

    def over(self) -> bool:
        return not self._running

    def _finish(self, actor: Actor) -> None:
        if not isinstance(actor, _Host):
            return super()._finish(actor)
        self._running -= 1
        if actor.error is not None and self.failure is None and not isinstance(actor.error, Cancelled):
            self.failure = (actor.rank, actor.error)
            self.cancel()

    def fail(self, rank: int, error: BaseException) -> None:
        host = self.hosts.get(rank)
        if host is None or host.done:            # left behind by a script that has returned
            self.failure = self.failure or (rank, error)
            self.cancel()
        else:
            super().fail(rank, error)

    def cancel(self) -> None:
        """Ends all host scripts at their present or next wait, and all device work."""
        for host in self.hosts.values():
            if not host.done:
                self.throw(host, Cancelled())
        everyone = [*self.blocked(), *self.queued(), *self._ready.all()]
        self._doomed.append([actor for actor in everyone if not isinstance(actor, _Host)])

    def throw(self, host: Actor, error: BaseException) -> None:
        host.errors[:] = [error]
        if host.predicate is not None:
            self._forget(host)
            self._ready.add(host)

    def collapse(self, error: Exception) -> None:
        self.shutdown()
        waiting = [host for host in self.hosts.values() if not host.done]
        if not waiting:
            raise error
        for host in waiting:
            self.throw(host, type(error)(*error.args))


def run_ranks(fn: Callable, world_size: int, *args: Any, mode: str = "random", seed: int = 0,
              num_sms: Optional[int] = None, groups: Optional[Sequence[Sequence[int]]] = None, heap: bool = True,
              nodes: int = 0, observer: Optional[Observer] = None, **kwargs: Any) -> list:
    """Runs `fn(*args, **kwargs)` as the host script of every rank of an emulated world.

    Args:
        mode: who goes next and when copies land: one of order.MODES ('eager', 'random', 'late', ...).
        seed: with the mode, fixes the order in which everything runs.
        num_sms: programs that can be resident at a time, per rank. Default TRITON_DIST_EMULATOR_SMS, or 8.
        groups: disjoint or overlapping lists of ranks; fn then gets `group=`, the first of them that holds its rank, or
            torch's GroupMember.NON_GROUP_MEMBER.
        heap: whether each rank has joined the world before fn starts: the symmetric heap, and torch.distributed by the
            backend "emulator". Else fn calls triton_dist.initialize_distributed() or init_process_group() itself.
        nodes: into how many nodes of equal size the ranks are cut, between which only SHMEM calls pass. Default
            TRITON_DIST_NODES, or 1.
        observer: hears who starts whom, and every edge of order.
    Returns the results by rank. An exception on one rank ends the world and is raised here, with a note of its rank;
    HangError when nothing can run.
    """
    if not callable(fn):
        raise InvalidArgument(f"fn: expected a function, found {type(fn).__name__}")
    if not isinstance(world_size, int) or world_size < 1:
        raise InvalidArgument(f"world_size: expected a whole number of at least 1, found {world_size}")
    if not isinstance(nodes, int) or nodes < 0 or nodes and world_size % nodes:
        raise InvalidArgument(f"nodes: expected a number that divides the {world_size} ranks, found {nodes!r}")
    registry.use("emulator", "a world of virtual ranks")
    world = World(world_size, seed, mode, num_sms or default_sms())
    machine, meetings = Machine(world), Meetings(world)
    machine.ledger = ledger.Ledger([bytearray(ledger.SIZE) for _ in range(world_size)])
    if observer is not None:
        observer.watch(world)
    lists = [tuple(ranks) for ranks in groups or ()]
    store = HashStore()

    def script(rank: int) -> Any:
        virtual = VirtualGroup(meetings, tuple(range(world_size)), rank)
        virtual.torch = RankTorch(virtual, store)
        become(virtual.torch)
        mine = machine.states[rank] = rank_state.RankState(world=virtual, nodes_asked=nodes)
        token = rank_state.enter(mine)
        try:
            if heap:
                from triton_dist.runtime.world import attach_heap
                attach_heap(mine)
                virtual.torch.join()
            own = [mine.world.new_group(ranks) for ranks in lists]
            extra = {"group": next((g for g in own if g is not None), GroupMember.NON_GROUP_MEMBER)} if lists else {}
            return fn(*args, **extra, **kwargs)
        finally:
            virtual.torch.leave()
            rank_state.leave(token)

    with activated(world), installed(), torch.random.fork_rng(devices=[]):
        for rank in range(world_size):
            world.start(rank, lambda rank=rank: script(rank))
        try:
            world.run_until(world.over, Waiting("world"))
            if world.failure is None:
                _drain(world)
        finally:
            if not world.over():                 # KeyboardInterrupt, or an error of the emulator itself
                world.cancel()
                world.run_until(world.over, Waiting("world"))
            for arena in list(machine.arenas):
                arena.close()
    if world.failure is not None:
        rank, error = world.failure
        error.add_note(f"raised on rank {rank} of a virtual world of {world_size} (mode={mode!r}, seed={seed})")
        raise error
    return [world.hosts[rank].result for rank in range(world_size)]


def _drain(world: World) -> None:
    """Runs what the host scripts left on side streams."""
    world.run_until(lambda: world.failure is not None or not (world.runnable() or world.blocked() or world.queued()))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The emulator's scheduler: actors take turns on one hub, in an order fixed by (seed, mode).

A program, a stream or a warp-specialised partition is a greenlet; an asynchronous copy is a list of steps that the hub
runs itself. Nothing runs in parallel, so between two calls of point() or block() an actor is alone. The modes are in
order.py.
"""
import collections
import contextlib
import os
import random
from typing import Any, Callable, Iterator, Optional

import greenlet

from triton_dist.backends.emulator.engine import hang
from triton_dist.backends.emulator.engine.actors import Actor, Crew, Cta, Waiting, noted
from triton_dist.backends.emulator.engine.observer import Observer
from triton_dist.backends.emulator.engine.order import MODES, PREEMPT, Ready
from triton_dist.compat.torch import BelowAutograd
from triton_dist.runtime import ambient
from triton_dist.runtime.context import Context
from triton_dist.runtime.environment import wait_timeout
from triton_dist.runtime.errors import InvalidArgument, NotInitialized

__all__ = ["Actor", "Crew", "Cta", "MODES", "Scheduler", "Waiting", "activated", "active", "is_active"]

_CHECK = 1024        # turns between two looks at the wait bounds
_POLL = 64           # turns between two looks at memory that other processes write
_stack: list = []    # of active schedulers; the last one runs


def active() -> "Scheduler":
    """The scheduler of this process, or of the virtual world that runs now."""
    try:
        return _stack[-1]
    except IndexError:
        raise NotInitialized("no emulator is running here: call triton_dist.initialize_distributed(), or run the code "
                             "in a virtual world") from None


def is_active() -> bool:
    """Whether a scheduler runs, in this process or as a virtual world."""
    return bool(_stack)


@contextlib.contextmanager
def activated(scheduler: "Scheduler") -> Iterator["Scheduler"]:
    """Makes `scheduler` the active one inside the block; ends what it still holds after it."""
    _stack.append(scheduler)
    try:
        yield scheduler
    finally:
        scheduler.shutdown()
        _stack.remove(scheduler)


class Scheduler:
    """One hub. `main` is the actor of the code that owns the hub: the host script, or a virtual world's runner.

    num_sms: programs that can be resident at a time, per rank. `lock`: context manager for read-modify-write on memory
    that others may write. `polls`: memory can change with no wake(), by the hand of another process.
    """
    polls = False

    def __init__(self, seed: int = 0, mode: str = "random", num_sms: int = 8, rank: int = 0):
        if mode not in MODES:
            raise InvalidArgument(f"mode (or TRITON_DIST_EMULATOR_MODE): {mode!r}, expected one of {', '.join(MODES)}")
        if num_sms < 1:
            raise InvalidArgument(f"num_sms={num_sms}: a rank needs at least one SM")
        self.rng, self.mode, self.num_sms = random.Random(seed), mode, num_sms
        self.main = Actor("host", rank, "host")
        self.current = self.main
        self.hosts = {rank: self.main}
        self.lock = contextlib.nullcontext()
        self.turns = self.pauses = 0
        self.most_pauses = float("inf")              # an observer may want to hear of more
        self.wait_timeout = wait_timeout()           # seconds; 0 = unbounded
        self.machine: Any = None                     # memory, devices and arenas that go with it
        self.observer = Observer()
        self.writers: dict = {}                      # flag address -> (rank, name) of its last writer
        self._hub: Any = None
        self._credit = 0
        self._ready = Ready(mode, self.rng)
        self._waiters: dict = {}                     # key -> blocked actors
        self._queued = collections.defaultdict(collections.deque)    # rank -> programs that wait for an SM
        self._resident = collections.defaultdict(int)
        self._doomed: list = []
        self._contexts: dict = {}

    # -- what host code calls ------------------------------------------------------------------------------
    def enter_host(self) -> None:
        """The calling thread is about to use the device. Raises UnsupportedFeature where it must not."""

    # -- what actors call ----------------------------------------------------------------------------------
    def point(self) -> None:
        """A place where another actor may run."""
        self._credit -= 1
        if self._credit < 0:
            self.pause()

    def pause(self) -> None:
        """Gives up the turn."""
        self._credit = int(self.rng.random() * PREEMPT[self.mode])
        self.pauses += 1
        if self.pauses > self.most_pauses:
            self.observer.busy(self)
        actor = self.current
        if actor.greenlet is None or actor.killed:
            return
        if not (self._ready or self.polls or self.wait_timeout):
            return                           # no other actor can run, and the hub has nothing to look at
        self._ready.add(actor)
        actor.leave(self._hub)

    def block(self, key: Any, predicate: Callable[[], bool], waiting: Waiting) -> None:
        """Returns once `predicate()` is true; it is tested again whenever wake(key) is called."""
        actor = self.current
        if actor is self.main:
            actor.waiting = waiting
            try:
                return self._loop(predicate)
            finally:
                actor.waiting = None
        if actor.steps:
            raise RuntimeError("a step of an asynchronous copy must not block")
        if not predicate():
            self.observer.blocks(waiting)
        while True:
            if actor.killed:
                raise greenlet.GreenletExit
            if actor.errors:
                raise actor.errors.pop(0)
            if predicate():
                return self.observer.resumes(waiting)
            actor.waiting, actor.key, actor.predicate = waiting, key, predicate
            self._waiters.setdefault(key, []).append(actor)
            actor.leave(self._hub)
            actor.waiting = actor.predicate = None

    def wake(self, key: Any) -> None:
        """Lets those blocked on `key` test their predicates. An int is the address of a flag just written."""
        if type(key) is int:
            self.writers[key] = self.current.rank, self.current.name
        for actor in self._waiters.pop(key, ()):
            self._ready.add(actor)

    def spawn(self, actor: Actor, fn: Callable, *args: Any) -> Actor:
        """Starts an actor as a greenlet. A program waits until its rank has a free SM; order of spawn is kept.

        It joins the caller's crew unless it came with one. An error ends the crew and goes to the host that waits for it, or,
        where there is no crew, to the rank's host.
        """
        actor.work = (fn, args)
        self._enlist(actor)
        self.observer.spawned(actor)
        if actor.kind == "program":
            self._queued[actor.rank].append(actor)
            self._fill(actor.rank)
        else:
            self._ready.add(actor)
        return actor

    def issue(self, actor: Actor, *steps: Callable[[], Any], delay: int = 0) -> Actor:
        """Starts an asynchronous copy: steps that run one after another, `delay` turns later or more, and cannot block."""
        actor.steps = [*reversed(steps), *[lambda: None] * delay]
        self._enlist(actor)
        self.observer.issued(actor)
        early = 0 if delay else len(steps) if self.mode == "eager" else int(self.rng.random() < 0.5)
        caller = self.current
        for _ in range(early):
            self._step(actor)
        self.current = caller
        if actor.error:
            raise actor.error
        if not actor.done:
            self._ready.add(actor)
            self.point()
        return actor

    def complete(self, actor: Actor) -> None:
        """Runs what is left of an asynchronous copy now."""
        caller = self.current
        self._ready.remove(actor)
        while not actor.done:
            self._step(actor)
        self.current = caller

    def run_until(self, predicate: Callable[[], bool], waiting: Optional[Waiting] = None) -> None:
        """Runs others until `predicate()` is true. Raises what failed on the caller's rank, or a hang report."""
        self.block(predicate, predicate, waiting or Waiting("host"))

    # -- ranks ---------------------------------------------------------------------------------------------
    def set_context(self, rank: int, context: Any) -> None:
        self._contexts[rank] = context

    def context_of(self, rank: int) -> Any:
        """The runtime.context.Context last set for a rank."""
        try:
            return self._contexts[rank]
        except KeyError:
            if int(os.environ.get("WORLD_SIZE", 1)) == 1 and rank == 0:
                return Context()                 # a lone process: rank 0 of 1, as on a GPU
            raise NotInitialized(f"rank {rank} has no device context: call triton_dist.initialize_distributed() before "
                                 "a kernel asks for its rank or its peers") from None

    def fail(self, rank: int, error: BaseException) -> None:
        """Raises `error` in a rank's host at its present or next wait."""
        host = self.hosts.get(rank, self.main)
        host.errors.append(error)
        if host.predicate is not None:
            self.wake(host.key)

    def blocked(self) -> list:
        """The blocked actors: those of kernels first, then streams, then hosts."""
        found = [actor for queue in self._waiters.values() for actor in queue]
        if self.main.waiting is not None and self.main.kind == "host":
            found.append(self.main)
        return sorted(found, key=lambda a: (a.kind == "host", a.kind == "stream", a.rank))

    def queued(self) -> list:
        """Programs that wait for an SM."""
        return [actor for queue in self._queued.values() for actor in queue]

    def elsewhere(self) -> list:
        """Report rows of ranks that are not on this scheduler."""
        return []

    def kill(self, crew: Crew) -> None:
        """Ends all actors of a crew, at the hub's next turn."""
        self._doomed.append(list(crew.members))

    def kill_actor(self, actor: Actor) -> None:
        """Ends one actor, at the hub's next turn."""
        self._doomed.append([actor])

    def runnable(self) -> bool:
        """True where some actor could take a turn now."""
        return bool(self._ready)

    def shutdown(self) -> None:
        """Ends every actor but the hosts."""
        everyone = [*self.blocked(), *self.queued(), *self._ready.all()]
        self._doomed.append([actor for actor in everyone if actor.kind != "host"])
        self._reap()

    # -- the hub -------------------------------------------------------------------------------------------
    def idle(self) -> None:
        """Nothing can run and the hub's owner still waits. Raises, or returns after something may have changed."""
        if not self.encouraged():
            self.observer.stuck(self)
            self.collapse(hang.deadlock(self))

    def encouraged(self) -> bool:
        """Whether a program that was taken to spin goes on for a while: its loop may end by itself."""
        spinning = [actor for actor in self.blocked() if actor.key is actor]
        found = next((actor for actor in spinning if not actor.encouraged), None)
        if found is not None:
            found.encouraged = len(spinning)
            self.wake(found)
        return found is not None

    def check_bounds(self) -> None:
        """Ends everything with a WaitTimeout when a device wait has lasted longer than `wait_timeout`."""
        if self.wait_timeout and (error := hang.expired(self)) is not None:
            self.collapse(error)

    def collapse(self, error: Exception) -> None:
        """The device is stuck: ends all its work and raises `error` in the host."""
        self.shutdown()
        raise error

    def _loop(self, predicate: Callable[[], bool]) -> None:
        # Kernels are not differentiated, nor do they see the host's autocast. Operators of torch need not ask about gradients.
        with ambient.clean(), BelowAutograd():
            self._turns_until(predicate)

    def _turns_until(self, predicate: Callable[[], bool]) -> None:
        owner, outer = self.current, self._hub
        self._hub = greenlet.getcurrent()
        try:
            while True:
                if self._doomed:
                    self._reap()
                if owner.errors:
                    raise owner.errors.pop(0)
                if predicate():
                    return
                actor = self._ready.take(self._waiters)
                if actor is None:
                    self.idle()
                    continue
                self.turns += 1
                if not self.turns % _CHECK:
                    self.check_bounds()
                if self.polls and not self.turns % _POLL:
                    self.poll()
                self._turn(actor)
                self.current = owner
        finally:
            self.current = owner
            if self._doomed:
                self._reap()
            self._hub = outer

    def _turn(self, actor: Actor) -> None:
        if actor.steps:
            self._step(actor)
            if not actor.done:
                self._ready.add(actor)
        else:
            self.current = actor
            actor.enter(self._hub)
            if actor.done:
                self._finish(actor)

    def _step(self, actor: Actor) -> None:
        self.current, step = actor, actor.steps[-1]
        try:
            step()
        except BaseException as error:
            actor.error = error
            actor.steps.clear()
        else:
            actor.steps.pop()
        for key in actor.serves:
            self.wake(key)
        if not actor.steps:
            actor.done = True
            self._finish(actor)

    # -- bookkeeping ---------------------------------------------------------------------------------------
    def _enlist(self, actor: Actor) -> None:
        if actor.crew is None:
            actor.crew = self.current.crew
        if actor.crew is not None:
            actor.crew.members[actor] = None

    def _fill(self, rank: int) -> None:
        queue = self._queued[rank]
        while queue and self._resident[rank] < self.num_sms:
            self._resident[rank] += 1
            actor = queue.popleft()
            actor.resident = True
            self._ready.add(actor)

    def _finish(self, actor: Actor) -> None:
        self.observer.finished(actor)
        if actor.resident:
            actor.resident = False
            self._resident[actor.rank] -= 1
            self._fill(actor.rank)
        crew, error = actor.crew, actor.error
        if crew is None:
            if error is not None:
                self.fail(actor.rank, error)
        else:
            crew.members.pop(actor, None)
            if error is not None and crew.error is None:
                crew.error = noted(error, actor)
                self._doomed.append(list(crew.members))
            if crew.done:
                self.wake(crew)
        self.wake(actor)

    def _reap(self) -> None:
        outer, owner = self._hub, self.current
        self._hub = greenlet.getcurrent()
        while self._doomed:
            for actor in self._doomed.pop():
                if not actor.done:
                    self._forget(actor)
                    self._end(actor)
        self._hub, self.current = outer, owner

    def _end(self, actor: Actor) -> None:
        actor.killed, self.current = True, actor
        actor.steps.clear()
        if actor.greenlet:                       # started and alive
            actor.greenlet.throw(greenlet.GreenletExit)
        actor.done, actor.error = True, None
        self._finish(actor)

    def _forget(self, actor: Actor) -> None:
        self._ready.remove(actor)
        if actor in self._queued[actor.rank]:
            self._queued[actor.rank].remove(actor)
        for key in [key for key, queue in self._waiters.items() if actor in queue]:
            self._waiters[key].remove(actor)
            if not self._waiters[key]:
                del self._waiters[key]

    def poll(self) -> bool:
        """Tests the predicates of all blocked actors; true where one may run now."""
        found = [actor for queue in self._waiters.values() for actor in queue if actor.predicate()]
        for actor in found:
            self._forget(actor)
            self._ready.add(actor)
        return bool(found)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Streams, events and the copy engine of an emulated device.

A stream with work is an actor that performs its operations in order: kernel launches, copies, flag writes, waits. A
copy lands in pieces, in any order, with other actors running in between. A tensor that is freed before its copy has run
is a DeviceFault: on a GPU its memory would belong to another tensor by then.
"""
import itertools
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

from triton_dist.backends.emulator.engine.actors import Actor, Crew, Cta, Waiting
from triton_dist.backends.emulator.engine.order import LATE
from triton_dist.runtime.errors import InvalidArgument

_PIECES = 3
_GRAIN = 16              # bytes; pieces of a copy begin at multiples of it
_SETTLE = 4096           # turns after which a process stops driving side streams and goes on with its host script


class Event:
    """A point in a stream. Like torch.cuda.Event, it counts as passed until it is recorded."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._ticket = 0

    def record(self, stream: "Stream") -> None:
        self._stream, self._ticket = stream, stream.issued

    def query(self) -> bool:
        return self._stream is None or self._stream.ask(self._ticket)

    def wait(self, stream: "Stream") -> None:
        stream.wait_event(self)

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.wait_host(self._ticket, told=True)


class Stream:
    """An in-order queue of device work of one rank."""

    def __init__(self, device: "Device", name: str, priority: int = 0):
        self.device, self.name, self.priority = device, name, priority
        self.issued = self.finished = 0
        self._queue: list = []
        self._actor: Optional[Actor] = None
        self._crew: Optional[Crew] = None        # of the kernel that runs now

    # -- the part that torch.cuda.Stream has as well -------------------------------------------------------
    def wait_stream(self, other: "Stream") -> None:
        """Work put on this stream from now on starts after all that is on `other` now."""
        if not isinstance(other, Stream):
            raise InvalidArgument(f"stream: expected one made by new_stream() or current_stream(), found {type(other).__name__}")
        self._wait_for(other, other.issued)

    def record_event(self, event: Optional[Event] = None) -> Event:
        """An event that is passed once all that is on this stream now has run."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Work put on this stream from now on starts after `event`."""
        if event._stream is not None:
            self._wait_for(event._stream, event._ticket)

    def query(self) -> bool:
        return self.ask(self.issued)

    def synchronize(self) -> None:
        """Returns once all that is on this stream has run; raises what failed."""
        self.wait_host(self.issued, told=True)
        self.device.settle()

    # -- operations ----------------------------------------------------------------------------------------
    def launch(self, launch: Any) -> int:
        """Puts a kernel launch (name, grid, num_warps, body) on the stream; the ticket to wait for."""
        return self._put(f"launch of {launch.name}", lambda: self._run_kernel(launch))

    def copy(self, dst: int, src: int, nbytes: int, keep: Any = None) -> int:
        """Puts a copy of `nbytes` between two addresses on the stream. `keep` lives until it has landed."""
        copy = self.device.machine.memory.copy
        return self._transfer(f"copy of {nbytes} bytes", [
            lambda at=at, size=size, keep=keep: copy(dst + at, src + at, size)
            for at, size in pieces(self.device.scheduler, nbytes)])

    def write_value32(self, address: int, value: int) -> int:
        """Puts a store of an int32 on the stream, released at system scope."""
        store = self.device.machine.memory.flag_store
        return self._transfer("flag write", [lambda: store(address, value, 32, "release", "sys")])

    def _transfer(self, what: str, steps: list) -> int:
        scheduler = self.device.scheduler
        if scheduler.mode == "eager" and not self._queue:
            scheduler.observer.enqueued(self, 0, what)
            engine = Actor(f"{what} on {self.name}", self.device.rank, "copy")
            engine.stream = self
            scheduler.issue(engine, *steps)
            return self.issued

        def run() -> None:
            for step in steps:
                if scheduler.rng.random() < 0.5:
                    scheduler.pause()
                step()
        return self._put(what, run)

    # -- waiting -------------------------------------------------------------------------------------------
    def passed(self, ticket: int) -> bool:
        return self.finished >= ticket

    def ask(self, ticket: int) -> bool:
        """`passed`, asked by the host script, which may rely on a yes."""
        if not self.passed(ticket):
            return False
        self.device.scheduler.observer.synchronized(self, ticket)
        return True

    def wait_host(self, ticket: int, told: bool = False) -> None:
        """The calling host waits until the operation of `ticket` has run. A failed wait ends what it waited for.

        `told`: the host script asked for it, so that it may rely on it.
        """
        waiting = Waiting("stream", text=lambda: f"stream {self.name}: {self._queue[0][0] if self._queue else 'idle'}")
        try:
            self.device.scheduler.block(self, lambda: self.finished >= ticket, waiting)
        except BaseException:
            if self.finished < ticket:
                self.abort()
            raise
        if told:
            self.device.scheduler.observer.synchronized(self, ticket)

    def abort(self) -> None:
        """Drops all that is on the stream, the running kernel included."""
        self._queue.clear()
        self.finished = self.issued
        if self._crew is not None:
            self.device.scheduler.kill(self._crew)
        if self._actor is not None:
            self.device.scheduler.kill_actor(self._actor)
        self._actor = self._crew = None
        self.device.scheduler.wake(self)

    def _wait_for(self, other: "Stream", ticket: int) -> None:
        scheduler = self.device.scheduler
        if other is self:
            return
        scheduler.observer.followed(self, other, ticket)
        if other.passed(ticket):
            return

        def run() -> None:
            scheduler.block(other, lambda: other.passed(ticket), Waiting("stream", text=f"stream {other.name}"))
        put = self._put(f"wait for stream {other.name}", run)
        if self is self.device.default:                  # drained before the host goes on, like a launch
            self.wait_host(put)

    # -- the actor -----------------------------------------------------------------------------------------
    def _put(self, what: str, run: Callable[[], None]) -> int:
        self._queue.append((what, run))
        self.issued += 1
        self.device.scheduler.observer.enqueued(self, self.issued, what)
        if self._actor is None or self._actor.done:
            self._actor = Actor(self.name, self.device.rank, "stream", serves=(self, ))
            self._actor.stream = self
            self.device.scheduler.spawn(self._actor, self._perform, self._actor)
        ticket = self.issued
        if self is not self.device.default:
            self.device.settle(issuing=True)
        return ticket

    def _perform(self, actor: Actor) -> None:
        scheduler = self.device.scheduler
        try:
            while self._queue:
                scheduler.observer.began(self, self.finished + 1)
                self._queue[0][1]()
                self._queue.pop(0)
                self.finished += 1
                scheduler.observer.completed(self, self.finished)
                scheduler.wake(self)
                scheduler.point()
        except Exception as error:       # later work of this stream relies on what failed
            self._queue.clear()
            self.finished = self.issued
            scheduler.fail(self.device.rank, error)
            scheduler.wake(self)
        finally:
            if self._actor is actor:
                self._actor = None
                if self._queue:          # killed from outside, after a hang
                    self._queue.clear()
                    self.finished = self.issued

    def _run_kernel(self, launch: Any) -> None:
        scheduler, rank = self.device.scheduler, self.device.rank
        self._crew = crew = Crew(rank, launch.name)
        num_ctas = getattr(launch, "num_ctas", 1)
        x, y, z = launch.grid
        for pz, py, px in itertools.product(range(z), range(y), range(x)):
            cta = Cta((px, py, pz), (x, y, z), launch.name, launch.num_warps, num_ctas)
            program = Actor(f"{launch.name}{cta.pid}", rank, "program", cta, crew)
            program.stream, program.launch = self, launch
            scheduler.spawn(program, launch.body)
        scheduler.block(crew, lambda: crew.done, Waiting("kernel", text=f"kernel {launch.name}"))
        self._crew = None
        if crew.error is not None:
            raise crew.error

    def __repr__(self) -> str:
        return f"<emulated stream {self.name} of rank {self.device.rank}>"


def pieces(scheduler: Any, nbytes: int) -> list:
    """(start, bytes) of the parts in which a copy lands, in that order."""
    if scheduler.mode == "eager" or nbytes < _PIECES * _GRAIN:
        return [(0, nbytes)] if nbytes else []
    size = -(-nbytes // (_PIECES * _GRAIN)) * _GRAIN
    parts = [(start, min(size, nbytes - start)) for start in range(0, nbytes, size)]
    scheduler.rng.shuffle(parts)
    return parts


class Device:
    """The streams of one rank. `current` is where launches go; the default stream is drained by each of them."""

    def __init__(self, machine: Any, rank: int):
        self.machine, self.scheduler, self.rank = machine, machine.scheduler, rank
        self._count = itertools.count(1)
        self._streams: Any = weakref.WeakValueDictionary()
        self.default = self.current = Stream(self, "default")

    def new_stream(self, priority: int = 0) -> Stream:
        number = next(self._count)
        stream = self._streams[number] = Stream(self, f"stream {number}", priority)
        return stream

    @contextmanager
    def use(self, stream: Stream) -> Iterator[Stream]:
        """Launches inside go to `stream`."""
        if not isinstance(stream, Stream) or stream.device is not self:
            raise InvalidArgument(f"stream: expected a stream of rank {self.rank} of this emulator, found {stream!r}")
        before, self.current = self.current, stream
        try:
            yield stream
        finally:
            self.current = before

    def launch(self, launch: Any) -> None:
        """Puts a launch on the current stream, and drains it where that is the default stream."""
        ticket = self.current.launch(launch)
        if self.current is self.default:
            self.default.wait_host(ticket)
            self.settle()

    def synchronize(self) -> None:
        """Waits for all streams of the rank; raises what failed."""
        for stream in [self.default, *self._streams.values()]:
            stream.wait_host(stream.issued, told=True)

    def settle(self, issuing: bool = False) -> None:
        """In a process of its own: lets side streams go as far as they can, since they do not run during host code.

        The late modes do so at waits and launches only, not when work is issued.
        """
        scheduler = self.scheduler
        if scheduler.polls and scheduler.current is scheduler.main and not (issuing and scheduler.mode in LATE):
            end = scheduler.turns + _SETTLE
            scheduler.run_until(lambda: scheduler.turns >= end or not scheduler.runnable())

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The process executor: one process a rank, as torchrun starts them.

Other processes change flags, so a rank polls its blocked predicates when it has nothing to run, and polls less often the
longer that lasts. Each rank publishes its state in a control block. When all are stuck, each ends with the same report.
"""
import contextlib
import fcntl
import functools
import os
import sys
import threading
import time
from types import CodeType
from typing import Any, Optional

from triton_dist.backends.emulator.engine import hang
from triton_dist.backends.emulator.engine import scheduler as scheduling
from triton_dist.backends.emulator.engine.scheduler import Scheduler
from triton_dist.backends.emulator.memory import wire
from triton_dist.backends.emulator.memory.wire import Wire
from triton_dist.backends.emulator.worlds import control_block as control
from triton_dist.backends.emulator.worlds.arena import shared
from triton_dist.backends.emulator.worlds.ledger import Ledger
from triton_dist.backends.emulator.worlds.machine import Machine, default_sms
from triton_dist.runtime.environment import number
from triton_dist.runtime.errors import CollectiveMismatch, HangError, UnsupportedFeature
from triton_dist.runtime.groups import Group
from triton_dist.runtime.hang_table import Row, last_words
from triton_dist.runtime.stacks import Watched, place_in, stack_of
from triton_dist.runtime.state import at_exit

_HOST = "(host)"
_HOST_PATIENCE = 8               # how many times longer all ranks may sit in collectives before that counts as a hang
_SPINS = 20                   # polls that only give up the CPU
_PAUSE, _LONGEST = 50e-6, 2e-3
_PUBLISH = 0.05               # seconds of idling after which a rank says that it is blocked
_LOOK = 0.1                   # seconds between two looks at the others
_TORCH = os.path.join("torch", "distributed", "")       # in the path of the code of a collective of torch
_LAST_WORDS = 2.0             # seconds for which a rank that hangs waits for the others' last words


class FileLock:
    """Lock between processes. The kernel frees the lock of a process that dies."""

    def __init__(self, fd: int):
        self._fd = fd

    def __enter__(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: Any) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)


class ProcessScheduler(Scheduler):
    """Scheduler of one rank that shares memory with others."""
    polls = True

    def __init__(self, seed: int, mode: str, num_sms: int, rank: int):
        super().__init__(seed, mode, num_sms, rank)
        self.patience = number("TRITON_DIST_HANG_SECONDS", 3.0, least=0)
        self._host = Watched()               # the thread that uses the device
        self._blocks: list = []              # control blocks by rank; empty in a world of one
        self._fd = -1
        self._mine = control.Record(os.getpid(), control.stat_of(os.getpid())[1])
        self._idling = 0                     # polls in a row that found nothing
        self._since = self._looked = 0.0     # when the idling began; when we looked at the others last
        self._before: Any = None             # what the others' counts were at the last look
        self._still = 0.0
        self._gone: set = set()              # ranks on other hosts that do not answer
        self._left = threading.Event()
        self._host_watch: Optional[threading.Thread] = None

    # -- joining and leaving a world -----------------------------------------------------------------------
    def join(self, world: Group) -> None:
        """Collective: shares control blocks and the lock with the other ranks."""
        self.leave()
        if world.size > 1:
            self._blocks, fds = shared(world, control.SIZE)
            self._fd = fds[0]
            for fd in fds[1:]:
                os.close(fd)
            self.lock = FileLock(self._fd)
            far = [rank for rank, block in enumerate(self._blocks) if block is None]
            if far:                          # copies of what they last published, renewed at each look
                for rank in far:
                    self._blocks[rank] = bytearray(control.SIZE)
                self.machine.wire = Wire(world, far, self._blocks[world.rank], FileLock(os.open(
                    f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)))
            self.writers = control.Writers(self._blocks, self.machine.locate)
            self.machine.ledger = Ledger(self._blocks, control.CALLS)
        self._publish(control.RUNNING)
        world.barrier()
        if self._blocks:
            self._left.clear()
            self._host_watch = threading.Thread(target=self._watch_host, daemon=True)
            self._host_watch.start()

    def leave(self) -> None:
        """Tells the others that this rank has finished. Never raises; may be called again."""
        self._left.set()
        if self._host_watch is not None:     # a thread that the interpreter ends at exit may abort the process
            self._host_watch.join()
            self._host_watch = None
        if self._blocks:
            if self._mine.state != control.FAILED:       # its last words stay readable
                self._publish(control.FINISHED)
            self._blocks, self.writers, self.machine.ledger = [], {}, None
            if self.machine.wire is not None:
                self.machine.wire.close()
                self.machine.wire = None
            os.close(self._fd)
            self.lock = contextlib.nullcontext()

    def left_by(self, error: str) -> None:
        mine = self._mine
        mine.kernel, mine.program, mine.site, mine.cmp, mine.flag_owner = _HOST, "", "", "", -1
        mine.what, mine.state = f"nothing: it has left by {error}", control.FAILED
        self._write()

    def forget_world(self) -> None:
        """In a child of fork: what the parent shares with other ranks is not the child's, which must publish nothing."""
        self._blocks, self._host_watch, self.writers, self._contexts = [], None, {}, {}
        self.lock = contextlib.nullcontext()
        self.machine.ledger = self.machine.wire = None
        self._host = Watched()

    def _watch_host(self) -> None:
        """Publishes that this rank is blocked while its script is in a collective of torch, which the scheduler cannot see."""
        ran, told, mine = None, False, self._mine        # told: by this thread, not by `idle`, which looks for itself
        while not self._left.wait(_LOOK):
            before, ran = ran, self._host.ran()
            if ran != before:
                if told and mine.state == control.BLOCKED and mine.kernel == _HOST:
                    self._publish(control.RUNNING)
                told = False
            elif mine.state == control.RUNNING:          # but it has stood still since the last look
                inside, place = _collective(stack_of(self._host.thread))
                if inside:
                    mine.kernel, mine.program, mine.cmp, mine.flag_owner = _HOST, "", "", -1
                    mine.site, mine.what, mine.state = place, f"torch.distributed.{inside}", control.BLOCKED
                    self._write()
                    told = True

    # -- idling --------------------------------------------------------------------------------------------
    def enter_host(self) -> None:
        """The calling thread is about to use the device. It may be another thread than before."""
        if threading.get_ident() == self._host.thread:
            return
        if self._hub is not None:
            raise UnsupportedFeature("two threads of this process use the emulated device at the same time; let one thread "
                                     "at a time launch, copy and synchronise, say under a lock")
        if any(actor.greenlet is not None for actor in (*self.blocked(), *self.queued(), *self._ready.all())):
            raise UnsupportedFeature("another thread of this process has left work on a side stream of the emulated device, "
                                     "which only that thread can finish; call triton_dist.synchronize() there first")
        self._host = Watched()

    def block(self, key: Any, predicate: Any, waiting: Any) -> None:
        self.enter_host()
        try:
            super().block(key, predicate, waiting)
        finally:
            if self.current is self.main:
                self._resume()               # host code goes on, maybe for long

    def idle(self) -> None:
        if self.poll():
            self._resume()
            return
        now = time.monotonic()
        if not self._idling:
            self._since = self._still = now
        self._idling += 1
        if self._idling <= _SPINS:
            os.sched_yield()
            return
        if now - self._since > _PUBLISH and self.encouraged():
            return
        if now - self._since > _PUBLISH and now - self._looked > _LOOK:
            self._looked = now
            self.check_bounds()
            self._publish(control.BLOCKED)
            self._look(now)
        time.sleep(min(_LONGEST, _PAUSE * 1.2**(self._idling - _SPINS) if self._idling < 60 else _LONGEST))

    def _resume(self) -> None:
        if self._idling > _SPINS and self._mine.state != control.RUNNING:
            self._publish(control.RUNNING)
        self._idling = 0

    def collapse(self, error: Exception) -> None:
        self._publish(control.FAILED)        # with what it waited for, for the others' reports
        self._idling = 0
        super().collapse(error)

    def _look(self, now: float) -> None:
        """Raises HangError when no rank can move any more."""
        if not self.blocked():
            return
        # A collective may take long, but not while every rank is in one: another one, or for another group.
        only_host = all(actor is self.main and actor.waiting.kind == "host" for actor in self.blocked())
        patience = _HOST_PATIENCE * self.patience if only_host else self.patience
        self._ask()
        records = [control.unpack(block) for block in self._blocks]
        states = [self._state(rank, record) for rank, record in enumerate(records)]
        counts = [record.progress for record in records]
        if counts != self._before or "running" in states or any(map(self._changed, records)):
            self._before, self._still = counts, now
        other = self.machine.conflict(self.main.rank)
        if other is not None:
            self.collapse(CollectiveMismatch(other))
        if any(map(control.told, self._blocks)):
            self.collapse(HangError("ended with the ranks that hang, told before"))
        # With a rank dead, or gone by an error, the world cannot end well: all who wait give up, whatever others still do.
        lost = "dead" in states or "failed" in states
        since = self._since if lost else max(self._since, self._still)
        if (lost or "running" not in states) and now - since >= (self.patience if lost else patience):
            self.collapse(hang.stuck(self, states, patience))

    def _ask(self) -> None:
        """Brings what ranks on other hosts say of themselves."""
        for rank in self.machine.wire.far if self.machine.wire is not None else ():
            try:
                self._blocks[rank][:control.RECORD] = self.machine.wire.ask(rank, "state", control.RECORD)
            except HangError:
                self._gone.add(rank)

    def _changed(self, record: control.Record) -> bool:
        """Whether the flag a rank waits for has another value than it saw: then its process is only slow to look."""
        if record.state != control.BLOCKED or record.flag_owner < 0 or not record.cmp or not self.machine.arenas:
            return False
        address = self.machine.arenas[-1].homes[record.flag_owner] + record.flag_offset
        if wire.place(address):
            return False                     # its own host's ranks look at it
        return (self.machine.memory.peek(address, 32) - record.seen) % 2**32 != 0

    def _state(self, rank: int, record: control.Record) -> str:
        if rank == self.main.rank:
            return "blocked"
        if record.state in (control.FINISHED, control.FAILED):
            return "finished" if record.state == control.FINISHED else "failed"
        if record.pid and self._dead(rank, record):
            return "dead"
        return "blocked" if record.state == control.BLOCKED else "running"

    def _dead(self, rank: int, record: control.Record) -> bool:
        if self.machine.wire is not None and rank in self.machine.wire.far:
            return rank in self._gone
        return not control.alive(record)

    # -- reports -------------------------------------------------------------------------------------------
    def elsewhere(self) -> list:
        """Rows of the other ranks, from their control blocks."""
        rows = []
        for rank, block in enumerate(self._blocks):
            if rank == self.main.rank:
                continue
            record = control.unpack(block)
            state = self._state(rank, record)
            if state in ("blocked", "failed"):
                what, writer = record.what, ""
                if record.flag_owner >= 0:
                    what = f"flag {self.machine.name_at(record.flag_owner, record.flag_offset, rank)}"
                    writer = hang.written_by(self.writers.at(record.flag_owner, record.flag_offset), str(record.seen))
                rows.append(Row(rank, record.kernel, record.program, record.site, what,
                                f"{record.cmp} {record.wanted}".strip() if record.cmp else "",
                                str(record.seen) if record.cmp else "", writer))
            else:
                rows.append(Row(rank, what={"dead": f"nothing: process {record.pid} is dead",
                                            "finished": "nothing: it has left the world",
                                            "running": "nothing: it runs host code"}[state]))
        return rows

    def tell(self, error: HangError) -> None:
        """Last words of a rank that ends by a hang: the table, where no rank has told it yet, then a line of its own.

        In a world, ends the process once the others have reported (or after two seconds), since the launcher would end them
        before; at once, because a thread that is stuck in a collective of torch aborts an orderly exit.
        """
        with self.lock:
            first = not any(map(control.told, self._blocks))
            if self._blocks:
                control.tell(self._blocks[self.main.rank])
            text = f"{error}\n" if first else ""
            last_words(f"{text}rank {self.main.rank} ends by this {type(error).__name__}")
        end = time.monotonic() + _LAST_WORDS
        while time.monotonic() < end and not all(map(self._silent, range(len(self._blocks)))):
            time.sleep(_LOOK / 10)
            self._ask()
        if self._blocks:
            sys.stdout.flush()
            os._exit(1)

    def _silent(self, rank: int) -> bool:
        block = self._blocks[rank]
        record = control.unpack(block)
        return control.told(block) or record.state == control.FINISHED or self._dead(rank, record)

    def _publish(self, state: int) -> None:
        if not self._blocks:
            return
        mine = self._mine
        mine.state, mine.progress = state, self.turns
        if state == control.BLOCKED:
            self._describe(mine)
        self._write()

    def _write(self) -> None:
        raw = self._mine.pack()
        if self._blocks:
            self._blocks[self.main.rank][:len(raw)] = raw

    def _describe(self, mine: control.Record) -> None:
        actor = self.blocked()[0]            # device waits come first
        waiting, cta = actor.waiting, actor.cta
        mine.kernel, mine.program = (cta.kernel, str(cta.pid)) if cta else (f"({actor.kind})", "")
        mine.site, mine.what, mine.cmp = hang.site_of(actor), waiting.words() or waiting.kind, ""
        place = self.machine.locate(waiting.address) if waiting.address else None
        mine.flag_owner, mine.flag_offset = place or (-1, 0)
        if waiting.wanted is not None:
            mine.cmp, mine.wanted, mine.seen = waiting.cmp or "is", int(waiting.wanted), int(waiting.value() or 0)


def _collective(stack: list[tuple[CodeType, int]]) -> tuple[str, str]:
    """(the function of torch.distributed that a stack is in, the place that called it); ("", "") where it is in none."""
    if not stack or _TORCH not in stack[0][0].co_filename:
        return "", ""
    code, line = next((call for call in stack if _TORCH not in call[0].co_filename), stack[-1])
    return stack[0][0].co_name, place_in(code, line)


_machine: Optional[Machine] = None


def start() -> Machine:
    """The machine of this process, made on first use."""
    global _machine
    if _machine is None:
        rank = number("RANK", 0, least=0, kind=int)
        scheduler = ProcessScheduler(number("TRITON_DIST_EMULATOR_SEED", 0, kind=int) + rank,
                                     os.environ.get("TRITON_DIST_EMULATOR_MODE") or "random", default_sms(), rank)
        _machine = Machine(scheduler)
        scheduling._stack.insert(0, scheduler)
        at_exit(functools.partial(_at_exit, _machine))
        os.register_at_fork(after_in_child=_machine.scheduler.forget_world)
        sys.excepthook = functools.partial(_excepthook, scheduler, sys.excepthook)
    return _machine


def _excepthook(scheduler: ProcessScheduler, others: Any, kind: type, error: BaseException, trace: Any) -> None:
    """An uncaught hang is told by its table; its tracebacks, one a rank, all end in the emulator."""
    if isinstance(error, HangError):
        scheduler.tell(error)
    else:
        others(kind, error, trace)


def _at_exit(machine: Machine) -> None:
    """Lets side streams finish what peers may wait for, then says so; whatever fails here has been told already."""
    with contextlib.suppress(Exception):
        machine.device().settle()
    machine.scheduler.leave()
    if any(helper.is_alive() for helper in machine.helpers):       # gloo aborts a process that ends around such a thread
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(1 if hasattr(sys, "last_value") else 0)

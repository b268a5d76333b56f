# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A world that is stuck: what it is called, who waits for whom, and which cycle that makes.

A flag does not say which program would have written it. So the stuck world runs on as if every wait were over. The program that
then writes a flag is the one for which the flag's waiter waits. If no program writes it even then, its signal is missing. And
if it is enough to give the waiting programs an SM, then residency was missing.
"""
import sys
from typing import Any

from triton_dist.backends.emulator.engine import hang
from triton_dist.checker import sites, words

_TURNS = 4000            # of a world that runs on
_STATEMENTS = 8          # waiting statements that a fault names
_NOBODY = ("no program would store this flag, even if every other wait were over: a notify is missing, or goes to another flag "
           "or rank")


class Over(Exception):
    """The world that ran on is stuck again."""


class Inquest:
    """Looks into one stuck world; the world is not usable afterwards."""

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.waiting = {self._key(a): a for a in reversed(scheduler.blocked()) if a.waiting.kind in ("flag", "mbarrier")}
        self.beyond = {key: (a.waiting.wanted, a.waiting.value()) for key, a in self.waiting.items() if hang.is_beyond(a.waiting)}
        self.short: dict = {}                # key -> (wanted, last writer, seen) of a flag that holds another value than 0
        for key, actor in self.waiting.items():
            seen, writer = actor.waiting.value(), scheduler.writers.get(actor.waiting.address)
            if writer is not None and isinstance(seen, int) and seen and actor.waiting.kind == "flag":
                self.short[key] = f"{actor.waiting.cmp} {actor.waiting.wanted}", f"rank {writer[0]} {writer[1]}", seen
        self.writers: dict = {}              # key -> (actor, stack) that would end the wait
        self.stacks = [self._stack(actor) for actor in scheduler.blocked() if actor.kind != "stream"]
        self.table = hang.table(hang.rows_of(scheduler))
        self.hosts_only = all(a.kind == "host" and a.waiting.kind == "collective" for a in scheduler.blocked())
        self.queued = [str(actor.name) for actor in scheduler.queued()]
        self.held = {actor.rank for actor in scheduler.queued()}

    @staticmethod
    def _key(actor: Any) -> Any:
        return actor.waiting.address or actor.key

    @staticmethod
    def _stack(actor: Any) -> tuple:
        if actor.greenlet is not None:
            return sites.kernel_stack(actor.greenlet.gr_frame)
        thread = actor.__dict__.get("_thread")
        return sites.host_stack(sys._current_frames().get(thread.ident)) if thread is not None else ()

    def wrote(self, key: Any) -> None:
        """The running actor has written a flag or arrived at a barrier, in the world that runs on."""
        if key in self.waiting and key not in self.writers and self.scheduler.current is not self.waiting[key]:
            self.writers[key] = self.scheduler.current, sites.kernel_stack()

    # -- the verdict -------------------------------------------------------------------------------------------
    def verdict(self) -> tuple:
        """(kind, statements, text)."""
        where = [site for stack in self.stacks[:_STATEMENTS] for site in sites.sites(stack)]
        if self.hosts_only:
            return "collective-mismatch", where, (
                f"some ranks wait for others in a collective that they never call:\n{self.table}{self._circle()}")
        if self.queued and self._is_residency():
            return "residency", where, (
                f"programs wait for others that cannot start: a rank has {self.scheduler.num_sms} SMs, all held by programs that "
                f"wait, and {len(self.queued)} programs have none ({', '.join(self.queued[:3])}):\n{self.table}\n"
                "  fix: launch at most as many programs as can be resident (backend().num_sms()), as a cooperative launch; or, "
                "where the GPU has more SMs, set TRITON_DIST_EMULATOR_SMS (--num-sms, num_sms of check_kernel)")
        self._pass_all()
        return "deadlock", where, f"nothing can run, and these wait:\n{self.table}\n{self._relations()}"

    def _circle(self) -> str:
        """Words for ranks that wait for each other in collectives of different groups; '' where they do not."""
        edges = {a.rank: (a.waiting.lacks() or (a.rank,))[0] for a in self.scheduler.blocked() if a.waiting.lacks is not None}
        ring = hang.ring_in(edges)
        if not ring or len(ring) < 3:
            return ""
        return ("\nthe groups wait in a circle: " + " waits for ".join(f"rank {rank}" for rank in ring)
                + "\n  fix: call the collectives and ops of all groups in the same order on all ranks")

    def _is_residency(self) -> bool:
        before = {id(actor) for actor in self.scheduler.blocked()}
        most, self.scheduler.num_sms = self.scheduler.num_sms, 1 << 30
        try:
            for rank in self.held:
                self.scheduler._fill(rank)
            self._run_on()
        finally:
            self.scheduler.num_sms = most
        return any(id(actor) in before and actor.kind == "program" and actor.done for actor in self.waiting.values())

    def _pass_all(self) -> None:
        memory, end = self.scheduler.machine.memory, self.scheduler.turns + _TURNS
        stuck = list(self.waiting.values())
        while stuck and self.scheduler.turns < end:      # again and again: a block of packets is a wait for each of them
            for actor in stuck:
                if actor.waiting.kind == "mbarrier":
                    actor.key.phase += 1
                    self.scheduler.wake(actor.key)
                elif actor.waiting.cmp in ("eq", "ge"):
                    memory.poke(self._key(actor), int(actor.waiting.wanted))
                    self.scheduler.wake(self._key(actor))
                elif actor.waiting.cmp == "ne":
                    memory.poke(self._key(actor), 1)
                    self.scheduler.wake(actor.key)
            before = self.scheduler.turns
            self._run_on()
            moved = self.scheduler.turns > before
            stuck = [actor for actor in self.scheduler.blocked() if moved and actor in self.waiting.values()
                     and actor.waiting.kind in ("flag", "mbarrier")]

    def _why_not(self, key: Any) -> str:
        """Why no program stores the flag that is waited for; '' where nothing is known of it."""
        signals = self.scheduler.observer.signals
        if key in signals.host_set:
            release, stack = signals.host_set[key]
            return (f"host code at {words.at(stack)} has overwritten this flag after {words.who(release.event)} had stored it at "
                    f"{words.at(release.stack)}\n    fix: clear flags before a barrier of all ranks, or never: let values grow "
                    "from call to call and wait with cmp \"ge\"")
        if key in self.beyond:
            wanted, seen = self.beyond[key]
            return (f"the flag holds {seen} already, which is beyond {wanted}, and this wait is for exactly that\n"
                    "    fix: wait with cmp \"ge\", or let the writer wait until each value has been seen")
        if key in signals.failed:
            thread, stack = signals.failed[key]
            return (f"the compare-and-swap of this flag by {words.who(thread)} at {words.at(stack)} found another value and "
                    "failed: it has stored nothing\n    fix: repeat it until it succeeds, or store the flag by "
                    "tl.atomic_xchg")
        if key in self.short:
            wanted, writer, seen = self.short[key]
            return (f"{writer} has stored {seen}, and no program would store {wanted}, even if every other wait were over: a "
                    "notify has the wrong value, is missing, or goes to another flag or rank")
        return ""

    def _run_on(self) -> None:
        end = self.scheduler.turns + _TURNS

        def over() -> bool:
            for actor in self.scheduler._ready.all():
                if actor.kind == "host":             # host scripts stay where they are
                    self.scheduler._ready.remove(actor)
            return self.scheduler.turns >= end
        try:
            self.scheduler.run_until(over)
        except Over:
            pass

    def _relations(self) -> str:
        lines, edges = ["who waits for whom:"], {}
        for key, actor in self.waiting.items():
            writer = self.writers.get(key)
            if writer is None:
                lines.append(f"  {_name(actor)}: {self._why_not(key) or _NOBODY}")
            else:
                edges[actor] = writer[0]
                place = sites.sites(writer[1])
                lines.append(f"  {_name(actor)} waits for {_name(writer[0])}"
                             + (f", which stores this flag at {place[0]}" if place else ""))
        ring = hang.ring_in(edges)
        if ring:
            lines.append("cycle: " + " -> ".join(_name(actor) for actor in ring))
        return "\n".join(lines)


def _name(actor: Any) -> str:
    return f"rank {actor.rank} {actor.name}"

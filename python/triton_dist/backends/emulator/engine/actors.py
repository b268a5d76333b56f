# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the scheduler runs: actors, the grid they belong to, and what a blocked one waits for."""
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import greenlet


@dataclass(frozen=True)
class Cta:
    """A program instance: its id, its grid (both three ints), kernel name and launch width."""
    pid: tuple
    grid: tuple
    kernel: str
    num_warps: int = 4
    num_ctas: int = 1


@dataclass
class Waiting:
    """What a blocked actor waits for, as the hang report prints it."""
    kind: str                                  # 'flag', 'event', 'stream', 'collective', 'mbarrier', ...
    address: int = 0                           # of the flag, as mapped here
    wanted: Any = None
    cmp: str = ""                              # 'eq', 'ge', ...
    seen: Optional[Callable[[], Any]] = None   # reads the value now
    site: str = ""                             # file:line (function)
    text: Any = ""                             # free words, or a callable that gives them
    lacks: Optional[Callable[[], list]] = None # of a collective: the ranks that have not come
    since: float = field(default_factory=time.monotonic)

    def words(self) -> str:
        return self.text() if callable(self.text) else self.text

    def value(self) -> Any:
        """The value the flag holds now; None where there is none or it cannot be read."""
        if self.seen is None:
            return None
        try:
            return self.seen()
        except Exception:      # memory that has gone: the report must still come out
            return None


class Crew:
    """The actors of one launch: programs, partitions and asynchronous copies. It ends when the last of them does."""

    def __init__(self, rank: int, name: str):
        self.rank, self.name = rank, name
        self.members: dict = {}                # insertion-ordered set
        self.error: Optional[BaseException] = None

    @property
    def done(self) -> bool:
        return not self.members


class Actor:
    """Something that runs in turns. The front end and the checker may hang attributes of their own on it.

    kind: 'host', 'stream', 'program', 'partition' or 'copy'. `serves`: keys on which others wait for this actor; in the
    late modes a stream or copy runs only when one of them is waited for, or nothing else can run. `generic`: a copy that sees
    what its issuer's CTA has stored without a fence of the async proxy. `by_threads`: a copy of the threads themselves
    (cp.async), whose writes the async proxy sees after such a fence only.
    """
    generic = by_threads = False

    def __init__(self, name: str, rank: int, kind: str, cta: Optional[Cta] = None, crew: Optional[Crew] = None,
                 serves: tuple = ()):
        self.name, self.rank, self.kind, self.cta, self.crew = name, rank, kind, cta, crew
        self.serves = serves + (self, )
        self.waiting: Optional[Waiting] = None
        self.key: Any = None                   # what wake() must be called with
        self.predicate: Optional[Callable[[], bool]] = None
        self.done = False
        self.killed = False
        self.resident = False                  # a program that holds an SM
        self.error: Optional[BaseException] = None
        self.work: tuple = ()                  # function and arguments, until it starts
        self.greenlet: Any = None
        self.steps: list = []                  # of an asynchronous copy, last first
        self.priority: Optional[float] = None
        self.encouraged = 0                    # how many programs seem to spin, where it goes on polling nevertheless; else 0
        self.errors: list = []                 # of a host: failures of its device, to be raised at its next wait

    @property
    def lazy(self) -> bool:
        return self.kind in ("stream", "copy")

    def enter(self, hub: greenlet.greenlet) -> None:
        """Hub to actor; returns when the actor leaves or ends."""
        if self.greenlet is None:
            self.greenlet = greenlet.greenlet(self._perform, hub)
        elif self.greenlet.parent is not hub:
            self.greenlet.parent = hub
        self.greenlet.switch()

    def _perform(self) -> None:
        (fn, args), self.work = self.work, ()
        try:
            fn(*args)
        except greenlet.GreenletExit:
            pass
        except BaseException as error:         # KeyboardInterrupt included: it belongs to the host
            self.error = error
        self.done = True

    def leave(self, hub: Any) -> None:
        """Actor to hub; returns when the actor is entered again."""
        hub.switch()

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name} rank {self.rank}>"


def noted(error: BaseException, actor: Actor) -> BaseException:
    """The error, with a note of the program in which it was raised."""
    if actor.cta is not None:
        error.add_note(f"in kernel {actor.cta.kernel}, program {actor.cta.pid}, on rank {actor.rank} of the emulator")
    return error

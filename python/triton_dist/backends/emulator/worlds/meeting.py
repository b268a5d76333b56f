# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Groups of virtual ranks: collectives of host scripts in one process."""
import collections
import pickle
from typing import Any, Callable, Optional, Sequence

import torch

from triton_dist.backends.emulator.engine.actors import Waiting
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.stacks import script_line
from triton_dist.runtime.state import state


class _Round:
    """One collective: what each member brought, by index."""

    def __init__(self, size: int, what: str, first: int):
        self.what, self.first = what, first
        self.values: list = [None] * size
        self.arrived: dict = {}                  # index -> the host that waits
        self.left = 0
        self.number = 0                          # which of its group's collectives it is


class _Meeting:
    """The place where the members of one group meet, one collective after another."""

    def __init__(self, size: int):
        self.counts = [0] * size
        self.rounds: dict = {}
        self.letters: collections.defaultdict = collections.defaultdict(_Letters)    # (source, destination, tag) -> _Letters


class _Letters:
    """What one member has sent to another, in order."""

    def __init__(self) -> None:
        self.sent: list = []                     # a _Round each, None once it has been taken
        self.asked = 0                           # how many have been asked for, in this order


class Meetings:
    """All meeting places of a world, by the ranks that meet and how many groups of the same ranks came before."""

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self._places: dict = {}
        self._made: collections.Counter = collections.Counter()

    def ordinal(self, ranks: tuple, rank: int) -> int:
        """How many groups of these ranks, in this order, a rank has made before."""
        self._made[ranks, rank] += 1
        return self._made[ranks, rank] - 1

    def place(self, ranks: tuple, ordinal: int) -> _Meeting:
        """Where the members of the group meet that was the `ordinal`-th of these ranks."""
        return self._places.setdefault((ranks, ordinal), _Meeting(len(ranks)))


class VirtualGroup(Group):
    """A group of virtual ranks. Objects travel by pickle, so that no member sees another's."""

    def __init__(self, meetings: Meetings, world_ranks: tuple, world_rank: int):
        self._meetings, self.world_ranks = meetings, world_ranks
        self.size, self.rank = len(world_ranks), world_ranks.index(world_rank)
        self.ordinal = meetings.ordinal(world_ranks, world_rank)
        self._place = meetings.place(world_ranks, self.ordinal)
        self.destroyed = False                   # by torch.distributed
        self.torch: Any = None                   # of the world: what torch.distributed knows on this rank

    def usable_in(self, world: Group) -> bool:
        return isinstance(world, VirtualGroup) and world._meetings is self._meetings and not self.destroyed

    def new_group(self, ranks: Sequence[int]) -> Optional["VirtualGroup"]:
        """The group of these world ranks, in this order; None where the caller is not among them."""
        ranks, me = tuple(int(r) for r in ranks), self.world_ranks[self.rank]
        if len(set(ranks)) != len(ranks) or not set(ranks) <= set(self.world_ranks):
            raise InvalidArgument(f"ranks: expected different members of {list(self.world_ranks)}, found {list(ranks)}")
        if me not in ranks:
            return None
        made = VirtualGroup(self._meetings, ranks, me)
        made.name = f"ranks {list(ranks)}, {made.ordinal}"
        state().named[made.name] = made
        return made

    @property
    def held(self) -> Any:
        """torch's ProcessGroup of the world, made now if there is none yet; of a part of a world what stands for it."""
        if self.torch is None:
            return super().held
        self.torch.join()
        return self.torch.default_pg

    def share(self, what: str, obj: Any) -> list:
        """Every member's object itself, by index."""
        return self._meet(what, obj)

    def barrier(self) -> None:
        self._meet("barrier", None)

    def all_gather_object(self, obj: Any) -> list:
        return [pickle.loads(raw) for raw in self._meet("all_gather_object", pickle.dumps(obj))]

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        mine = pickle.dumps(obj) if self.rank == root else None
        return pickle.loads(self._meet(f"broadcast_object from {root}", mine, root)[root])

    def all_gather_tensor(self, out: torch.Tensor, x: torch.Tensor) -> None:
        self.finish_stream()
        parts = self._meet("all_gather_tensor", x.detach().clone())
        with torch.no_grad():
            out.copy_(torch.cat(parts).view(out.shape))

    def reduce_scatter_tensor(self, out: torch.Tensor, x: torch.Tensor, op: str = "sum") -> None:
        self.finish_stream()
        rows = x.shape[0] // self.size
        parts = self._meet("reduce_scatter_tensor", x.detach().clone())
        with torch.no_grad():
            out.copy_(_reduced([part[self.rank * rows:(self.rank + 1) * rows] for part in parts], op))

    def all_reduce_tensor(self, x: torch.Tensor, op: str = "sum") -> None:
        self.finish_stream()
        parts = self._meet("all_reduce_tensor", x.detach().clone())
        with torch.no_grad():
            x.copy_(_reduced(parts, op))

    def all_to_all_tensor(self, out: torch.Tensor, x: torch.Tensor, out_splits: Optional[list] = None,
                          in_splits: Optional[list] = None) -> None:
        self.finish_stream()
        rows = x.detach().clone().split(in_splits or [x.shape[0] // self.size] * self.size)
        parts = self._meet("all_to_all_tensor", rows)
        with torch.no_grad():
            out.copy_(torch.cat([part[self.rank] for part in parts]))

    def finish_stream(self) -> None:
        """A tensor collective follows the current stream, as it does on a GPU."""
        self._meetings.scheduler.machine.device().current.synchronize()

    def _meet(self, what: str, value: Any, root: Optional[int] = None) -> list:
        """Every member's value. Members then know what all did before, or with a `root` what that one did."""
        return self.await_all(self.arrive(what, value, root))

    def arrive(self, what: str, value: Any, root: Optional[int] = None) -> _Round:
        """This member's part in the next collective: what it gives. Never waits.

        Raises CollectiveMismatch where another member has come with another collective.
        """
        place, scheduler = self._place, self._meetings.scheduler
        number = place.counts[self.rank]
        place.counts[self.rank] += 1
        me = self.world_ranks[self.rank]
        meeting = place.rounds.setdefault(number, _Round(self.size, what, me))
        for index in [i for i, host in meeting.arrived.items() if host.errors]:
            self._withdraw(meeting, index)       # it is about to leave by an error
        if not meeting.arrived:
            meeting.what, meeting.first = what, me
        if meeting.what != what:
            raise CollectiveMismatch(f"collective {number} of ranks {list(self.world_ranks)}: rank {meeting.first} called "
                                     f"{meeting.what}, rank {me} called {what}; all members must call the same")
        meeting.number = number
        meeting.values[self.rank] = value
        meeting.arrived[self.rank] = scheduler.current
        scheduler.observer.arrived(meeting, root in (None, self.rank))
        scheduler.wake(meeting)
        return meeting

    def await_all(self, meeting: _Round, learns: bool = True) -> list:
        """What every member gave, by index, once all have come. `learns`: this member then knows what the others did before."""
        scheduler = self._meetings.scheduler
        line = script_line() if len(meeting.arrived) < self.size else ""
        try:
            scheduler.block(meeting, lambda: len(meeting.arrived) == self.size, Waiting(
                "collective", site=line, text=lambda: self._missing(meeting), lacks=lambda: self._lacks(meeting)))
        except BaseException:
            if len(meeting.arrived) < self.size and meeting.arrived.get(self.rank) is scheduler.current:
                self._withdraw(meeting, self.rank)
            raise
        if learns:
            scheduler.observer.left(meeting)
        meeting.left += 1
        if meeting.left == self.size:
            del self._place.rounds[meeting.number]
        return meeting.values

    # -- between two members ---------------------------------------------------------------------------------
    def post(self, value: Any, to: int, tag: int) -> None:
        """Sends `value` to the member of index `to`, without waiting for it."""
        scheduler, letters = self._meetings.scheduler, self._place.letters[self.rank, to, tag]
        letter = _Round(1, "send", self.world_ranks[self.rank])
        letter.values[0] = value
        scheduler.observer.arrived(letter, True)
        letters.sent.append(letter)
        scheduler.wake((id(self._place), to))

    def ticket(self, source: int, tag: int) -> int:
        """Asks for the next value from the member of index `source`: its number, for `take`."""
        letters = self._place.letters[source, self.rank, tag]
        letters.asked += 1
        return letters.asked - 1

    def take(self, source: int, tag: int, ticket: int) -> Any:
        """The value of that number, once it has been sent."""
        letters = self._place.letters[source, self.rank, tag]
        self._await_letter(lambda: len(letters.sent) > ticket, [self.world_ranks[source]])
        letter, letters.sent[ticket] = letters.sent[ticket], None
        self._meetings.scheduler.observer.left(letter)
        return letter.values[0]

    def take_any(self, tag: int) -> tuple:
        """(source, value) of the first value that has been sent to this member and has not been asked for."""
        def ready() -> list:
            known = {source: self._place.letters[source, self.rank, tag] for source in range(self.size)}
            return [source for source, letters in known.items() if len(letters.sent) > letters.asked]
        self._await_letter(lambda: bool(ready()), [rank for rank in self.world_ranks if rank != self.world_ranks[self.rank]])
        source = ready()[0]
        return source, self.take(source, tag, self.ticket(source, tag))

    def _await_letter(self, predicate: Callable[[], bool], sources: list) -> None:
        text = f"recv, for which rank{'s' * (len(sources) > 1)} {', '.join(map(str, sources))} did not call send"
        self._meetings.scheduler.block((id(self._place), self.rank), predicate,
                                       Waiting("collective", site=script_line(), text=text, lacks=lambda: sources))

    def _withdraw(self, meeting: _Round, index: int) -> None:
        """As if that member had never come."""
        del meeting.arrived[index]
        self._place.counts[index] -= 1

    def _lacks(self, meeting: _Round) -> list:
        return [rank for index, rank in enumerate(self.world_ranks) if index not in meeting.arrived]

    def _missing(self, meeting: _Round) -> str:
        missing = self._lacks(meeting)
        return f"{meeting.what}, which rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} did not call"


def _reduced(parts: list, op: str) -> torch.Tensor:
    """Their "sum", "max" or "min". Sums are in the order of ranks, 2-byte types in fp32."""
    stacked = torch.stack(parts)
    if op != "sum":
        return getattr(stacked, f"a{op}")(0)
    return stacked.float().sum(0) if stacked.dtype in (torch.bfloat16, torch.float16) else stacked.sum(0)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Workspaces: the symmetric buffers, flags and epoch that one kind of op keeps on one group (protocol rules 6 to 12).

A workspace has two halves of fixed capacity for data, used by alternate epochs; int32 flags, each with one writer a call,
which stores the epoch; and a control block in local device memory: word 0 the epoch of the last finished call, word 1 a
ticket. All layers share it. A rank that starts call n knows that every peer has finished call n-2, because no op ends
before it has acquired epoch n from every peer.
"""
import gc
import weakref
from typing import Any, Callable

import torch

from triton_dist.runtime.backend import backend
from triton_dist.runtime.context import MAX_WORLD
from triton_dist.runtime.device import Stream
from triton_dist.runtime.errors import UnsupportedFeature, WorkspacePoisoned
from triton_dist.runtime.groups import Group, forget, resolve
from triton_dist.runtime.heap import create_symm_tensor, heap
from triton_dist.runtime.state import state

# A flag that no call has written for 2^31 calls would compare as new; all flags are renewed well before that.
RENEW_EVERY = 1 << 29
_GRAIN = 1 << 16
MAX_PROGRAMS = 1024            # of a kernel that counts its calls on the device
_MOST_DERIVED = 256         # views and descriptors of a workspace that are kept
TEAM_DELTAS = 2 + MAX_WORLD                # int32 words of a team before the distances of heaps
TEAM_PEERS = TEAM_DELTAS + 2 * MAX_WORLD   # and before the same from this member on, in turn


def to_int32(value: int) -> int:
    """`value` wrapped to a signed 32-bit integer, as the device counts epochs."""
    return (value + 2**31) % 2**32 - 2**31


class Workspace:
    """State of one (group, op kind). `epoch` is the number of calls begun, as the device counts it (int32, wraps).

    num_halves: 2, or 1 where calls use the same buffer each time.
    """

    control_words = 2
    num_halves = 2

    def __init__(self, group: Group, kind: str):
        self.group, self.kind = group, kind
        self.epoch = 0
        self.half_bytes = 0
        self.control = backend().outside_pools(
            lambda: torch.zeros(self.control_words, dtype=torch.int32, device=backend().device()))
        self.data: Any = None                       # uint8 [num_halves * half_bytes], symmetric
        self.flags: Any = None                      # int32 [num_flags], symmetric
        self.generation = 0                         # changes whenever data or flags move
        self._derived: dict = {}
        self._calls = 0
        self._poison: str | None = None
        self._writer: Callable[[int], int] | None = None

    def reserve(self, half_bytes: int, num_flags: int = 0, writer: Callable[[int], int] | None = None) -> None:
        """Grows to at least this capacity. Collective over the group whenever it grows, so sizes must be agreed.

        `writer` gives the member that writes a flag of this rank, by the flag's index: hang reports name it.
        """
        self._check_usable()
        if self.data is None or half_bytes > self.half_bytes:
            old, self.data = self.data, None            # where the heap has no room, the next call starts afresh
            self.half_bytes = -(-half_bytes // _GRAIN) * _GRAIN
            self.data = self._renew(old, (self.num_halves * self.half_bytes,), torch.uint8, "halves")
        if num_flags and (self.flags is None or num_flags > self.flags.numel()):
            old, self.flags = self.flags, None
            self.flags = self._renew(old, (-(-num_flags // 1024) * 1024,), torch.int32, "flags")
            here = weakref.ref(self)                                # the heap must not keep the workspace alive
            self.flags.tdist_allocation.writer = lambda offset: _written_by(here(), offset // 4)
            self._age_flags()
        if num_flags:
            self._writer = writer

    def halves(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """All of each half as `dtype` [elements], that of even epochs first."""
        return self.derived(dtype, lambda: list(self.data.view(dtype).view(self.num_halves, -1)))

    def derived(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make()` makes of the buffers, until they move: plans for many numbers of rows have it in common."""
        if key not in self._derived:
            if len(self._derived) >= _MOST_DERIVED:
                self._derived.clear()
            self._derived[key] = make()
        return self._derived[key]

    def set_epoch(self, epoch: int) -> None:
        """Collective: restarts the count at `epoch`, with every flag as old as that. No call may be in flight."""
        backend().synchronize()
        self.group.barrier()
        self._restart_at(to_int32(epoch))
        backend().synchronize()
        self.group.barrier()

    def calls_begun(self) -> int:
        """The epoch of the last call begun."""
        return self.epoch

    def _age_flags(self) -> None:
        self.set_epoch(self.epoch)

    def _restart_at(self, epoch: int) -> None:
        self.epoch = epoch
        self.control.copy_(torch.tensor([epoch, 0], dtype=torch.int32))
        if self.flags is not None:
            self.flags.fill_(epoch)

    def call(self) -> "Workspace":
        """One call on the current stream: takes the next epoch, which `with` gives. An error inside poisons the workspace."""
        self._check_usable()
        follow_last_op(backend().current_stream())
        self._calls += 1
        if self._calls % RENEW_EVERY == 0:
            self.set_epoch(self.epoch)
        self.epoch = to_int32(self.epoch + 1)
        return self

    def __enter__(self) -> int:
        return self.epoch

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """A call that has begun ends by `error`: poisons the workspace, unless a graph is captured, which has sent nothing."""
        if backend().is_capturing():
            return
        self._poison = self._poison or f"{type(error).__name__}: {error}"

    def _check_usable(self) -> None:
        if self._poison is not None:
            raise WorkspacePoisoned(
                f"{self.kind} on ranks {list(self.group.world_ranks)}: an earlier call failed after it had begun "
                f"({self._poison}), so peers may be one call ahead; restart the world")

    def _renew(self, old: torch.Tensor | None, shape: tuple, dtype: torch.dtype, what: str) -> torch.Tensor:
        if backend().is_capturing():
            raise UnsupportedFeature(f"{self.kind}: its workspace would have to grow inside graph capture; run the op once "
                                     "with the largest shape before capturing")
        self.generation += 1
        self._derived.clear()
        if old is not None:
            for record in state().all_records():
                record.moved()
            self._give_up(old)
        return create_symm_tensor(shape, dtype, self.group, name=f"{self.kind} {what}")

    def _give_up(self, old: torch.Tensor) -> None:
        """Frees a buffer that a larger one replaces."""
        heap().release(old.tdist_allocation, self.group)


class CountedWorkspace(Workspace):
    """A workspace whose kernels count the calls, since a captured launch replays its arguments (protocol rule 19).

    `control` holds the epoch of the last call once for each program of a grid: int32 [MAX_PROGRAMS] (ops/device/packets.py).
    Data and flags alternate between halves, so flags are compared for equality and need no renewal. Eager calls, and replays of
    captured ones, may follow each other in any order on one stream. What captured calls use is kept as long as one of their
    graphs lives, or for good where torch does not tell which graph is being captured.
    """

    control_words = MAX_PROGRAMS

    def __init__(self, group: Group, kind: str):
        super().__init__(group, kind)
        self._eager_stream = backend().eager_stream
        self._captured = False
        self._graphs: weakref.WeakSet | None = weakref.WeakSet()       # None: some of them are not known
        self._kept: list = []                   # (buffer, graphs) that a captured call used before the buffers moved

    def call(self) -> "CountedWorkspace":
        """One call on the current stream, or one captured on it. An error inside poisons the workspace, outside of captures."""
        if self._poison is not None:
            self._check_usable()
        stream = self._eager_stream()
        if stream is None:
            self._note_capture()            # and order between streams is that of the graph's replays
        elif stream is not state().last_stream:
            follow_last_op(stream)
        return self

    def calls_begun(self) -> int:
        """The epoch of the last call, read from the device."""
        backend().synchronize()
        return int(self.control[0])

    def _age_flags(self) -> None:
        """Fresh flags are 0, which is no epoch."""

    def _restart_at(self, epoch: int) -> None:
        self.control.fill_(epoch)
        if self.flags is not None:
            self.flags.zero_()              # of epochs that come again; 0 is no epoch

    def _note_capture(self) -> None:
        self._captured, graph = True, backend().capturing_graph()
        if graph is None:
            self._graphs = None
        elif self._graphs is not None:
            self._graphs.add(graph)

    def _give_up(self, old: torch.Tensor) -> None:
        if not self._captured:
            super()._give_up(old)
            return
        # Graphs end at other times on other ranks, so such buffers are only dropped, and freed when all have dropped them.
        graphs = None if self._graphs is None else weakref.WeakSet(self._graphs)
        self._kept = [(kept, of) for kept, of in [*self._kept, (old, graphs)] if of is None or len(of)]


class SelfFlaggedWorkspace(CountedWorkspace):
    """A workspace whose data is its own flag (language/selfflag.py): between calls all words are 0, empty.

    It keeps fewer copies of the epoch, since its kernels are short: at most this many programs.
    """

    control_words = 256

    def _restart_at(self, epoch: int) -> None:
        super()._restart_at(epoch)
        if self.data is not None:
            self.data.zero_()               # a call that failed may have left words that nobody has taken


def workspace(group: Group, kind: str, cls: type = Workspace) -> Any:
    """The workspace of `kind` on `group`, a `cls`, made on first use."""
    key = (group.key, kind)
    if key not in state().workspaces:
        heap()
        state().workspaces[key] = cls(group, kind)
    space = state().workspaces[key]
    space.group = group                 # of the same ranks; the one it was made for may have been destroyed since
    return space


def _written_by(space: Workspace | None, flag: int) -> int | None:
    """World rank that writes a flag of this rank."""
    return None if space is None or space._writer is None else space.group.world_ranks[space._writer(flag)]


def reset(group: Any = None) -> None:
    """Drops all state that calls on `group` have left, and frees their buffers. Collective over `group`.

    The state consists of plans, workspaces with their epochs, measured times and decisions. Later calls work like first ones,
    also after a failure that poisoned a workspace. Graphs that have captured ops on this group must not be replayed any more.

    Args:
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.

    Raises CollectiveMismatch where ranks have made different calls: then the world has to be started anew.
    """
    members, me = resolve(group), state()
    me.expect_pairs()
    backend().synchronize()
    members.barrier()
    forget(members.key)
    gc.collect()                                # plans and groups refer to each other
    heap().collect(members)
    count = me.calls.setdefault(members.key, [0])
    count[0] = max(members.all_gather_object(count[0]))
    me.refused.discard(members.key)


def team(group: Group) -> torch.Tensor:
    """int32 device tensor [size, my index, world rank of each member]: what dl.team_* reads.

    From word TEAM_DELTAS on, int64, the bytes from an object in this rank's heap to the same on each member: one load, where
    dl.symm_at takes one for the member's world rank and more after it for its base. From word TEAM_PEERS on the same for the
    members after this one in turn, this one first: kernels find their peers there before they know their own index.
    """
    if group.key not in state().teams:
        words = [group.size, group.rank, *group.world_ranks]
        bases = heap().arena.bases
        deltas = [bases[rank] - bases[group.world_ranks[group.rank]] for rank in group.world_ranks]
        peers = deltas[group.rank:] + deltas[:group.rank]
        whole = torch.zeros(TEAM_PEERS + 2 * MAX_WORLD, dtype=torch.int32)
        whole[:len(words)] = torch.tensor(words, dtype=torch.int32)
        for first, distances in ((TEAM_DELTAS, deltas), (TEAM_PEERS, peers)):
            whole[first:first + 2 * len(deltas)] = torch.tensor(distances, dtype=torch.int64).view(torch.int32)
        state().teams[group.key] = backend().outside_pools(lambda: whole.to(backend().device()))
    return state().teams[group.key]


def follow_last_op(stream: Stream) -> None:
    """Orders `stream` after the last communicating op of this device (protocol rule 14)."""
    me = state()
    if me.last_stream is not None and me.last_stream != stream:
        try:
            stream.wait_stream(me.last_stream)
        except RuntimeError:                # a stream that torch does not own, and whose owner has destroyed it
            backend().synchronize()
    me.last_stream = stream


def side_streams(count: int) -> list[Stream]:
    """The first `count` streams on which this rank's ops push beside a kernel. They are made once and kept."""
    streams = state().side_streams
    while len(streams) < count:
        streams.append(backend().side_stream())
    return streams[:count]

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What goes with a scheduler: memory, one device a rank, the arenas, and names for addresses."""
from typing import Any, Optional

from triton_dist.backends.emulator.engine.scheduler import Scheduler
from triton_dist.backends.emulator.engine.streams import Device
from triton_dist.backends.emulator.memory import memory
from triton_dist.backends.emulator.worlds.ledger import Ledger
from triton_dist.runtime.environment import number
from triton_dist.runtime.errors import CollectiveMismatch
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import RankState, state


def default_sms() -> int:
    """Programs that can be resident at a time on a rank: TRITON_DIST_EMULATOR_SMS, or 8."""
    return number("TRITON_DIST_EMULATOR_SMS", 8, least=1, kind=int)


class Machine:
    """The emulated hardware of a process or of a virtual world."""

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.devices: dict = {}
        self.arenas: list = []                   # open ones
        self.teams: dict = {}                    # number of a SHMEM team made by scripts -> (ranks, heap offset of its pad)
        self.wire: Any = None                    # to ranks on other hosts, where there are any
        self.helpers: list = []                  # threads that collectives of torch ran on lately
        self.states: dict = {}                   # rank -> RankState, of virtual ranks
        self.ledger: Optional[Ledger] = None     # of op calls; None in a world of one
        self.node_latency = number("TRITON_DIST_NODE_LATENCY", 0, least=0, kind=int)     # turns on the way to another node
        scheduler.machine = self

    @property
    def memory(self) -> memory.Memory:
        return memory.active()               # one a process: addresses are the process's own

    def adopt(self, rank: int) -> None:
        """The process has learnt its rank."""
        main, old = self.scheduler.main, self.scheduler.main.rank
        main.rank, self.scheduler.hosts = rank, {rank: main}
        if old in self.devices:
            device = self.devices[rank] = self.devices.pop(old)
            device.rank = rank

    def device(self, rank: Optional[int] = None) -> Device:
        """Device of a rank; of the calling host's by default."""
        if rank is None:
            rank = self.scheduler.current.rank
        if rank not in self.devices:
            self.devices[rank] = Device(self, rank)
        return self.devices[rank]

    def note_call(self, group: Group, call: int, what: Any, refused: bool, withdrawn: bool = False) -> bool:
        """Notes an op call of the calling rank. Raises where a peer makes another one, and has that peer raise as well.

        withdrawn: peers that have made the call may still take it back. Returns whether all peers' calls are known here.
        """
        if not refused:
            self.scheduler.observer.called(group, what)
        if self.ledger is None or group.size == 1:
            return True
        me = group.world_ranks[group.rank]
        peers = self.ledger.post(me, group.world_ranks, call, what, refused, withdrawn)
        if peers and not withdrawn:
            text = self.conflict(me)
            for rank, rank_state in self.states.items():        # of a virtual world; a process finds out by itself
                rank_state.end(text or "a rank has refused a call that others make")
                if rank in peers and (told := self.ledger.conflict(rank)) is not None:
                    self.scheduler.fail(rank, CollectiveMismatch(told))
            if text is not None and not refused:
                raise CollectiveMismatch(text)
        return self.wire is None

    def conflict(self, rank: int) -> Optional[str]:
        """Words for a call in which `rank` differs from a peer, which it is told now; otherwise None."""
        text = self.ledger.conflict(rank) if self.ledger is not None else None
        if text is not None and rank not in self.states:
            state().end(text)
        return text

    def locate(self, address: int) -> Optional[tuple]:
        """(owner rank, heap offset) of an address in any arena."""
        for arena in self.arenas:
            for rank, base in enumerate(arena.homes):
                if base <= address < base + arena.nbytes:
                    return rank, address - base
        return None

    def name_of(self, address: int, reader: int) -> str:
        """Words for a flag address that rank `reader` looks at: the symmetric tensor's name, or the segment's."""
        place = self.locate(address)
        if place is None:
            segment = self.memory.at(address)
            return f"{segment.name} + {address - segment.base}" if segment else f"{address:#x}, of no known tensor"
        return self.name_at(*place, reader)

    def name_at(self, owner: int, offset: int, reader: int) -> str:
        """Words for an offset into the heap of rank `owner`."""
        rank_state: RankState = self.states.get(owner) or self.states.get(reader) or state()
        name = rank_state.heap.name_of(rank_state.heap.base + offset) if rank_state.heap is not None else None
        return f"{name or f'heap + {offset}'}, of rank {owner}"

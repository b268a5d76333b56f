# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Everything the runtime knows on behalf of one rank.

A process is one rank, except in an emulated virtual world, where each rank's host script runs in a context of its own.
"""
import atexit
import os
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Callable

from triton_dist.runtime.environment import debug
from triton_dist.runtime.errors import CollectiveMismatch


class Record:
    """What a room above the runtime remembers of the calls on one group. It goes away with the group."""

    group: Any                                          # groups.Group

    def moved(self) -> None:
        """A workspace has new buffers: what points into the old ones must not be used any more."""

    def doubt(self) -> None:
        """The next call must be looked at, also if it repeats one: ranks may not have made the same calls."""


@dataclass
class RankState:
    """Host state of a rank. Made empty; `runtime.world` fills it, `finalize` empties it again."""
    world: Any = None                                   # groups.Group
    heap: Any = None                                    # heap.SymmetricHeap
    nodes: tuple = ()                                   # node of each world rank, once there is a heap
    nodes_asked: int = 0                                # of a virtual world; 0: as the environment says
    groups: dict = field(default_factory=dict)          # id(process group) -> (process group, Group)
    named: dict = field(default_factory=dict)           # name -> Group, of groups that torch does not know
    workspaces: dict = field(default_factory=dict)      # (group key, kind) -> workspace.Workspace
    teams: dict = field(default_factory=dict)           # group key -> int32 device tensor
    records: dict = field(default_factory=dict)         # what remembers -> {group, as users pass it: Record}
    debug: bool = field(default_factory=debug)          # compare op calls over the ranks
    calls: dict = field(default_factory=dict)           # group key -> [number of op calls]
    refused: set = field(default_factory=set)           # keys of groups whose last call this rank refused, unknown to its peers
    over: str = ""                                      # how ranks differed in a call: then no later call can be made
    shmem_pads: list = field(default_factory=list)      # flags of SHMEM teams
    warned: set = field(default_factory=set)
    watched: list | None = None                         # how ops run, while `warm_up` wants to know
    products: Any = None                                # warm_up.Products, while `warm_up` calls
    variants: list | None = None                        # (kernel, options) of what is prepared, while an op makes a plan
    thread: int = 0                                     # identity of the one that called an op last
    turn: int = 0                                       # its number (runtime/threads.py)
    last_stream: Any = None                             # stream of the last communicating op (protocol rule 14)
    side_streams: list = field(default_factory=list)    # copy-engine pushes go here
    owns_process_group: bool = False
    forked: str = ""                                    # why there can be no world in a fork of a process that had one

    def all_records(self) -> list:
        """Every Record, more than once where users pass a group in several ways."""
        return [record for of_groups in self.records.values() for record in of_groups.values()]

    def forget_records(self, gone: Callable[[Record], bool]) -> None:
        """Drops the records that `gone` says are of a group that is gone."""
        self.records = {what: {group: record for group, record in of_groups.items() if not gone(record)}
                        for what, of_groups in self.records.items()}

    def doubt(self) -> None:
        """See Record.doubt."""
        for record in self.all_records():
            record.doubt()

    def end(self, how: str) -> None:
        """Ranks have differed in a call: every later one says so, with the first cause."""
        self.over = self.over or how
        self.doubt()

    def expect_pairs(self) -> None:
        """Raises CollectiveMismatch where ranks have differed in a call, since calls do not pair any more."""
        if self.over:
            raise CollectiveMismatch(f"ranks have differed before, so calls do not pair any more ({self.over}); start the world "
                                     "anew: finalize_distributed(), then initialize_distributed(), on all ranks")


_of_process = RankState()
_present: ContextVar = ContextVar("triton_dist_rank_state", default=_of_process)
state = _present.get                            # state(): that of the calling rank


def enter(rank_state: RankState) -> Any:
    """Makes `rank_state` the calling context's own; returns the token for `leave`."""
    return _present.set(rank_state)


def leave(token: Any) -> None:
    """Undoes `enter`."""
    _present.reset(token)


def _after_fork() -> None:
    """A child of fork has neither the threads nor the device of the world that its parent has joined."""
    if _of_process.world is not None or _of_process.owns_process_group:
        for name, value in vars(RankState()).items():
            setattr(_of_process, name, value)
        _of_process.forked = (
            "this process was forked from one that had joined a world, whose threads and device do not survive a fork; "
            "start workers by spawn (torch.multiprocessing.get_context('spawn'), or "
            "DataLoader(multiprocessing_context='spawn')), or fork them before initialize_distributed()")


os.register_at_fork(after_in_child=_after_fork)


def at_exit(call: Callable[[], None]) -> Callable[[], None]:
    """Like atexit.register, but not in children of fork: they lack the threads, and have the locks as they were.

    Returns what takes it back.
    """
    process = os.getpid()

    def here() -> None:
        if os.getpid() == process:
            call()
    atexit.register(here)
    return lambda: atexit.unregister(here)

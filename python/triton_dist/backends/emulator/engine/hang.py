# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What hangs in the emulator: who waits, for what, and what was seen, of all ranks."""
import time
from typing import Any, Optional, Sequence

from triton_dist.backends.emulator.engine.registry import MARK, site
from triton_dist.runtime.errors import HangError, WaitTimeout
from triton_dist.runtime.hang_table import Row, table

_LIBRARY = "triton_dist.language"
_DEVICE_WAITS = ("flag", "mbarrier")
_NEXT = ("\n`triton-dist check SCRIPT` (launch.sh --check) says which signal is missing; docs/troubleshooting.md has the usual "
         "causes")


def rows_of(scheduler: Any) -> list:
    """Rows of everything that waits on a scheduler: device waits first, then programs without an SM, then hosts."""
    blocked = scheduler.blocked()
    rows = [_row(scheduler, actor) for actor in blocked if actor.kind not in ("host", "stream")]
    for actor in scheduler.queued():
        holders = [a.name for a in blocked if a.rank == actor.rank and a.kind == "program"]
        rows.append(Row(actor.rank, actor.cta.kernel, str(actor.cta.pid),
                        what=f"an SM: all {scheduler.num_sms} (TRITON_DIST_EMULATOR_SMS) are held, by "
                             f"{', '.join(holders[:3]) or 'none'}"))
    if not rows or any(actor.kind == "host" and actor.waiting.kind == "collective" for actor in blocked):
        rows += [_row(scheduler, actor) for actor in blocked if actor.kind in ("host", "stream")]
    return sorted(rows + scheduler.elsewhere(), key=lambda row: row.rank)


def site_of(actor: Any) -> str:
    """The author's statement at which an actor waits, rather than the library helper inside it."""
    frame = actor.greenlet.gr_frame if actor.greenlet is not None else None
    while frame is not None:
        if MARK in frame.f_globals and not str(frame.f_globals.get("__name__")).startswith(_LIBRARY):
            return site(frame)
        frame = frame.f_back
    return actor.waiting.site


def _row(scheduler: Any, actor: Any) -> Row:
    waiting = actor.waiting
    row = Row(actor.rank, site=site_of(actor), what=waiting.words() or waiting.kind)
    if actor.cta is not None:
        row.kernel, row.program = actor.cta.kernel, str(actor.cta.pid)
        if actor.kind == "partition":
            row.program += f" {actor.name}"
    else:
        row.kernel = f"({actor.kind})"
    if waiting.wanted is not None:
        row.wanted, row.seen = f"{waiting.cmp} {waiting.wanted}".strip(), str(waiting.value())
    if waiting.address:
        name = scheduler.machine.name_of(waiting.address, actor.rank) if scheduler.machine else hex(waiting.address)
        row.what = f"flag {name}"
        row.writer = written_by(scheduler.writers.get(waiting.address), row.seen)
    return row


def written_by(writer: Optional[tuple], seen: str) -> str:
    """Words for a flag's last writer (rank, name). Stores of blocks and of host code, by any rank, leave their value alone."""
    if writer is not None:
        return f"rank {writer[0]} {writer[1]}"
    return "never written" if seen == "0" else "a block store, or host code"


def is_beyond(waiting: Any) -> bool:
    """Whether a wait for one exact value has come too late: its flag holds a greater one."""
    seen = waiting.value() if waiting.cmp == "eq" else None
    return isinstance(seen, int) and isinstance(waiting.wanted, int) and seen > waiting.wanted


def cycle(scheduler: Any) -> Optional[list]:
    """Ranks that wait for each other in a ring, as far as last writers and collectives tell; None where unknown."""
    edges: dict = {}
    for actor in scheduler.blocked():
        writer = scheduler.writers.get(actor.waiting.address) if actor.waiting.address else None
        if writer is not None and writer[0] != actor.rank:
            edges.setdefault(actor.rank, writer[0])
    return ring_in({rank: edges[rank] for rank in sorted(edges)})


def ring_in(edges: dict) -> Optional[list]:
    """Of {who waits: for whom}, those that wait for each other in a ring, the first at both ends; None where there is none."""
    for start in edges:
        path, at = [start], edges[start]
        while at in edges and at not in path:
            path.append(at)
            at = edges[at]
        if at in path:
            return path[path.index(at):] + [at]
    return None


def deadlock(scheduler: Any) -> HangError:
    """The error for a world in which nothing can run."""
    text = f"deadlock: nothing can run, and these wait (mode {scheduler.mode!r}):\n{table(rows_of(scheduler))}"
    ring = cycle(scheduler)
    if ring:
        text += "\nby the last writers of these flags: " + " waits for ".join(f"rank {r}" for r in ring)
    for actor in scheduler.blocked():
        if is_beyond(actor.waiting):
            text += (f"\nrank {actor.rank} waits for exactly {actor.waiting.wanted}, and its flag holds {actor.waiting.value()} "
                     "already: wait with cmp \"ge\", or let the writer wait until each value has been seen.")
    if scheduler.queued():
        text += ("\nPrograms wait for an SM that a waiting program holds: launch at most as many programs as can be "
                 "resident (TRITON_DIST_EMULATOR_SMS, or num_sms of run_ranks).")
    return HangError(text)


def stuck(scheduler: Any, states: Sequence[str], seconds: float) -> HangError:
    """The error for a world of processes in which no rank has moved for so long; `states` by rank."""
    dead = [rank for rank, state in enumerate(states) if state == "dead"]
    head = (f"rank{'s' * (len(dead) > 1)} {', '.join(map(str, dead))} died, and others wait" if dead else
            "hang: all ranks wait, or have left, and none has moved")
    rows = rows_of(scheduler)
    hint = not dead and any(row.what.startswith("flag ") for row in rows)
    return HangError(f"{head} for {seconds:g} seconds:\n{table(rows)}{_NEXT * hint}")


def expired(scheduler: Any) -> Optional[WaitTimeout]:
    """The error for device waits older than the scheduler's bound, or None."""
    now = time.monotonic()
    late = [a for a in scheduler.blocked() if a.waiting.kind in _DEVICE_WAITS
            and now - a.waiting.since > scheduler.wait_timeout]
    if not late:
        return None
    return WaitTimeout(f"a device wait lasted longer than TRITON_DIST_WAIT_TIMEOUT={scheduler.wait_timeout:g} "
                       f"seconds:\n{table(rows_of(scheduler))}")

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Puts, gets and signals on their way: each is an asynchronous copy, which lands at some later moment.

Unordered among each other, as OpenSHMEM has it: only `fence` makes later ones to a PE land after earlier ones, and only
`quiet` waits for them. A step cannot block, so one that must land after others lands those first. To and from another node
a transfer is TRITON_DIST_NODE_LATENCY turns on its way, in every delivery mode.
"""
from typing import Any, Callable, Sequence

from triton.language import core

from triton_dist.backends.emulator.engine import scheduler, streams
from triton_dist.backends.emulator.engine.registry import fault, site
from triton_dist.backends.emulator.engine.scheduler import Actor
from triton_dist.backends.emulator.memory import memory, wire
from triton_dist.backends.emulator.values.promotion import info

_BYTE = info(core.int8)
WORD = 64                     # bits of a signal


class Transfer(Actor):
    """One put, get or signal of the acting program. `pe`: whom it goes to; `phase`: what fence orders it by, None for a get."""
    generic = True

    def __init__(self, what: str, pe: int, phase: Any):
        issuer = scheduler.active().current
        super().__init__(f"{what} of {issuer.name}", issuer.rank, "copy")
        self.pe, self.phase, self.site = pe, phase, site()


class Channel:
    """What one program has sent since its last quiet. `phase` counts fences."""

    def __init__(self) -> None:
        self.sent: list = []
        self.phase = 0
        self.fenced = False      # nothing was sent since the last fence or quiet: a signal releases what came before it

    def get(self, what: str, pe: int, *steps: Callable[[], Any]) -> Transfer:
        """Issues a transfer from `pe`, which fence does not order."""
        return self._issue(Transfer(what, pe, None), steps, [])

    def send(self, what: str, pe: int, *steps: Callable[[], Any], after: Sequence = ()) -> Transfer:
        """Issues a transfer to `pe` of these steps. It lands after those in `after` as well."""
        before = [t for t in self.sent if t.pe == pe and t.phase is not None and t.phase < self.phase]
        return self._issue(Transfer(what, pe, self.phase), steps, [*before, *after])

    def _issue(self, transfer: Transfer, steps: Sequence, before: Sequence) -> Transfer:
        running = scheduler.active()

        def follow() -> None:
            for earlier in before:
                if not earlier.done:
                    running.complete(earlier)
                running.observer.after(earlier)

        self.sent.append(transfer)
        every = [*([follow] if before else []), *steps] or [lambda: None]       # of no bytes: it lands as well
        return running.issue(transfer, *every, delay=_latency(transfer))

    def fence(self, what: str = "fence") -> None:
        memory.active().fence("acq_rel", "sys")
        scheduler.active().observer.ordered(what)
        self.phase, self.fenced = self.phase + 1, True

    def quiet(self) -> None:
        """Waits for everything."""
        for transfer in self.sent:
            landed(transfer)
        self.sent.clear()
        self.fence("quiet")


def landed(transfer: Transfer) -> None:
    """Waits for a transfer."""
    running = scheduler.active()
    running.block(transfer, lambda: transfer.done, scheduler.Waiting(
        "shmem", site=site(), text=f"the {transfer.name.split()[0]} issued at {transfer.site} to land"))
    running.observer.joined(transfer)


def channel() -> Channel:
    """Of the acting program."""
    return scheduler.active().current.__dict__.setdefault("shmem", Channel())


def _context() -> Any:
    running = scheduler.active()
    return running.context_of(running.current.rank)


def homes() -> tuple:
    """(address of every PE's heap as mapped here, on other nodes as well; this rank)."""
    machine, context = scheduler.active().machine, _context()
    return (machine.arenas[-1].homes if context.bases else []), context.rank


def near(pe: int) -> bool:
    """Whether loads and stores reach `pe`."""
    context = _context()
    return pe == context.rank or context.nodes[pe] == context.nodes[context.rank]


def _latency(transfer: Transfer) -> int:
    return 0 if near(transfer.pe) else scheduler.active().machine.node_latency


def at(function: str, name: str, address: int, pe: int) -> int:
    """A local symmetric address as the same object's on `pe`."""
    slabs, me = homes()
    if not 0 <= pe < len(slabs):
        raise fault(f"libshmem_device.{function}: pe {pe} does not exist, the world has {len(slabs)}", "out-of-bounds")
    machine = scheduler.active().machine
    owner = machine.locate(address) if machine is not None else (me, 0)
    if owner is None or owner[0] != me:
        where = "in no symmetric heap" if owner is None else f"of rank {owner[0]}'s heap"
        raise fault(f"libshmem_device.{function}: {name} is {where}, expected an address in this rank's own, which pe selects "
                    "the twin of; pass a tensor of create_symm_tensor", "out-of-bounds")
    return address + slabs[pe] - slabs[me]


def check(function: str, name: str, address: int, nbytes: int) -> None:
    """Refuses bytes that are outside every tensor, where they are asked for rather than when they travel."""
    if nbytes > 0 and wire.place(address) is None:
        memory.active().find(address, nbytes, f"libshmem_device.{function}: {name}")


def pieces(dst: int, src: int, nbytes: int) -> list:
    """Steps that copy, reading late too."""
    return [lambda at=at, size=size: wire.copy(dst + at, src + at, size)
            for at, size in streams.pieces(scheduler.active(), nbytes)]


def delivery(dst: int, src: int, nbytes: int) -> list:
    """Steps that write what is at `src` now."""
    if not nbytes:
        return []
    data = memory.active().load_tile(src, (nbytes,), (1,), _BYTE)
    return [lambda at=at, size=size: wire.store(dst + at, data[at:at + size])
            for at, size in streams.pieces(scheduler.active(), nbytes)]


def signalling(flag: int, value: int, add: bool, sem: str) -> Callable[[], Any]:
    """The step that sets a 64-bit flag, or adds to it."""
    return lambda: wire.flag(flag, value, WORD, add, sem)

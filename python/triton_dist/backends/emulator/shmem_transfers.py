# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Puts, gets and signals on their way: each is an asynchronous copy, which lands at some later moment.

Unordered among each other, as OpenSHMEM has it: only `fence` makes later ones to a PE land after earlier ones, and only
`quiet` waits for them. A step cannot block, so one that must land after others lands those first.
"""
from typing import Any, Callable, Sequence

from triton.language import core

from triton_dist.backends.emulator import memory, scheduler, streams
from triton_dist.backends.emulator.promotion import info
from triton_dist.backends.emulator.registry import fault, site
from triton_dist.backends.emulator.scheduler import Actor

_BYTE = info(core.int8)
WORD = 64                     # bits of a signal


class Transfer(Actor):
    """One put, get or signal of the acting program. `pe`: whom it goes to; None for a get, which fence does not order."""

    def __init__(self, what: str, pe: Any, phase: int):
        issuer = scheduler.active().current
        super().__init__(f"{what} of {issuer.name}", issuer.rank, "copy")
        self.pe, self.phase, self.site = pe, phase, site()


class Channel:
    """What one program has sent since its last quiet. `phase` counts fences."""

    def __init__(self) -> None:
        self.sent: list = []
        self.phase = 0
        self.fenced = False      # nothing was sent since the last fence or quiet: a signal releases what came before it

    def send(self, what: str, pe: Any, *steps: Callable[[], Any], after: Sequence = ()) -> Transfer:
        """Issues a transfer of these steps. It lands after those in `after` as well."""
        running, transfer = scheduler.active(), Transfer(what, pe, self.phase)
        before = [t for t in self.sent if t.pe == pe and t.phase < self.phase] if pe is not None else []
        before += after

        def follow() -> None:
            for earlier in before:
                if not earlier.done:
                    running.complete(earlier)
                running.observer.after(earlier)

        self.sent.append(transfer)
        return running.issue(transfer, *([follow] if before else []), *steps)

    def fence(self) -> None:
        memory.active().fence("acq_rel", "sys")
        self.phase, self.fenced = self.phase + 1, True

    def quiet(self) -> None:
        """Waits for everything."""
        running = scheduler.active()
        for transfer in self.sent:
            running.block(transfer, lambda: transfer.done, scheduler.Waiting(
                "shmem", site=site(), text=f"the {transfer.name.split()[0]} issued at {transfer.site} to land"))
            running.observer.joined(transfer)
        self.sent.clear()
        self.fence()


def channel() -> Channel:
    """Of the acting program."""
    return scheduler.active().current.__dict__.setdefault("shmem", Channel())


def bases() -> tuple:
    """(address of every PE's heap as mapped here, this rank)."""
    running = scheduler.active()
    context = running.context_of(running.current.rank)
    return context.bases, context.rank


def at(function: str, name: str, address: int, pe: int) -> int:
    """A local symmetric address as the same object's on `pe`."""
    homes, me = bases()
    if not 0 <= pe < len(homes):
        raise fault(f"libshmem_device.{function}: pe {pe} does not exist, the world has {len(homes)}", "out-of-bounds")
    machine = scheduler.active().machine
    owner = machine.locate(address) if machine is not None else (me, 0)
    if owner is None or owner[0] != me:
        where = "in no symmetric heap" if owner is None else f"of rank {owner[0]}'s heap"
        raise fault(f"libshmem_device.{function}: {name} is {where}, expected an address in this rank's own, which pe selects "
                    "the twin of; pass a tensor of create_symm_tensor", "out-of-bounds")
    return address + homes[pe] - homes[me]


def pieces(dst: int, src: int, nbytes: int) -> list:
    """Steps that copy, reading late too."""
    copy = memory.active().copy
    return [lambda at=at, size=size: copy(dst + at, src + at, size)
            for at, size in streams.pieces(scheduler.active(), nbytes)]


def delivery(dst: int, src: int, nbytes: int) -> list:
    """Steps that write what is at `src` now."""
    if not nbytes:
        return []
    mem = memory.active()
    data = mem.load_tile(src, (nbytes,), (1,), _BYTE)
    return [lambda at=at, size=size: mem.store_tile(dst + at, (size,), (1,), _BYTE, data[at:at + size])
            for at, size in streams.pieces(scheduler.active(), nbytes)]


def signalling(flag: int, value: int, add: bool, sem: str) -> Callable[[], Any]:
    """The step that sets a 64-bit flag, or adds to it."""
    mem = memory.active()
    write = mem.flag_add if add else mem.flag_store
    return lambda: write(flag, value, WORD, sem, "sys")

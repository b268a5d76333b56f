# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Global memory under check: every access against its shadow."""
import ctypes
from typing import Any, Callable, Optional, Sequence

import numpy as np
import torch

from triton_dist.backends.emulator.memory.memory import Memory, Segment
from triton_dist.backends.emulator.values.promotion import Info
from triton_dist.checker import edges, sites, words
from triton_dist.checker.computed import Found
from triton_dist.checker.clocks import GLOBAL, KNOWS, Thread, covers
from triton_dist.checker.detector import Detector
from triton_dist.checker.shadow import FRESH, UNWRITTEN, Event, Shadow, touch
from triton_dist.checker.signals import LEVELS
from triton_dist.checker.storages import ByStorage
from triton_dist.checker.ties import tied
from triton_dist.checker.waits import Waits


class CheckedMemory(Memory):
    """All segments of a checked world."""

    def __init__(self, detector: Detector):
        super().__init__()
        self.detector = detector
        self.unwritten = ByStorage()         # storages that a host script made and that have not been written: True
        self.drafts = ByStorage()            # (Shadow, where, text) of storages that torch has computed from such ones
        self.signals = detector.signals
        self.waits = Waits(detector, self.expected, self.peek)

    # -- accesses ----------------------------------------------------------------------------------------------
    def observe(self, kind: str, segment: Segment, address: Any, shape: Any, steps: Any, size: int, sem: Optional[str],
                scope: Optional[str]) -> None:
        detector = self.detector
        thread = detector.scheduler.current.__dict__.get("hb") or detector.thread()
        detector.accesses += 1
        shadow = segment.__dict__.get("shadow") or self._shadow(segment)
        write, level = kind != "load", LEVELS[scope] if sem is not None else 0
        event = self._event(thread, write, level, shape == (), size, sem)
        if thread.stale:
            self._check_stale(thread, event, address if shape is not None else int(address.min()), segment)
        if shape is None:
            offsets = address.numpy() - segment.base
            index: Any = shadow.points(offsets, size)
            block, nbytes = shadow.ids, size * offsets.size
        else:
            block, index, nbytes = shadow.block(address - segment.base, tuple(shape), tuple(steps), size), None, size
            for n in shape:
                nbytes *= n
        if segment.rank != thread.rank and segment.rank >= 0 and thread.rank >= 0:
            detector.links[(thread.rank, segment.rank) if write else (segment.rank, thread.rank)] += nbytes

        self._touch(thread, event, segment, shadow, address, block, index)
        if sem == "emptied":
            return                           # it gives no edge
        if level:
            self.signals.access(thread, kind, segment, address.tolist() if shape is None else (address, ), sem, level, event)
        elif segment.__dict__.get("signalled"):
            if not write:
                lo, hi = _span(segment, shadow, address, block, index)
                self.signals.read(segment.base + lo, segment.base + hi)
            elif shape == ():
                self.signals.overwritten(address)

    def flag_pass(self, address: int, bits: int, cmp: str, met: Callable[[int], bool], sem: str = "acquire",
                  scope: str = "sys") -> int:
        with self.signals.passing(address, met):
            value = super().flag_pass(address, bits, cmp, met, sem, scope)
            if cmp:
                seen, releases = self.signals.state(address)
                self.waits.passed(self.detector.thread(), self.find(address, bits // 8), address, bits, cmp,
                                  value if seen is None else seen, releases)
        return value

    def swap_word(self, address: int, known: Info, expected: Any, value: Any, sem: str, scope: str) -> Any:
        old = super().swap_word(address, known, expected, value, sem, scope)
        self.signals.swapped(self.detector.thread(), address, old == expected)
        return old

    def rewritten(self, addresses: Sequence[int]) -> None:
        self.waits.rewritten(addresses)

    def keep_unwritten(self, tensor: torch.Tensor, mask: torch.Tensor, source: Found) -> None:
        """The elements of a tensor in `mask` (bool, of its shape) depend on unwritten memory: torch has computed them from it."""
        segment, base = self.at(tensor.data_ptr()), tensor.untyped_storage().data_ptr()
        if segment is not None:
            shadow, base = segment.__dict__.get("shadow") or self._shadow(segment), segment.base
            segment.computed_from = source.text.splitlines()[0]
        else:
            storage = tensor.untyped_storage()
            if self.drafts.get(base) is None:
                self.drafts.keep(storage, (Shadow(storage.nbytes()), source.where, source.text))
            shadow = self.drafts.get(base)[0]
        size = tensor.element_size()
        steps = np.array(tensor.stride(), np.int64) * size
        at = shadow.points(np.argwhere(mask.numpy()) @ steps + (tensor.data_ptr() - base), size)
        shadow.ids[at] = UNWRITTEN

    def draft_access(self, tensor: torch.Tensor, write: bool) -> Optional[Found]:
        """A torch operation on a tensor that no kernel knows yet. Of a load, the elements that keep_unwritten was told of."""
        base = tensor.untyped_storage().data_ptr()
        draft = self.drafts.get(base)
        if draft is None:
            return None
        shadow, where, text = draft
        size = tensor.element_size()
        place = tensor.data_ptr() - base, tuple(tensor.shape), tuple(step * size for step in tensor.stride()), size
        if write:
            shadow.block(*place)[...] = FRESH
            return None
        mask = shadow.unwritten(*place)
        return Found(tensor, mask, where, text) if mask.any() else None

    def _shadow(self, segment: Segment) -> Shadow:
        draft, _, text = self.drafts.pop(segment.base) or (None, None, "")
        if draft is not None and draft.nbytes == segment.nbytes:
            segment.shadow, segment.computed_from = draft, text.splitlines()[0]
            return draft
        segment.shadow = Shadow(segment.nbytes, UNWRITTEN if self.unwritten.pop(segment.base) else FRESH)
        return segment.shadow

    def host_access(self, segment: Segment, address: int, shape: tuple, steps: tuple, size: int, write: bool,
                    stack: tuple) -> Optional[tuple]:
        """A torch operation of the acting host on a tensor that kernels know: it follows the current stream.

        Returns (which of the elements that it reads are unwritten, bool of that shape; statements and text of a report), or None
        where all are written.
        """
        detector = self.detector
        thread, shadow = detector.thread(), segment.__dict__.get("shadow") or self._shadow(segment)
        thread.step()
        own = thread.C
        thread.C = own.copy()
        thread.stack = stack
        try:
            detector.follow_current_stream()
            event = Event(thread, thread.tid, thread.clk, write, 0, stack)
            block, told = shadow.block(address - segment.base, shape, steps, size), []
            self._touch(thread, event, segment, shadow, address, block, None, told)
        finally:
            thread.C = own
        if not write:
            lo, hi = _span(segment, shadow, address, shadow.block(address - segment.base, shape, steps, size), None)
            self.signals.read(segment.base + lo, segment.base + hi)
        else:                                # a flag that the host sets carries nothing of the last release
            end = address + sum((n - 1) * step for n, step in zip(shape, steps)) + size
            self.signals.set_by_host(address, end, stack)
            self.waits.drop(address, end)
        return (shadow.unwritten(address - segment.base, shape, steps, size), *told[0]) if told else None

    def _touch(self, thread: Thread, event: Event, segment: Segment, shadow: Shadow, address: Any, block: np.ndarray,
               index: Any, told: Optional[list] = None) -> None:
        """told: a list that gets the report of a read of unwritten memory, which is a fault only if its value is used."""
        states = self.detector.states

        def after(state: int) -> int:
            if state == UNWRITTEN and not event.write:
                report = self._nobody_wrote(segment, event, _span(segment, shadow, address, block, index, state))
                if told is not None:
                    told.append(report)
                    return state                 # what reads it next must know
                self.detector.report("uninitialized-read", *report)
            return states.after(
                state, event, lambda e, new: self._conflict(thread, e, new, segment, shadow, address, block, index, state),
                lambda e: self.detector.covered(thread, e, KNOWS))
        touch(block, index, event, after)

    def _nobody_wrote(self, segment: Segment, event: Event, span: tuple) -> tuple:
        """(statements, text) of a report."""
        source = segment.__dict__.get("computed_from")
        return sites.sites(event.stack), (
            f"{words.verb(event)} of {words.place(segment)}, bytes {span[0]} to {span[1]}, which nobody has written\n"
            f"  by {words.who(event)}\n  at {words.at(event.stack)}\n"
            + (f"  computed by torch from: {source}\n" if source else "")
            + "  fix: write it first, or allocate it with torch.zeros")

    def _check_stale(self, thread: Thread, event: Event, address: int, segment: Segment) -> None:
        place = self.detector.scheduler.machine.locate(address)
        for start, end, name in thread.stale if place is not None else ():
            if start <= place[1] < end:
                self.detector.report("use-after-free", sites.sites(event.stack), (
                    f"{words.verb(event)} through an argument that was freed before the launch, {name!r}, into what is now part "
                    f"of {words.place(segment)}\n  by {words.who(event)}\n  at {words.at(event.stack)}\n"
                    "  fix: free a symmetric tensor after its last use"))

    def _outside(self, address: int, nbytes: int, what: str) -> Exception:
        error = super()._outside(address, nbytes, what)
        error.stack = self.detector.thread().stack       # of a copy: where it was put on its stream
        return error

    def _event(self, thread: Thread, write: bool, level: int, scalar: bool, size: int, sem: Optional[str]) -> Event:
        stack = sites.kernel_stack() if thread.kind in ("program", "partition") else thread.stack
        packet = sem if sem in ("packet", "emptied") else None
        key = write, level, scalar, id(stack), size, packet
        event = thread.events.get(key)
        if event is None:
            own = (thread.head, thread.head_clk) if scalar and thread.split else (
                thread.tid, thread.clk + (write and thread.kind == "async"))
            event = thread.events[key] = Event(thread, *own, write, level, stack)
            event.size, event.packet, event.emptied = size, packet is not None, packet == "emptied"
        return event

    def _conflict(self, thread: Thread, earlier: Event, event: Event, segment: Segment, shadow: Shadow, address: Any,
                  block: np.ndarray, index: Any, state: int) -> bool:
        detector = self.detector
        row = GLOBAL if thread.kind == "async" and earlier.write and not event.strong and not thread.by_threads else KNOWS
        signals = earlier.strong and event.strong
        if event.emptied and earlier.packet and earlier.write and not earlier.emptied:
            return False                     # the taker has seen what that store brought
        if signals and (self._atomic_together(earlier, event) or earlier.cta is event.cta is not None):
            return False
        if detector.covered(thread, earlier, row) and (
                event.write or event.strong or row != KNOWS or self._may_load(thread, earlier, event)):
            return False
        lo, hi = _span(segment, shadow, address, block, index, state)
        where, text = edges.race(thread, earlier, event, row, f"{words.place(segment)}, bytes {lo} to {hi}")
        if signals and earlier.size == event.size and not event.packet:
            detector.scopes.append((where, text))        # data will show it, or the end of the run
        else:
            detector.report("race", where, text)
        return True

    @staticmethod
    def _atomic_together(earlier: Event, event: Event) -> bool:
        """Whether two accesses with a scope may meet: each is whole, and reaches the other. A packet must find its place free."""
        if event.packet and (earlier.write or event.write):
            return not event.write
        return earlier.size == event.size and min(earlier.strong, event.strong) >= (3 if earlier.rank != event.rank else 2)

    @staticmethod
    def _may_load(thread: Thread, earlier: Event, event: Event) -> bool:
        """Whether a load in a loop may rely on what its thread knows: not on a wait of the loop whose token it ignores."""
        if thread.loads is None or earlier.tid in (thread.tid, thread.head) or covers(thread.loads, earlier.tid, earlier.clk):
            return True
        waits = [token for token in thread.tokens if covers(token.known, earlier.tid, earlier.clk)]
        return any(token.consumed for token in waits) and tied(event.stack) is not False

    def poke(self, address: int, value: int) -> None:
        """Sets a 32-bit flag without an access that the checker sees."""
        ctypes.c_int32.from_address(address).value = value

    def _insert(self, segment: Segment) -> None:
        self.signals.drop(segment.base, segment.end)         # of what lay there before
        self.waits.drop(segment.base, segment.end)
        super()._insert(segment)

    def fence(self, sem: str, scope: str) -> None:
        self.signals.fence(self.detector.thread(), sem, scope)


def _span(segment: Segment, shadow: Shadow, address: Any, block: np.ndarray, index: Any, state: Optional[int] = None) -> tuple:
    """(first, last) byte of the segment among those that are accessed, and in a state where one is given."""
    g = shadow.grain
    if index is not None:
        hit = index if state is None else index[block[index] == state]
        return int(hit.min()) * g, int(hit.max()) * g + g - 1
    start = (address - segment.base) // g
    steps = np.array([step // 4 for step in block.strides], np.int64)
    hit = np.argwhere(block == (block if state is None else state)) @ steps + start
    return int(hit.min()) * g, int(hit.max()) * g + g - 1

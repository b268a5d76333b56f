# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a report says of puts, gets and TMA stores that were still under way: who should have waited, and how."""
from typing import Optional

from triton_dist.checker import words
from triton_dist.checker.clocks import SEEN, Thread, covers
from triton_dist.checker.shadow import Event


def under_way(thread: Thread, earlier: Event) -> Optional[tuple]:
    """(what is missing, the fix) where the earlier access is of a transfer whose start, but not end, `thread` knows."""
    moving, issuer = earlier.thread, earlier.thread.issuer
    if issuer is None or not (thread is issuer or covers(thread.C[SEEN], *moving.after_issue)):
        return None
    name = moving.name.split(" of ")[0]
    if moving.phase is False:                        # not of SHMEM
        return _tma_store(earlier) if name.startswith("TMA store") else None
    calls = {what for what, clk, _ in issuer.orders if clk >= moving.after_issue[1]}
    if moving.phase is None:
        fenced = "; fence() orders puts and signals and waits for no get" if "fence" in calls else ""
        return (f"{name} is still under way: its data are there after quiet() only{fenced}",
                "call quiet() after the get, in the program that has issued it, before the data are used")
    if not earlier.write:
        return (f"{name} may still read its source", "call quiet() before the source is written again")
    return _put(thread, issuer, moving, name, calls)


def _tma_store(earlier: Event) -> tuple:
    if earlier.write:
        return ("the TMA store is still under way: nobody has waited for what it writes",
                "put flush_tma_stores() (cp.async.bulk.wait_group 0 and a proxy fence) between the TMA store and the "
                "release, in the program or partition that has issued it")
    return ("the TMA store may still read its buffer",
            "put tma.store_wait(0) between the TMA store and the next store to the buffer, in the program or partition "
            "that has issued it")


def _put(thread: Thread, issuer: Thread, moving: Thread, name: str, calls: set) -> tuple:
    """Of a put."""
    signal = _signal(thread, issuer)
    if signal is not None and "fence" in calls and signal.pe != moving.pe:
        return (f"fence() orders only what goes to one PE: {name} went to PE {moving.pe}, the signal to PE {signal.pe}",
                "call quiet() instead of fence() between the put and the signal")
    if signal is not None and "fence" not in calls:
        return (f"fence() is missing: the signal may arrive before the data of {name}, nothing orders the two",
                "put fence() between the put and signal_op, or send both by putmem_signal")
    others = [stack for what, other, stack in moving.quiets if what == "quiet" and other is not issuer]
    if others and "quiet" not in calls:
        return (f"the quiet() at {words.at(others[-1])} is of another program, and waits only for what that program "
                f"has sent",
                f"call quiet() in the program that has issued {name}, before it tells the other one")
    if "fence" in calls and "quiet" not in calls:
        return (f"fence() does not wait for {name}: it orders puts and signal_op to one PE, not what the kernel "
                f"itself stores",
                "call quiet() instead of fence() before the kernel's own release, or send the flag by signal_op")
    return (f"quiet() is missing: {name} returns before its data have arrived",
            "call quiet() between the put and the release, in the program that has issued the put, or send data and "
            "flag by "
            "putmem_signal")


def _signal(thread: Thread, issuer: Thread) -> Optional[Thread]:
    """The latest signal_op of `issuer` that ended a wait of `thread`."""
    for passed in reversed(thread.passed):
        sender = passed.release.event.thread if passed.release is not None else None
        if sender is not None and sender.issuer is issuer and sender.name.startswith("signal_op"):
            return sender
    return None

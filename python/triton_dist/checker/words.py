# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The words of a race report: who, where, which edge is missing, and what to do about it."""
from typing import Any

from triton_dist.checker.clocks import GLOBAL, KNOWS, SEEN, SHARED, Thread, covers
from triton_dist.checker.shadow import Event
from triton_dist.checker.sites import sites

SCOPES = ("", "cta", "gpu", "sys")


def who(event: Any) -> str:
    """'rank 0, program ring(0, 0, 0)' of an event or a thread."""
    kind = {"async": "copy ", "host": "host script", "stream": ""}.get(event.kind, f"{event.kind} ")
    name = "" if event.kind == "host" else event.name
    inside = f" of {event.cta.kernel}{event.cta.pid}" if event.cta is not None and event.kind in ("partition", "async") else ""
    doing = f" ({event.what})" if event.what else ""
    return f"rank {event.rank}, {kind}{name}{inside}{doing}"


def place(segment: Any) -> str:
    """Words for a tensor."""
    return f"{segment.name!r}" + (f" of rank {segment.rank}" if segment.rank >= 0 else "")


def at(stack: tuple) -> str:
    """The statement of a stack, with its source, and the calls that lead to it."""
    found = sites(stack)
    if not found:
        return "host"
    calls = "".join(f", called at {site}" for site in found[1:3])
    return f"{found[0]}{calls}: {found[0].source()}"


def verb(event: Event) -> str:
    """'store', 'load', 'atomic store (sys)', ..."""
    plain = "store" if event.write else "load"
    return f"{plain}" if not event.strong else f"signal {plain} ({SCOPES[event.strong]})"


def missing(thread: Thread, earlier: Event, event: Event, row: int) -> tuple:
    """(the missing edge, the mend) of an access of `thread` that is not ordered after an earlier one."""
    tid, clk, C = earlier.tid, earlier.clk, thread.C
    if event.packet or earlier.packet:
        return ("the packet replaces one that may not have been read, or is read as if it were the next one",
                "use flags that no earlier call has used, and alternate between two buffers")
    if earlier.strong and event.strong and earlier.size != event.size:
        return (f"both are signals, but of {earlier.size} and {event.size} bytes, which are not atomic to each other",
                "use one width for a word")
    if earlier.strong and event.strong:
        need = "sys" if earlier.rank != event.rank else "gpu"
        narrow = SCOPES[min(earlier.strong, event.strong)]
        return (f"both are signals, but scope '{narrow}' does not reach from one to the other",
                f"use scope '{need}' on both sides")
    if row in (GLOBAL, SHARED) and covers(C[KNOWS], tid, clk):
        name = "fence_proxy_async(token) after the wait" if row == GLOBAL else "fence_async_shared() after the generic accesses"
        return ("the order is there, but not for the async proxy (TMA, wgmma): a proxy fence is missing", f"put {name}")
    if row == KNOWS and thread.loads is not None and covers(C[KNOWS], tid, clk):
        return ("missing consume_token in loop: the wait orders this load, but the load does not depend on its token, so the "
                "compiler's pipeliner may issue it before the wait",
                "pass the pointer through dl.consume_token(pointer, token) and load from the result")
    if thread.ahead is not None and covers(thread.ahead[KNOWS], tid, clk):
        return ("the kernel may start before the one ahead on its stream has ended, and has not called gdc_wait",
                "put dl.gdc_wait() before the access")
    if covers(C[SEEN], tid, clk):
        if earlier.thread.split and earlier.tid == earlier.thread.tid and covers(
                C[KNOWS], earlier.thread.head, earlier.head_clk):
            return ("release without the CTA barrier: one thread's release does not publish what the other threads of its "
                    "program have accessed since their last barrier",
                    "put tl.debug_barrier() before the release, or use dl.notify, which contains it")
        why = [f"{text}, at {at(stacks[0])}" for seen, text, stacks in thread.weak if covers(seen, tid, clk)]
        return (f"a signal was seen, but it gives no order: {why[-1] if why else 'it is relaxed, or not published by a release'}",
                "release after the data and acquire before it, both with scope 'sys' between ranks")
    return ("no signal, barrier, stream order or event lies between them",
            "wait for a flag that the first side releases behind its access, or order the launches by stream, event or barrier")


def race(thread: Thread, earlier: Event, event: Event, row: int, what: str) -> tuple:
    """(statements, text) of a race on `what`, the words for the bytes."""
    edge, mend = missing(thread, earlier, event, row)
    text = (f"{verb(earlier)} and {verb(event)} of {what} are not ordered\n"
            f"  first   {verb(earlier)} by {who(earlier)}\n          at {at(earlier.stack)}\n"
            f"  second  {verb(event)} by {who(event)}\n          at {at(event.stack)}\n"
            f"  missing: {edge}\n  mend: {mend}")
    hints = [stack for seen, _, stacks in thread.weak if covers(seen, earlier.tid, earlier.clk) for stack in stacks]
    return [site for stack in (earlier.stack, event.stack, *hints[-2:]) for site in sites(stack)], text

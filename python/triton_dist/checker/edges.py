# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which edge a race lacks, and what to do about it."""
from typing import Optional

from triton_dist.checker import sites, transfers, words
from triton_dist.checker.clocks import GLOBAL, KNOWS, SEEN, SHARED, Thread, covers
from triton_dist.checker.shadow import Event


def missing(thread: Thread, earlier: Event, event: Event, row: int) -> tuple:
    """(the missing edge, the fix) of an access of `thread` that is not ordered after an earlier one."""
    tid, clk, C = earlier.tid, earlier.clk, thread.C
    if event.packet or earlier.packet:
        return ("the packet replaces one that may not have been read, or is read as if it were the next one",
                "use flags that no earlier call has used, and alternate between two buffers")
    if earlier.strong and event.strong and earlier.size != event.size:
        return (f"both are signals, but of {earlier.size} and {event.size} bytes, which are not atomic to each other",
                "use one width for a word")
    if earlier.strong and event.strong:
        need = "sys" if earlier.rank != event.rank else "gpu"
        narrow = words.SCOPES[min(earlier.strong, event.strong)]
        return (f"both are signals, but scope '{narrow}' does not reach from one to the other",
                f"use scope '{need}' on both sides")
    if row in (GLOBAL, SHARED) and covers(C[KNOWS], tid, clk):
        name = ("fence_proxy_async(token) after the wait" if row == GLOBAL
                else "fence_async_shared() after the generic accesses")
        return ("the order is there, but not for the async proxy (TMA, wgmma): a proxy fence is missing", f"put {name}")
    if row == KNOWS and thread.loads is not None and covers(C[KNOWS], tid, clk):
        return ("missing consume_token in loop: the wait orders this load, but the load does not depend on its "
                "token, so the "
                "compiler's pipeliner may issue it before the wait",
                "pass the pointer through dl.consume_token(pointer, token) and load from the result")
    if thread.ahead is not None and covers(thread.ahead[KNOWS], tid, clk):
        return ("the kernel may start before the one ahead on its stream has ended, and has not called gdc_wait",
                "put dl.gdc_wait() before the access")
    sent = transfers.under_way(thread, earlier)
    if sent is not None:
        return sent
    if covers(C[SEEN], tid, clk) and (                  # one thread's release moves the clock of that thread only
            not earlier.thread.split or covers(C[SEEN], earlier.thread.head, earlier.head_clk)):
        if earlier.thread.split and earlier.tid == earlier.thread.tid and covers(
                C[KNOWS], earlier.thread.head, earlier.head_clk):
            return ("release without the CTA barrier: one thread's release does not publish what the other threads "
                    "of its "
                    "program have accessed since their last barrier",
                    "put tl.debug_barrier() before the release, or use dl.notify, which contains it")
        why = [f"{text}, at {words.at(stacks[0])}" for seen, text, stacks in thread.weak if covers(seen, tid, clk)]
        return (f"a signal was seen, but it gives no order: "
                f"{why[-1] if why else 'it is relaxed, or not published by a release'}",
                "release after the data and acquire before it, both with scope 'sys' between ranks")
    return host_flag(earlier, event) or failed_swap(earlier) or older_value(thread, earlier, event) or (
        "no signal, barrier, stream order or event lies between them",
        "wait for a flag that the first side releases after its access, or order the launches by stream, event or "
        "barrier")


def race(thread: Thread, earlier: Event, event: Event, row: int, what: str) -> tuple:
    """(statements, text) of a race on `what`, the words for the bytes."""
    edge, fix = missing(thread, earlier, event, row)
    text = (f"{words.verb(earlier)} and {words.verb(event)} of {what} are not ordered\n"
            f"  first   {words.verb(earlier)} by {words.who(earlier)}\n          at {words.at(earlier.stack)}\n"
            f"  second  {words.verb(event)} by {words.who(event)}\n          at {words.at(event.stack)}\n"
            f"  missing: {edge}\n  fix: {fix}")
    hints = [stack for seen, _, stacks in thread.weak if covers(seen, earlier.tid, earlier.clk) for stack in stacks]
    return [site for stack in (earlier.stack, event.stack, *hints[-2:]) for site in sites.sites(stack)], text


def host_flag(earlier: Event, event: Event) -> Optional[tuple]:
    """Of host code that writes a flag while kernels use it."""
    host, other = (earlier, event) if earlier.kind == "host" else (event, earlier)
    if host.kind != "host" or not host.write or not other.strong:
        return None
    return ("host code overwrites a flag that a kernel of another rank or stream may use at the same time",
            "clear flags before a barrier of all ranks (torch.distributed.barrier()), or never: let values grow from "
            "call to "
            "call and wait with cmp \"ge\"")


def failed_swap(earlier: Event) -> Optional[tuple]:
    """Of a first side that meant to release by a compare-and-swap, which failed."""
    for stack in earlier.thread.failed.values():
        return (f"the compare-and-swap at {words.at(stack)} found another value and failed, so it has stored nothing "
                f"and "
                "released nothing", "repeat it until it succeeds, or store the flag by tl.atomic_xchg")
    return None


def older_value(thread: Thread, earlier: Event, event: Event) -> Optional[tuple]:
    """Of a wait that has passed on a value from before the access that it should wait for."""
    for waiter, writer, until in ((thread, earlier, None), (earlier.thread, event, earlier.head_clk)):
        for passed in reversed(waiter.passed):
            release = passed.release
            if until is not None and passed.clk > until or sites.is_library(passed.stack):
                continue
            if release is None:
                return (f"the wait at {words.at(passed.stack)} passed on {passed.value}, which no release has "
                        f"stored: the flag "
                        "held it at first, or the host has set it", _GROW)
            if release.rank == writer.rank:
                older = "an older value, " if release.event.name == writer.name else ""
                return (f"the wait at {words.at(passed.stack)} passed on {older}{passed.value}, which "
                        f"{words.who(release.event)} had released at {words.at(release.stack)}; that release does "
                        f"not cover "
                        "this access", _GROW + (_READ if until is not None and event.write and not earlier.write else ""))
    return None


_GROW = ("release the flag after the access, with a value that this call alone stores: let it grow from call to call "
         "and wait "
         "with cmp \"ge\", or clear the flag before it is used again")
_READ = ("; if that wait has the right value, the store comes too early: let the reader notify the writer after its load, "
         "and let the writer wait for that before it stores again")

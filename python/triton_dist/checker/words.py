# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The words of a report for who did what, where."""
from typing import Any

from triton_dist.checker.shadow import Event
from triton_dist.checker.sites import sites

SCOPES = ("", "cta", "gpu", "sys")


def who(event: Any) -> str:
    """'rank 0, program ring(0, 0, 0)' of an event or a thread."""
    kind = {"async": "copy ", "host": "host script", "stream": ""}.get(event.kind, f"{event.kind} ")
    name = "" if event.kind == "host" else event.name
    inside = f" of {event.cta.kernel}{event.cta.pid}" if (
        event.cta is not None and event.kind in ("partition", "async") and event.cta.kernel not in event.name) else ""
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

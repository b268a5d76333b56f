# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The twin of breakpoint_if: Python's debugger, at the kernel's next line."""
import pdb
import sys
from dataclasses import dataclass
from typing import Any, TextIO

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import MARK, place_of, twin
from triton_dist.backends.emulator.values.tensors import Tensor

_LIBRARY = "triton_dist.language"


@twin("debug._stop")
def stop(message: Any) -> None:
    frame = sys._getframe(1)
    while frame is not None and (MARK not in frame.f_globals or str(frame.f_globals.get("__name__")).startswith(_LIBRARY)):
        frame = frame.f_back
    actor = scheduler.active().current
    cta = actor.cta
    program = f", program {cta.pid} of {cta.kernel}" if cta else ""
    print(f"breakpoint_if: rank {actor.rank}{program}, at {place_of(frame)}. "
          "n: next line, p NAME: print, c: continue, q: end", flush=True)
    terminal = _terminal()
    debugger = _Debugger(nosigint=True) if terminal is None else _Debugger(stdin=terminal, stdout=sys.stdout, nosigint=True)
    debugger.set_trace(frame)


class _Debugger(pdb.Pdb):
    """pdb that prints the elements of a kernel's tensors."""

    def _getval(self, arg: str) -> Any:                     # what p and pp print
        return _shown(super()._getval(arg))

    def displayhook(self, obj: Any) -> None:
        super().displayhook(_shown(obj))


@dataclass(frozen=True)
class _Elements:
    tensor: Tensor

    def __repr__(self) -> str:
        return f"{self.tensor!r} {self.tensor.d}"


def _shown(value: Any) -> Any:
    return _Elements(value) if isinstance(value, Tensor) else value


def _terminal() -> TextIO | None:
    """Where the debugger's words come from; None for stdin with its line editor. A launcher may have taken stdin away."""
    if sys.stdin is not None and sys.stdin.isatty():
        return None
    try:
        return open("/dev/tty")             # noqa: SIM115 - pdb reads it later
    except OSError:                         # there is no terminal: the words come from a script
        return sys.stdin

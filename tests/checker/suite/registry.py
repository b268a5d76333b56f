# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a labelled case is, and the list of all of them.

A case is a host function and a label: "clean", or the kind of fault that a checker must report. One host function may stand
for several cases that differ in `how`, the name of a way to be wrong: "" is the right one, the twin of the faulty ones.

Statements that a report may name end in a comment: `# FAULT` for every faulty case that runs the function they are in,
or `# FAULT early, race` for the cases of these ways or labels. Labels are frozen (FROZEN.txt): they say what the
memory model and the protocol say, not what a tool finds.
"""
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from types import CodeType
from typing import Any, Callable

from triton_dist.runtime.groups import resolve

KINDS = ("race", "deadlock", "livelock", "out-of-bounds", "use-after-free", "uninitialized-read", "left-signal",
         "collective-mismatch", "barrier-misuse", "residency", "error")
CASES: dict = {}             # name -> Case
_MARK = re.compile(r"# FAULT\b(.*)")


@dataclass(frozen=True)
class Case:
    """One labelled kernel with its host function; calling it runs this rank's host script.

    label: "clean" or a Fault.kind; `also`: kinds that say the same fault as well, where schedules or views of it differ.
    classes: for the figures by class. why: the fault in one line. twin: the clean case it differs from by the mend.
    endless: it never stops where nobody looks for livelocks. num_sms: programs resident at a time on a rank.
    schedules: how many it may take until one shows the fault.
    """
    name: str
    label: str
    fn: Callable
    how: str = ""
    classes: tuple = ()
    world: int = 2
    why: str = ""
    twin: str = ""
    also: tuple = ()
    line_marker: str = "# FAULT"
    num_sms: int = 8
    endless: bool = False
    schedules: int = 1

    def __call__(self) -> Any:
        """Runs the host script; returns [(found, expected)], pairs of tensors that are equal where the case is clean."""
        return self.fn(resolve().rank, self.how) if self._takes_how() else self.fn(resolve().rank)

    @property
    def faulty(self) -> bool:
        return self.label != "clean"

    @property
    def kinds(self) -> tuple:
        """Kinds of fault of which a report is right."""
        return (self.label, *self.also) if self.faulty else ()

    @property
    def doc(self) -> str:
        return " ".join(filter(None, (inspect.getdoc(self.fn), self.why)))

    def fault_lines(self) -> set:
        """{(file, line)} of the marked statements of this case."""
        return {(inspect.getsourcefile(fn), line) for fn in _functions(self.fn) for line in self._marked(fn)}

    def _marked(self, fn: Callable) -> list:
        lines, first = inspect.getsourcelines(fn)
        words = {*self.line_marker.removeprefix("# FAULT").split(), self.label}
        found = []
        for number, text in enumerate(lines, first):
            mark = _MARK.search(text)
            named = mark and mark.group(1).replace(",", " ").split()
            if mark and (not named or set(named) & words):
                found.append(number)
        return found

    def _takes_how(self) -> bool:
        return len(inspect.signature(self.fn).parameters) > 1


def case(name: str, label: str = "clean", *, how: str = "", classes: tuple = (), line_marker: str = "",
         **options: Any) -> Callable:
    """Decorator that registers a host function fn(rank) or fn(rank, how) as a case.

    `classes` defaults to the part of the name before the slash, `line_marker` to "# FAULT" and the way `how`.
    """
    if label not in ("clean", *KINDS) or name in CASES:
        raise ValueError(f"{name}: label {label!r} is unknown, or the name is taken")

    def register(fn: Callable) -> Callable:
        CASES[name] = Case(name, label, fn, how, classes or (name.split("/")[0], ),
                           line_marker=line_marker or f"# FAULT {how}".strip(), **options)
        return fn
    return register


def load() -> list:
    """All cases of this folder, by name."""
    for module in pkgutil.iter_modules(importlib.import_module(__package__).__path__):
        importlib.import_module(f"{__package__}.{module.name}")
    return [CASES[name] for name in sorted(CASES)]


def _functions(fn: Any, seen: dict | None = None) -> dict:
    """The host function and every function of the suite that it reaches by name, kernels included."""
    seen = {} if seen is None else seen
    fn = getattr(fn, "fn", fn)               # of a jit function
    if inspect.isfunction(fn) and fn not in seen and str(fn.__module__).startswith(f"{__package__}."):
        seen[fn] = None
        for name in _names(fn.__code__):
            _functions(fn.__globals__.get(name), seen)
    return seen


def _names(code: CodeType) -> set:
    """Names that a function's code looks up, nested functions included."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which kernels Triton's front end sees in `scripts/test.sh`.

The emulator shows every specialisation of a kernel to the front end before it runs it (`launching.trace`). This takes longer than
to run it. Under --full all of them are shown. Else a specialisation is shown if something about it is new to the kernel in this
session: the value of a constexpr or of an option, the type of another argument, or which dtypes tensors have together. Whole
numbers above 4 are of two kinds, powers of two and others. So each flag, type and kind of number is seen, and products are left
to --full, like those of a test's parameters. To a mutant also that is known which other mutants of the same kernel, and the
kernel itself, have been shown with: it differs from them by an edit.

The emulator asks the front end one thing, whether a kernel waits its turn on the stream. Where that differs between two
specialisations of a kernel, each combination of its flags (all but numbers and types) is shown. A combination for which it
differs is shown always.

The processes that run the tests of a session share a file. Each adds a line for what it shows, and reads those of the others.
"""
import json
import os
import re
from collections import defaultdict
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterable, Iterator

import pytest
import torch

from triton_dist.backends.emulator import backend, launching

files: list = []                                     # of the blocks that are open, the innermost last
MUTANT = re.compile(r"_mutant_[0-9a-f]+$")           # how emulator/mutants.py names the modules that it makes


class Shown:
    """What a kernel has been shown with: values and types, and {combination of flags: whether it waits its turn, or both}."""

    def __init__(self) -> None:
        self.seen: set = set()
        self.waits: defaultdict = defaultdict(set)

    def new(self, seen: set, combination: str) -> bool:
        known = self.waits.get(combination) or set().union(*self.waits.values())
        return not seen <= self.seen or len(known) > 1

    def waiting(self, combination: str) -> bool:
        """Of one that is not new."""
        return True in (self.waits.get(combination) or set().union(*self.waits.values()))


class Session:
    """What has been shown of all kernels, by all processes that have the same file."""

    def __init__(self, file: Path) -> None:
        self.file = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT)         # whole lines, whoever else adds some
        self.read = 0                                                           # bytes; a fork goes on by itself
        self.kernels: defaultdict = defaultdict(Shown)

    def close(self) -> None:
        os.close(self.file)

    def kernel(self, name: str) -> Shown:
        added = os.pread(self.file, os.fstat(self.file).st_size - self.read, self.read)
        *lines, _ = added.split(b"\n")                                          # the last one's end may not be there yet
        self.read += added.rfind(b"\n") + 1
        for names, seen, combination, waits in map(json.loads, lines):
            for shown in map(self.kernels.__getitem__, names):
                shown.seen.update(seen)
                shown.waits[combination].add(waits)
        return self.kernels[name]

    def add(self, names: Iterable, seen: set, combination: str, waits: bool) -> None:
        os.write(self.file, json.dumps([[*names], [*seen], combination, waits]).encode() + b"\n")


@contextmanager
def shown_what_is_new(file: Path) -> Iterator[None]:
    """Inside the block the emulator shows no more than that. `file` is that of the session."""
    see, session = launching.trace, Session(file)

    def trace(kernel: Any, args: tuple, kwargs: dict) -> Any:
        seen, combination = described(kernel, args, kwargs)
        seen, combination = {short(x) for x in seen}, short(combination)
        family = short((kernel.fn.__qualname__, *kernel.arg_names))              # with its mutants
        own = family if MUTANT.search(kernel.fn.__module__) else kernel.cache_key
        shown = session.kernel(own)
        if not shown.new(seen, combination):
            return SimpleNamespace(metadata=SimpleNamespace(waits_its_turn=shown.waiting(combination)))
        traced = see(kernel, args, kwargs)           # raises what Triton refuses, which is not remembered
        session.add({own, family}, seen, combination, getattr(getattr(traced, "metadata", None), "waits_its_turn", False))
        return traced

    with pytest.MonkeyPatch.context() as patch:
        for module in (launching, backend):
            patch.setattr(module, "trace", trace)
        files.append(file)
        yield
        files.pop()
    session.close()


def short(x: Any) -> str:
    return blake2b(repr(x).encode(), digest_size=9).hexdigest()


def described(kernel: Any, args: tuple, kwargs: dict) -> tuple:
    """({(name, value or type), dtypes of tensors}, (arguments that are not given, flags)) of a launch."""
    given = {**dict(zip(kernel.arg_names, args)), **kwargs}
    runtime = {parameter.name for parameter in kernel.params if not parameter.is_constexpr}
    types = [(name, word(x, True)) for name, x in sorted(given.items()) if name in runtime]
    dtypes = tuple(sorted({str(x.dtype) for x in given.values() if hasattr(x, "dtype")}))
    values = [(name, word(x, False)) for name, x in sorted(given.items()) if name not in runtime]
    flags = tuple((name, x) for name, x in values if not is_number(x))
    none = tuple(name for name, x in sorted(given.items()) if name in runtime and x is None)
    return {*((name, kind(x)) for name, x in values), *types, dtypes}, (none, flags)


def is_number(x: Any) -> bool:
    """A number or several; a bool is none."""
    return all(map(is_number, x)) if isinstance(x, tuple) else isinstance(x, (int, float)) and not isinstance(x, bool)


def kind(x: Any) -> Any:
    """What stands for a value where one of its kind has been shown."""
    if not is_number(x) or isinstance(x, tuple) or x in (0, 1, 2, 3, 4):
        return x
    return "float" if isinstance(x, float) else "below 0" if x < 0 else "power of 2" if x & (x - 1) == 0 else "number"


def word(x: Any, runtime: bool) -> Any:
    """What stands for an argument in all processes: its type if it is a tensor, or a number that only a running kernel knows."""
    if isinstance(x, torch.Tensor):
        return x.dtype
    if runtime and isinstance(x, int) and not isinstance(x, bool):
        return "one" if x == 1 else "int32" if -0x80000000 <= x < 0x80000000 else "int64" if x < 1 << 63 else "uint64"
    if runtime and isinstance(x, float):
        return "float"
    if isinstance(x, (tuple, list)):
        return tuple(word(y, runtime) for y in x)
    if hasattr(x, "block_shape") and hasattr(x, "base"):
        return x.base.dtype, tuple(x.block_shape), repr(getattr(x, "layout", None))
    if hasattr(x, "base") and hasattr(x, "dtype"):       # triton.reinterpret
        return x.dtype
    if isinstance(x, (int, float)):
        return x
    if callable(x):
        return getattr(x, "cache_key", None) or f"{x!r} of {os.getpid()}"
    return repr(x)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which kernels Triton's front end sees in `scripts/test.sh`.

The emulator shows every specialisation of a kernel to the front end before it runs it (`launching.trace`). This takes longer than
to run it. Under --full all of them are shown. Else a specialisation is shown if something about it is new to the kernel in this
process: the value of a number, or the combination of all else (types, flags, what is None, functions). So each value is seen, and
products of numbers are left to --full, like those of a test's parameters. To a mutant also that is known which other mutants of
the same kernel, and the kernel itself, have been shown with: it differs from them by an edit.
"""
import re
import weakref
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Iterator

import pytest
import torch

from triton_dist.backends.emulator import backend, launching

MUTANT = re.compile(r"_mutant_[0-9a-f]+$")           # how emulator/mutants.py names the modules that it makes


class Shown:
    """What a kernel has been shown with: values of numbers, and {combination of all else: whether the kernel waits its turn}."""

    def __init__(self) -> None:
        self.values: set = set()
        self.combinations: dict = {}

    def new(self, values: set, combination: tuple) -> bool:
        return combination not in self.combinations or not values <= self.values


@contextmanager
def shown_what_is_new() -> Iterator[None]:
    """Inside the block the emulator shows no more than that."""
    see = launching.trace
    kernels: Any = weakref.WeakKeyDictionary()       # Python function -> Shown
    families: dict = {}                              # name and parameters of a kernel -> Shown, of it and of its mutants

    def trace(kernel: Any, args: tuple, kwargs: dict) -> Any:
        values, combination = described(kernel, args, kwargs)
        family = families.setdefault((kernel.fn.__qualname__, *kernel.arg_names), Shown())
        own = family if MUTANT.search(kernel.fn.__module__) else kernels.setdefault(kernel.fn, Shown())
        if not own.new(values, combination):
            return SimpleNamespace(metadata=SimpleNamespace(waits_its_turn=own.combinations[combination]))
        traced = see(kernel, args, kwargs)           # raises what Triton refuses, which is not remembered
        for shown in (own, family):
            shown.values |= values
            shown.combinations[combination] = getattr(getattr(traced, "metadata", None), "waits_its_turn", False)
        return traced

    with pytest.MonkeyPatch.context() as patch:
        for module in (launching, backend):
            patch.setattr(module, "trace", trace)
        yield


def described(kernel: Any, args: tuple, kwargs: dict) -> tuple:
    """({(parameter or option, number)}, all else) of a launch, as far as the front end sees it."""
    given = {**dict(zip(kernel.arg_names, args)), **kwargs}
    runtime = {parameter.name for parameter in kernel.params if not parameter.is_constexpr}
    values, rest = set(), []
    for name, x in given.items():
        if name not in runtime and isinstance(x, (int, float)) and not isinstance(x, bool):
            values.add((name, x))
        else:
            rest.append((name, word(x, name in runtime)))
    return values, tuple(sorted(rest, key=lambda pair: pair[0]))


def word(x: Any, runtime: bool) -> Any:
    """A hashable word for an argument: its type if it is a tensor, or a number that only a running kernel knows."""
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
    return getattr(x, "fn", x) if callable(x) else repr(x)

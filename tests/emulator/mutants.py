# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Breaks one rule at a time: a module of the package with pieces of its source replaced."""
import importlib.util
import sys
from pathlib import Path


def source_of(module_name: str) -> str:
    """Source text of a module, which is not executed (its packages are imported)."""
    return Path(importlib.util.find_spec(module_name).origin).read_text()


def edited(source: str, edits: list) -> str:
    """`source` with each (old, new) replaced; `old` must occur once."""
    for old, new in edits:
        assert source.count(old) == 1, f"found {source.count(old)} times, expected once: {old!r}"
        source = source.replace(old, new)
    return source


def load(name: str, source: str, folder: Path):
    """A module from source text, in a file of its own in `folder`, so that kernels and tracebacks find their lines."""
    path = folder / f"{name}_mutant_{abs(hash(source)):x}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def mutated(module_name: str, old: str, new: str, folder: Path):
    """The module with `old` replaced by `new`."""
    return load(module_name.split(".")[-1], edited(source_of(module_name), [(old, new)]), folder)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Breaks one rule at a time: a module of the package with one piece of its source replaced."""
import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path


def mutated(module_name: str, old: str, new: str, folder: Path):
    """The module with `old` (which must occur once) replaced by `new`, loaded from a file of its own in `folder`."""
    source = Path(importlib.import_module(module_name).__file__).read_text()
    assert source.count(old) == 1, f"{module_name}: expected to find once, found {source.count(old)} times: {old!r}"
    path = folder / f"mutant_{abs(hash((module_name, old, new))):x}.py"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def replaced(target, name: str, value):
    """`target.name` is `value` inside."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)

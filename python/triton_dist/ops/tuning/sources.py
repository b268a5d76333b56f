# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which files an op's device code comes from, found by following imports: times hold for these sources alone."""
import ast
import functools
import hashlib
import inspect
from pathlib import Path
from typing import Any, Iterable

from triton_dist.runtime.backend import backend

ROOT = Path(__file__).parents[2]
_ALL = ROOT / "ops" / "__init__.py"           # imports every op, as those do that call others
_DEVICE = {"jit", "gluon_jit", "helper", "primitive", "builtin", "constexpr_function", "_aggregate"}   # decorators of device code


@functools.cache
def kernels_version(op: Any) -> str:
    """A hash of the sources of an op's kernels here: of other ones, times say nothing of these."""
    digest = hashlib.sha256()
    for path in sorted(sources(op)):
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
        digest.update(str(name).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def sources(op: Any) -> set[Path]:
    """The op's folder, or its file where it is another package's, the device's core of it, the files of device code that these
    import, and the device functions."""
    own = Path(inspect.getfile(type(op)))
    starts = set(own.parent.glob("*.py")) if own.is_relative_to(ROOT) else {own}
    core = backend().core(op.core or op.name)
    if core is not None:
        starts.add(Path(inspect.getfile(type(core))))
    found = starts | device_code(starts)
    for base in type(backend()).__mro__:                    # a vendor's backend, and what vendors share
        if base.__module__.startswith(f"{ROOT.name}.backends."):
            folder = Path(inspect.getfile(base)).parent
            found |= {*folder.glob("*.ll"), *folder.glob("device_runtime.py"), *folder.glob("device_target.py")}
    return found


def device_code(starts: Iterable[Path]) -> set[Path]:
    """Files with device code that `starts` reach by imports, and what these files import themselves."""
    seen, todo, found = set(), list(starts), set()
    while todo:
        path = todo.pop()
        if path in seen or path == _ALL:
            continue
        seen.add(path)
        imported, on_device = _parsed(path)
        todo += imported
        if on_device:
            found |= {path, *imported}
    return found


@functools.cache
def _parsed(path: Path) -> tuple[frozenset, bool]:
    """(files of this package that it imports, whether it has device code)."""
    imported, on_device = set(), path.is_relative_to(ROOT / "language")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {_file(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {_file(f"{node.module}.{alias.name}") or _file(node.module) for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            on_device |= any(_name(decorator) in _DEVICE for decorator in node.decorator_list)
    return frozenset(imported - {None}), on_device


def _file(module: str) -> Path | None:
    """Of a module of this package; None for others."""
    first, *rest = module.split(".")
    if first != ROOT.name:
        return None
    places = (ROOT.joinpath(*rest, "__init__.py"), ROOT.joinpath(*rest).with_suffix(".py"))
    return next((place for place in places if place.is_file()), None)


def _name(decorator: ast.expr) -> str:
    """The last part of a decorator's name."""
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    return decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")

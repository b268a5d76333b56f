# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every name that a file of this repository imports from the package is there, also in scripts that no test runs."""
import ast
import functools
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("python", "tests", "tools", "tutorials", "benchmarks", "examples", "docs", "scripts")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
         if "build" not in path.relative_to(ROOT).parts]


def source_of(module: str) -> Path | None:
    """The file of a module of the package, or None where there is no such module."""
    place = ROOT / "python" / Path(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


@functools.cache
def names_in(path: Path) -> frozenset | None:
    """What the top level of a file binds. None where a module answers for names by itself (`__getattr__`, globals)."""
    found = set()
    pending = list(ast.parse(path.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
            continue                                        # what is inside is local
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "globals":
            return None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        pending += ast.iter_child_nodes(node)
    return None if "__getattr__" in found or "*" in found else frozenset(found)


def missing(source: str) -> list:
    """Imports from the package, anywhere in `source`, that find nothing."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "triton_dist" and not node.level:
            path = source_of(node.module)
            names = frozenset() if path is None else names_in(path)
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*" and names is not None
                      and alias.name not in names and source_of(f"{node.module}.{alias.name}") is None]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names
                      if alias.name.split(".")[0] == "triton_dist" and source_of(alias.name) is None]
    return found


def test_every_import_from_the_package_finds_its_name():
    wrong = {str(path.relative_to(ROOT)): names for path in FILES if (names := missing(path.read_text()))}
    assert not wrong


@pytest.mark.parametrize("line", ["import triton_dist.no_such_module", "from triton_dist.no_such_module import name",
                                  "from triton_dist.runtime.workspace import no_such_name",
                                  "def f():\n    from triton_dist.ops import ag_gemm, no_such_op"])
def test_a_name_that_is_not_there_is_found(line):
    assert [name for name in missing(line) if "no_such" in name]


@pytest.mark.parametrize("line", ["from triton_dist.runtime import workspace", "import triton_dist.language as dl",
                                  "from triton_dist.runtime.workspace import side_streams"])
def test_a_name_that_is_there_is_not(line):
    assert not missing(line) and importlib.util.find_spec(line.split()[1])

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A hash of a kernel's source and of all that it calls.

Triton's own `cache_key` will not do: it depends on which kernels of a process were hashed before, so that two processes can
have two keys for one source.
"""

import ast
import hashlib
import inspect
import textwrap
import types
from typing import Any, Iterator

_NOT_OURS = ("triton", "torch", "numpy", "builtins")  # told apart by Triton's version
_SCALARS = (bool, int, float, str)


def source_digest(kernel: Any) -> str:
    """SHA-256 of the source of `kernel`, of the functions and classes that it reaches, and of the constants that these name.

    Computed once for a kernel.
    """
    if "_tdist_source_digest" not in vars(kernel):  # not by functools.cache: the hash of a kernel is Triton's cache_key
        kernel.__dict__["_tdist_source_digest"] = hashlib.sha256(
            repr(sorted(sources_of(kernel).items())).encode()
        ).hexdigest()
    return kernel.__dict__["_tdist_source_digest"]


def sources_of(kernel: Any) -> dict[str, str]:
    """What `source_digest` is of: text by "module:name"."""
    found: dict[str, str] = {}
    _visit("", kernel, found)
    return found


def _visit(name: str, value: Any, found: dict) -> None:
    if hasattr(type(value), "cache_key") and hasattr(value, "fn"):  # what Triton compiles
        _add_function(value.fn, value.src, found)
    elif inspect.isclass(value) and not _elsewhere(value):
        where = f"{value.__module__}:{value.__qualname__}"
        if where not in found:
            found[where] = _text(value)
            for member, inner in sorted(vars(value).items()):
                if hasattr(type(inner), "cache_key"):
                    _visit(member, inner, found)
    elif inspect.isfunction(value) and not _elsewhere(value):
        found[f"{value.__module__}:{value.__qualname__}"] = _text(inspect.unwrap(value))
    elif type(value).__name__ == "constexpr" or isinstance(value, _SCALARS):
        found[name] = repr(value)


def _elsewhere(value: Any) -> bool:
    return (value.__module__ or "").split(".")[0] in _NOT_OURS


def _text(value: Any) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):  # made by exec
        return repr(getattr(getattr(value, "__code__", None), "co_code", ""))


def _add_function(fn: Any, source: str, found: dict) -> None:
    where = f"{fn.__module__}:{fn.__qualname__}"
    if where in found:
        return
    found[where] = source
    scope = {**fn.__globals__, **inspect.getclosurevars(fn).nonlocals}
    for chain in _chains(ast.parse(textwrap.dedent(source))):
        value = scope.get(chain[0])
        for attribute in chain[1:]:
            if not isinstance(value, types.ModuleType):
                break
            value = getattr(value, attribute, None)
        if value is not None and not isinstance(value, types.ModuleType):
            _visit(f"{fn.__module__}:{'.'.join(chain)}", value, found)


def _chains(tree: ast.AST) -> Iterator[list[str]]:
    """Names that are read, with their attributes: `dl.wait` is ["dl", "wait"]."""
    for node in ast.walk(tree):
        chain = []
        while isinstance(node, ast.Attribute):
            chain.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            yield [node.id, *chain]

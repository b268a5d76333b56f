# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The source of kernels, as it was when they were defined.

A JITFunction keeps the source that it read when its module was imported, and a GPU compiles that. So the emulator runs it as
well, whatever has happened to the file since. Functions that keep none are read from their file, which must not have changed.
"""
import ast
import functools
import inspect
import textwrap
import types
import weakref
from typing import Any, Callable, Optional

from triton_dist.runtime.errors import InvalidArgument

_sources: dict = {}          # id of a rebuilt function's code -> (weak reference to that code, text and line of its definition)


def read(jit_function: Any, fn: Callable) -> tuple[ast.Module, str, int]:
    """The definition of a function, alone in a module, at its lines in the file; its text; and its first line there.

    `fn`: the Python function of `jit_function`.

    Raises InvalidArgument where only the file has the source, and the file is gone or has been edited since the import.
    """
    lines, start = getattr(jit_function, "raw_src", None), getattr(jit_function, "starting_line_number", 1)
    if lines is not None:
        text = _current(jit_function, textwrap.dedent("".join(lines)))
    else:
        try:
            lines, start = inspect.getsourcelines(fn)
        except (OSError, TypeError) as error:
            raise InvalidArgument(f"{fn.__qualname__}: its source cannot be read from {fn.__code__.co_filename} ({error}); keep "
                                  "the file as it was when it was imported") from error
        text = textwrap.dedent("".join(lines))
    tree = _parsed(text)
    if tree is None or getattr(jit_function, "raw_src", None) is None and not _same(tree.body[0], fn.__code__):
        raise InvalidArgument(f"{fn.__qualname__}: {fn.__code__.co_filename} has been edited since it was imported; start the "
                              "script again")
    return _at(tree, start), text, start


def _at(tree: ast.Module, start: int) -> ast.Module:
    """A parsed text at its lines in the file."""
    return ast.increment_lineno(tree, max(start, 1) - 1)


def _current(jit_function: Any, text: str) -> str:
    """The text with the source that Triton would compile now, which a program may have replaced (JITCallable.src)."""
    head, found, _ = text.partition(jit_function.src[:jit_function.src.index("(")])
    return head + jit_function.src if found else text


def _parsed(text: str) -> Optional[ast.Module]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    return tree if len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef) else None


def _same(definition: ast.FunctionDef, code: types.CodeType) -> bool:
    """Whether a definition is the one that `code` was compiled from, as far as its names and constants tell."""
    module = compile(ast.Module([definition], []), code.co_filename, "exec")
    made = next((c for c in module.co_consts if isinstance(c, types.CodeType)), None)
    return made is not None and _shape(made) == _shape(code)


def _shape(code: types.CodeType) -> tuple:
    constants = [repr(c) for c in code.co_consts if not isinstance(c, types.CodeType)]
    return code.co_name, code.co_varnames, constants, {*code.co_names, *code.co_freevars}


def keep(code: types.CodeType, text: str, start: int) -> None:
    """Remembers what a rebuilt function is made from for as long as its code lives."""
    key = id(code)
    _sources[key] = weakref.ref(code, lambda _: _sources.pop(key, None)), text, start


def definition_of(code: types.CodeType) -> Optional[ast.FunctionDef]:
    """The definition, as its author wrote it, that a rebuilt function's code stands for; None where it is not known."""
    of, *source = _sources.get(id(code), (lambda: None, ))
    return _definition(*source) if of() is code else None


@functools.lru_cache(64)
def _definition(text: str, start: int) -> ast.FunctionDef:
    return _at(ast.parse(text), start).body[0]                          # type: ignore[return-value]

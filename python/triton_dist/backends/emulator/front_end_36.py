# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Triton 3.6's front end for kernels whose IR is not compiled, in half the time.

To find what a loop carries, Triton 3.6 visits its body and throws the result away. Then it visits the body again, so that the
innermost body is visited 2**depth times. Here a loop carries all names that its body assigns, and its body is visited once.
What Triton checks after its first visit is checked after this one. A name that keeps its value is carried too, which changes
the IR but not which kernels are refused. Source locations, which only code generators use, are left out.

Triton 3.9 visits loops fewer times by itself, and is left alone.
"""
import ast
import functools
import warnings
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Callable, Iterator

import triton

from triton_dist.compat.compiler import CodeGenerator, code_generator
from triton_dist.compat.triton import JITFunction

APPLIES = triton.__version__.startswith("3.6.")
_STORED = "_tdist_stored"           # attribute of a loop in a syntax tree


class NoLocations(CodeGenerator):
    """Leaves out source locations, and what an error needs to know. A kernel with an error is shown to the parent too."""

    def visit(self, node: Any) -> Any:
        return None if node is None else getattr(self, f"visit_{type(node).__name__}", self.generic_visit)(node)

    def _maybe_set_loc_to_name(self, val: Any, name: str) -> None:
        pass


class OneVisit(NoLocations):
    """Visits the body of each loop once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inside: list = []     # of each loop around the current statement: the values before it, names that are its own

    def visit_compound_statement(self, stmts: Any) -> None:
        super().visit_compound_statement(stmts)
        if self.scf_stack and self.scf_stack[-1].body is stmts:
            self._check(*self._inside.pop())

    def _find_carries(self, node: Any, liveins: dict, ignore: Any = frozenset()) -> tuple:
        names, handles, types = [], [], []
        stored = _stored(node) - ignore
        for name, value in liveins.items():
            if name in stored and code_generator._is_triton_value(value):
                found = code_generator.flatten_values_to_ir([value])
                if found:                                   # a constexpr has none
                    names.append(name)
                    types.append(value.type)
                    handles += found
        self.lscope, self.local_defs = liveins.copy(), {}
        self._inside.append((liveins, ignore))
        return names, handles, types

    def _check(self, liveins: dict, ignore: Any) -> None:
        """What Triton checks after its first visit of a loop's body."""
        for name, value in liveins.items():
            if name not in ignore:
                if code_generator._is_triton_value(value):
                    self._verify_loop_carried_variable(name, self.lscope[name], value)
                elif name in self.local_defs:
                    raise TypeError(f"a loop cannot carry {name}")


def _stored(loop: ast.AST) -> set:
    """The names that a loop's body assigns."""
    if not hasattr(loop, _STORED):
        nodes = (node for statement in loop.body for node in ast.walk(statement))      # type: ignore[attr-defined]
        setattr(loop, _STORED, {x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)})
    return getattr(loop, _STORED)


def show(see: Callable) -> Any:
    """`see()`, in which Triton 3.6 sees a kernel, by one visit of each loop. Errors are Triton's own."""
    if not APPLIES:
        return see()
    try:
        with _by_one_visit():
            return see()
    except Exception:                   # of any kind: Triton's own visit decides
        return see()


_parse = JITFunction.parse


@functools.lru_cache(256)
def _parsed(kind: type, src: str) -> ast.Module:
    """What Triton parses anew at each call of tl.sum and the like. It does not change the tree."""
    return _parse(SimpleNamespace(_src=src))


@contextmanager
def _by_one_visit() -> Iterator[None]:
    usual, code_generator.CodeGenerator = code_generator.CodeGenerator, OneVisit
    clone, code_generator._clone_scope = code_generator._clone_scope, dict          # as Triton 3.9 does
    JITFunction.parse = lambda function: _parsed(type(function), function.src)      # type: ignore[method-assign]
    try:
        with warnings.catch_warnings():
            for category in (DeprecationWarning, PendingDeprecationWarning):        # as Triton does at each node
                warnings.simplefilter("ignore", category)
            yield
    finally:
        code_generator.CodeGenerator, code_generator._clone_scope = usual, clone
        JITFunction.parse = _parse                                                  # type: ignore[method-assign]

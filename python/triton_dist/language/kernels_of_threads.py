# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which kernels are written for single threads: those that reach a device function of `threads_abi`.

Such a kernel is linked with the library of these functions. In it SHMEM calls of thread and warp scope are each calling
thread's or warp's own; in all other kernels they are one call of the program. Regions of code for threads are written
`with dl.simt_exec_region() as (thread, threads):`, which Triton's front end cannot read, so they are lowered here.
"""
import ast
import types
import weakref
from typing import Any

from triton_dist.compat.triton import JITCallable

MARK = "__tdist_of_threads__"          # attribute of the primitives that only kernels of threads call
REGION = "simt_exec_region"
_known: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()        # Python function -> whether it reaches one


def of_threads(kernel: Any) -> bool:
    """Whether a jit function, or a function that it calls, asks for its thread or acts for a single thread."""
    fn = getattr(kernel, "fn", kernel)
    while hasattr(fn, "fn"):                            # autotuners and heuristics around a kernel
        fn = fn.fn
    if not isinstance(fn, types.FunctionType):
        return False
    found = _known.get(fn)
    if found is None:                                   # asked at each launch, so every answer is kept
        seen: set = set()
        found = _reaches(fn, seen)
        if not found:                                   # then nothing that it calls reaches one
            _known.update(dict.fromkeys(seen, False))
    return found


def _reaches(fn: types.FunctionType, seen: set) -> bool:
    if fn in _known:
        return _known[fn]
    if fn in seen:                                      # of a cycle: the function that began it decides
        return False
    seen.add(fn)
    found = any(_marked(value, seen) for value in _named(fn))
    if found:
        _known[fn] = True
    return found


def _named(fn: types.FunctionType) -> list:
    """The values of a function's global and closure names, and of the attributes that it takes of modules among them."""
    code, values = fn.__code__, [fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__]
    for cell in fn.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:
            pass                                        # a name that its scope has not bound yet
    pending, found = values, []
    while pending:
        value = pending.pop()
        if isinstance(value, types.ModuleType):
            if not str(getattr(value, "__name__", "")).startswith("triton."):
                inside = [vars(value)[name] for name in code.co_names if name in vars(value)]
                pending += [x for x in inside if not isinstance(x, types.ModuleType) or x not in found]
        found.append(value)
    return found


def _marked(value: Any, seen: set) -> bool:
    if getattr(value, MARK, False) is True:
        return True
    if isinstance(value, JITCallable) and isinstance(value.fn, types.FunctionType):
        return _reaches(value.fn, seen)
    return False


class _Regions(ast.NodeTransformer):
    """`with f() as (a, b): ...` of a region -> a = f.thread(); b = f.threads(); ..."""

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        item = node.items[0]
        call = item.context_expr
        name = getattr(getattr(call, "func", None), "attr", getattr(getattr(call, "func", None), "id", ""))
        if len(node.items) != 1 or name != REGION:
            return node
        first = []
        if item.optional_vars is not None:
            first = [ast.copy_location(ast.Assign([item.optional_vars], call), node)]
        return [*map(ast.fix_missing_locations, first), *node.body]


def lowered(tree: ast.Module) -> ast.Module:
    """A kernel's syntax tree without regions: `simt_exec_region()` gives the pair that they bind."""
    return _Regions().visit(tree)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A jit function as a plain Python function: same source, file and line numbers; its world replaced by twins.

The source is parsed, assignments, conditions and the like are routed through `statements`, and the result is executed
with new globals: other jit functions are rebuilt likewise, Triton's builtins become their twins, modules become proxies
that convert on first use, constexpr helpers stay. Nothing in Triton is patched, so one process can compile and emulate.
"""
import ast
import builtins
import functools
import inspect
import types
import weakref
from typing import Any, Callable

from triton import knobs
from triton.language import core
from triton_dist.compat.triton import ConstexprFunction, JITCallable

from triton_dist.backends.emulator.engine.registry import MARK, TWINS, twin, unsupported
from triton_dist.backends.emulator.rebuild import primitives, sources, statements, threads
from triton_dist.backends.emulator.rebuild.divergence import ThreadRewriter
from triton_dist.backends.emulator.rebuild.rewriter import Rewriter
from triton_dist.language import kernels_of_threads
from triton_dist.language._call import SELECT

_built: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()      # Python function -> rebuilt function
_built_of_threads: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()      # the same in kernels of threads
_HELPERS = {f"_e_{name}": getattr(statements, name) for name in (
    "value", "result", "constexpr", "plain", "falsy", "truthy", "both", "either", "negation", "choice", "tuple_of",
    "check", "forbidden")}
_HELPERS_OF_THREADS = {f"_e_{name}": helper for name, helper in {**threads.EXPORTED, "locals": builtins.locals}.items()}


def _readable(name: str, value: Any) -> bool:
    """Whether a compiled kernel could read this global (CodeGenerator's rule)."""
    if knobs.compilation.allow_non_constexpr_globals or name in statements.BUILTINS or value is None or is_jit(value):
        return True
    if isinstance(value, (types.ModuleType, JITCallable, core.constexpr, core.dtype)):
        return True
    if any(hasattr(value, mark) for mark in ("__triton_builtin__", "__triton_aggregate__", SELECT)):
        return True
    if str(getattr(value, "__module__", "")).startswith(("triton.language", "triton.experimental.gluon.language")):
        return True
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")


def is_jit(value: Any) -> bool:
    """A jit function of any kind (JITFunction, its subclasses, InterpretedFunction); not a constexpr function."""
    return not isinstance(value, ConstexprFunction) and (isinstance(value, JITCallable)
                                                         or type(value).__name__ == "InterpretedFunction")


class _Module:
    """Stands for a module; attributes are converted on first use."""

    def __init__(self, module: types.ModuleType, of_threads: bool):
        self.__dict__.update(_module=module, _of_threads=of_threads)

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = convert(getattr(self._module, name), self._of_threads)
        return found


_BY_IDENTITY: dict = {
    id(core.constexpr): statements.constexpr,
    id(core.tuple): statements.tuple_of,
    id(core.range): statements.loop,
    id(core.static_range): statements.static_loop
}
if hasattr(core, "condition"):
    _BY_IDENTITY[id(core.condition)] = statements.condition
_BY_IDENTITY[id(range)] = statements.loop


_GLUON = "triton.experimental.gluon.language."
_OURS = ("triton_dist.language.debug", "triton_dist.language.float8", "triton_dist.language.halves",
         "triton_dist.language.memory", "triton_dist.language.selfflag", "triton_dist.language.sync",
         "triton_dist.cores.hopper.hopper_prims", "triton_dist.language.threads", "triton_dist.language.trace")


def key_of(fn: Any) -> str:
    """The name under which a function of Triton's language may have a twin; '' for a function of any other module.

    'core.load': the last part of its module, without underscore, and its own name. Only Triton's modules and a few of
    ours count, by their full names: a user's module may be called math.py.
    """
    module = str(getattr(fn, "__module__", ""))
    if not hasattr(fn, "__qualname__") or not (module.startswith(("triton.language.", _GLUON)) or module in _OURS):
        return ""
    return f"{module.split('.')[-1].lstrip('_')}.{fn.__qualname__}"


def convert(value: Any, of_threads: bool = False) -> Any:
    """A global, closure value or module attribute as rebuilt code sees it; `of_threads`: in a kernel of threads."""
    if isinstance(value, types.ModuleType):
        return _Module(value, of_threads)
    if isinstance(value, core.constexpr):
        return value.value
    if id(value) in _BY_IDENTITY:
        return _BY_IDENTITY[id(value)]
    if hasattr(value, SELECT):
        return primitives.caller(value)
    if getattr(value, "__triton_aggregate__", False):
        from triton_dist.backends.emulator.rebuild import gluon_aggregate
        return gluon_aggregate.rebuilt(value)
    if is_jit(value):
        return TWINS.get(_gluon_key(value.fn)) or TWINS.get(key_of(value.fn)) or build(value, of_threads)
    if _gluon_key(value) in TWINS:
        return TWINS[_gluon_key(value)]
    if isinstance(value, ConstexprFunction) and not of_threads:
        return value.fn                      # arguments are plain already, which Triton's wrapper would see to at each call
    extra = str(getattr(value, "__module__", "")).startswith("triton.language.extra")
    if extra or getattr(value, "__triton_builtin__", False):
        known = TWINS.get(key_of(value))
        if known is not None and of_threads:
            return threads.guarded(key_of(value), known)
        return known or (_missing(f"{value.__module__}.{getattr(value, '__qualname__', '')}") if callable(value) else value)
    return value


def _gluon_key(fn: Any) -> str:
    """'gluon_core.arange' for a function or class of Gluon's own; '' for all else."""
    key = key_of(fn)
    return f"gluon_{key}" if key and fn.__module__.startswith(_GLUON) else ""


def _missing(key: str) -> Callable:
    def refuse(*_: Any, **__: Any) -> None:
        raise unsupported(f"the emulator has no twin of {key}")
    return refuse


def build(jit_function: Any, of_threads: bool = False) -> Callable:
    """The rebuilt function of a jit function (anything with `.fn`), or of a plain Python function. Cached.

    of_threads: it is part of a kernel of threads, whatever it calls itself."""
    fn = inspect.unwrap(jit_function.fn) if hasattr(jit_function, "fn") else jit_function
    of_threads = of_threads or kernels_of_threads.of_threads(fn)
    known = _built_of_threads if of_threads else _built
    found = known.get(fn)
    if found is not None:
        return found
    tree, *source = sources.read(jit_function, fn)
    code, outer = fn.__code__, dict(fn.__globals__)
    for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
        try:
            outer[name] = cell.cell_contents
        except ValueError:
            pass                                 # a name that its scope has not bound yet
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & outer.keys()
    tree = kernels_of_threads.lowered(tree) if of_threads else tree
    rewriter = (ThreadRewriter if of_threads else Rewriter)({n for n in names if not _readable(n, outer[n])})
    tree.body = [node := rewriter.function(tree.body[0])]
    helpers = {**_HELPERS, **_HELPERS_OF_THREADS} if of_threads else _HELPERS
    scope = {"__builtins__": statements.BUILTINS, "__name__": fn.__module__, MARK: True, **helpers}
    exec(compile(ast.fix_missing_locations(tree), code.co_filename, "exec"), scope)
    made = known[fn] = scope[node.name]
    sources.keep(made.__code__, *source)
    made.__defaults__ = tuple(convert(v, of_threads) for v in fn.__defaults__) if fn.__defaults__ else None
    made.__kwdefaults__ = {k: convert(v, of_threads) for k, v in fn.__kwdefaults__.items()} if fn.__kwdefaults__ else None
    made.__qualname__ = fn.__qualname__
    scope.update((n, convert(outer[n], of_threads)) for n in names if n in outer and n not in helpers)
    return made


@twin("member")
def member(value: Any, name: str) -> Callable:
    """A method of a value: x.sum, x.store, ... are the functions of the same name."""
    if name.startswith("__"):
        raise AttributeError(name)
    found = _member(name)
    if found is None:
        raise AttributeError(f"a value of type {value.ty} has no attribute {name!r}")
    return functools.partial(found, value)


@functools.lru_cache(None)
def _member(name: str) -> Any:
    from triton.language import math, standard
    if not hasattr(core.tensor, name):
        return None
    if f"core.tensor.{name}" in TWINS:
        return TWINS[f"core.tensor.{name}"]
    for module in (core, standard, math):
        if hasattr(module, name):
            return convert(getattr(module, name))
    return None

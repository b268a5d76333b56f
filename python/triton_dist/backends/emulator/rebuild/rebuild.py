# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A jit function as a plain Python function: same source, file and line numbers; its world replaced by twins.

The source is parsed, assignments, conditions and the like are routed through `statements`, and the result is executed
with new globals: other jit functions are rebuilt likewise, Triton's builtins become their twins, modules become proxies
that convert on first use, constexpr helpers stay. Nothing in Triton is patched, so one process can compile and emulate.
"""
import ast
import copy
import functools
import inspect
import types
import weakref
from typing import Any, Callable

from triton import knobs
from triton.language import core
from triton_dist.compat.triton import ConstexprFunction, JITCallable

from triton_dist.backends.emulator.engine.registry import MARK, TWINS, twin, unsupported
from triton_dist.backends.emulator.rebuild import primitives, sources, statements
from triton_dist.language._call import SELECT
from triton_dist.runtime.errors import UnsupportedFeature

_built: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()      # Python function -> rebuilt function
_HELPERS = {f"_e_{name}": getattr(statements, name) for name in (
    "value", "result", "constexpr", "plain", "falsy", "truthy", "both", "either", "negation", "choice", "tuple_of",
    "check", "forbidden")}


class _Rewriter(ast.NodeTransformer):
    """Routes what the code generator treats specially through the helpers."""

    def __init__(self, forbidden: set):
        self.forbidden, self.made, self.local, self.tests = forbidden, set(), set(), []

    def _call(self, helper: str, *args: ast.expr) -> ast.Call:
        return ast.Call(ast.Name(helper, ast.Load()), list(args), [])

    def _temporary(self) -> str:
        name = f"_e_t{len(self.made)}"
        self.made.add(name)
        return name

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self.local = {a.arg for a in every} | {a.arg for a in (arguments.vararg, arguments.kwarg) if a}
        self.local |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        checks = []
        for a in every:
            if a.annotation is not None and "constexpr" in ast.unparse(a.annotation):
                checks.append(ast.Assign([ast.Name(a.arg, ast.Store())],
                                         self._call("_e_constexpr", ast.Name(a.arg, ast.Load()), ast.Constant(a.arg))))
            a.annotation = None
        for a in (arguments.vararg, arguments.kwarg):
            if a:
                a.annotation = None
        node.decorator_list, node.returns = [], None
        none = ast.Constant(None)                # placeholders: the true defaults are set on the function
        arguments.defaults = [none for _ in arguments.defaults]
        arguments.kw_defaults = [d and none for d in arguments.kw_defaults]
        first = node.body[0]
        body = [self.visit(s) for s in node.body]
        checks += [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in self.tests]
        node.body = [ast.copy_location(c, first) for c in checks] + body
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        raise UnsupportedFeature(f"nested function {node.name} in a kernel: Triton has none")

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        self.generic_visit(node)
        node.value = ast.copy_location(self._call("_e_value", node.value), node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        plain = ast.copy_location(ast.Assign([node.target], node.value), node)
        if "constexpr" not in ast.unparse(node.annotation):
            return self.visit(plain)
        plain.value = self._call("_e_constexpr", self.visit(node.value), ast.Constant(ast.unparse(node.target)))
        return plain

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        target = ast.parse(ast.unparse(node.target), mode="eval").body
        total = ast.copy_location(ast.BinOp(target, node.op, node.value), node)
        return self.visit(ast.copy_location(ast.Assign([node.target], total), node))

    def visit_Return(self, node: ast.Return) -> ast.Return:
        self.generic_visit(node)
        if node.value is not None:
            tests = [ast.Name(name, ast.Load()) for name in self.tests]
            node.value = ast.copy_location(self._call("_e_result", node.value, *tests), node.value)
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        """Remembers the condition of an `if` with a return in it: what is returned may depend on it at run time."""
        if any(isinstance(n, ast.Return) for n in ast.walk(node)):
            test, name = self.visit(node.test), self._temporary()
            node.test = ast.copy_location(ast.NamedExpr(ast.Name(name, ast.Store()), test), test)
            self.tests.append(name)
            node.body, node.orelse = ([self.visit(s) for s in body] for body in (node.body, node.orelse))
            return node
        return self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.NamedExpr:
        self.generic_visit(node)
        if node.target.id not in self.made:
            node.value = ast.copy_location(self._call("_e_value", node.value), node.value)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.Expr:
        self.generic_visit(node)
        return ast.copy_location(ast.Expr(self._call("_e_check", node.test, *([node.msg] if node.msg else []))), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        decided, join = ("_e_falsy", "_e_both") if isinstance(node.op, ast.And) else ("_e_truthy", "_e_either")
        out = node.values[-1]
        for operand in reversed(node.values[:-1]):
            name = self._temporary()
            kept = ast.NamedExpr(ast.Name(name, ast.Store()), operand)
            out = ast.IfExp(self._call(decided, kept), ast.Name(name, ast.Load()),
                            self._call(join, ast.Name(name, ast.Load()), out))
        return ast.copy_location(out, node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) == 1:
            self.generic_visit(node)
            return node
        left, pairs = node.left, []
        for op, right in zip(node.ops[:-1], node.comparators[:-1]):
            name = self._temporary()
            pairs.append(ast.Compare(left, [op], [ast.NamedExpr(ast.Name(name, ast.Store()), right)]))
            left = ast.Name(name, ast.Load())
        pairs.append(ast.Compare(left, [node.ops[-1]], [node.comparators[-1]]))
        return self.visit(ast.copy_location(ast.BoolOp(ast.And(), pairs), node))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return ast.copy_location(self._call("_e_negation", node.operand), node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        name = self._temporary()
        test = ast.NamedExpr(ast.Name(name, ast.Store()), node.test)
        body, other = (self._call("_e_choice", ast.Name(name, ast.Load()), x) for x in (node.body, node.orelse))
        return ast.copy_location(ast.IfExp(test, body, other), node)

    def visit_List(self, node: ast.List) -> ast.expr:
        self.generic_visit(node)
        return ast.copy_location(self._call("_e_tuple_of", node), node) if isinstance(node.ctx, ast.Load) else node

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        self.generic_visit(node)
        return ast.copy_location(self._call("_e_tuple_of", node), node) if isinstance(node.ctx, ast.Load) else node

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        self.generic_visit(node)
        return ast.copy_location(self._call("_e_tuple_of", node), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        node.value = self.visit(node.value)      # x[:, None] keeps its Python tuple
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        parts = [self.visit(part) for part in parts]
        node.slice = ast.Tuple(parts, ast.Load()) if isinstance(node.slice, ast.Tuple) else parts[0]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr == "value" and isinstance(node.ctx, ast.Load):
            return ast.copy_location(self._call("_e_plain", node.value), node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self.forbidden and node.id not in self.local:
            return ast.copy_location(self._call("_e_forbidden", ast.Constant(node.id)), node)
        return node


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

    def __init__(self, module: types.ModuleType):
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = convert(getattr(self._module, name))
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
_OURS = ("triton_dist.language.memory", "triton_dist.language.selfflag", "triton_dist.language.sync",
         "triton_dist.cores.hopper.hopper_prims")


def key_of(fn: Any) -> str:
    """The name under which a function of Triton's language may have a twin; '' for a function of any other module.

    'core.load': the last part of its module, without underscore, and its own name. Only Triton's modules and a few of
    ours count, by their full names: a user's module may be called math.py.
    """
    module = str(getattr(fn, "__module__", ""))
    if not hasattr(fn, "__qualname__") or not (module.startswith(("triton.language.", _GLUON)) or module in _OURS):
        return ""
    return f"{module.split('.')[-1].lstrip('_')}.{fn.__qualname__}"


def convert(value: Any) -> Any:
    """A global, closure value or module attribute as rebuilt code sees it."""
    if isinstance(value, types.ModuleType):
        return _Module(value)
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
        return TWINS.get(_gluon_key(value.fn)) or TWINS.get(key_of(value.fn)) or build(value)
    if _gluon_key(value) in TWINS:
        return TWINS[_gluon_key(value)]
    extra = str(getattr(value, "__module__", "")).startswith("triton.language.extra")
    if extra or getattr(value, "__triton_builtin__", False):
        known = TWINS.get(key_of(value))
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


def build(jit_function: Any) -> Callable:
    """The rebuilt function of a jit function (anything with `.fn`), or of a plain Python function. Cached."""
    fn = inspect.unwrap(jit_function.fn) if hasattr(jit_function, "fn") else jit_function
    found = _built.get(fn)
    if found is not None:
        return found
    tree = sources.read(jit_function, fn)
    code, outer = fn.__code__, dict(fn.__globals__)
    for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
        try:
            outer[name] = cell.cell_contents
        except ValueError:
            pass                                 # a name that its scope has not bound yet
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & outer.keys()
    definition = copy.deepcopy(tree.body[0])
    node = _Rewriter({n for n in names if not _readable(n, outer[n])}).function(tree.body[0])
    tree.body = [node]
    scope = {"__builtins__": statements.BUILTINS, "__name__": fn.__module__, MARK: True, **_HELPERS}
    exec(compile(ast.fix_missing_locations(tree), code.co_filename, "exec"), scope)
    made = _built[fn] = scope[node.name]
    sources.keep(made.__code__, definition)
    made.__defaults__ = tuple(map(convert, fn.__defaults__)) if fn.__defaults__ else None
    made.__kwdefaults__ = {k: convert(v) for k, v in fn.__kwdefaults__.items()} if fn.__kwdefaults__ else None
    made.__qualname__ = fn.__qualname__
    scope.update((n, convert(outer[n])) for n in names if n in outer and n not in _HELPERS)
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
    for module in (core, standard, math):
        if hasattr(module, name):
            return convert(getattr(module, name))
    return None

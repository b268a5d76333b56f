# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rebuilds kernels of threads: what may depend on the thread exists twice, for the program and for a thread.

    if test:                   _t = test
        x = f(y)               if _e_diverges(_t):
                                   def kernel(_t, x, y):
                                       if _t:
                                           x = f(y)
                                       return (x,)
                                   (x,) = _e_fork(_t, kernel, locals(), ('x', 'y'), ('x',), False)
                               elif _t:
                                   x = f(y)

Inside the inner function every value is one thread's, so nothing diverges again.
"""
import ast
import copy
from typing import Any

from triton_dist.backends.emulator.rebuild.rewriter import Rewriter


class ThreadRewriter(Rewriter):
    """A Rewriter whose branches, loops and calls may depend on the thread."""

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.name = node.name
        return super().function(node)

    # -- branches and loops --------------------------------------------------------------------------------
    def visit_If(self, node: ast.If) -> Any:
        if _returns(node):
            made: Any = super().visit_If(node)
            made.test = ast.copy_location(self._call("_e_uniform", made.test), made.test)
            return made
        lane = self._lane([ast.If(_name("_e_own"), copy.deepcopy(node.body), copy.deepcopy(node.orelse))], node)
        test, name = self.visit(node.test), self._temporary()
        apart = self._fork(name, lane, node, everyone=bool(node.orelse))
        together = ast.If(_name(name), self._visited(node.body), self._visited(node.orelse))
        return [_at(ast.Assign([_store(name)], test), node),
                _at(ast.If(self._call("_e_diverges", _name(name)), apart, [together]), node)]

    def visit_While(self, node: ast.While) -> Any:
        name = self._temporary()
        again = copy.deepcopy(node)
        inner = ast.While(_name("_e_own"), [*again.body, ast.Assign([_store("_e_own")], again.test)], [])
        lane = self._lane([inner], node)
        test = self.visit(node.test)
        apart = [*self._fork(name, lane, node, everyone=False), ast.Break()]
        body = [_at(ast.Assign([_store(name)], test), node),
                _at(ast.If(self._call("_e_diverges", _name(name)), apart, []), node),
                _at(ast.If(ast.UnaryOp(ast.Not(), _name(name)), [ast.Break()], []), node), *self._visited(node.body)]
        return _at(ast.While(ast.Constant(True), body, []), node)

    def visit_For(self, node: ast.For) -> Any:
        if not isinstance(node.iter, ast.Call):
            return self.generic_visit(node)
        lane = self._lane([ast.For(copy.deepcopy(node.target), _name("_e_own"), copy.deepcopy(node.body), [])], node)
        name, call = self._temporary(), node.iter
        given = [self.visit(x) for x in (call.func, *call.args)]
        kwargs = [ast.keyword(k.arg, self.visit(k.value)) for k in call.keywords]
        found = ast.Call(_name("_e_bounds"), given, kwargs)
        apart = self._fork(name, lane, node, everyone=True)
        together = ast.For(node.target, _name(name), self._visited(node.body), [])
        return [_at(ast.Assign([_store(name)], found), node),
                _at(ast.If(self._call("_e_is_loop", _name(name)), apart, [together]), node)]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        parts = [self.visit(x) for x in (node.test, node.body, node.orelse)]
        nothing = ast.arguments([], [], None, [], [], None, [])
        return _at(self._call("_e_select", parts[0], *(ast.Lambda(nothing, x) for x in parts[1:])), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return _at(ast.Call(_name("_e_call"), [node.func, *node.args], node.keywords), node)

    # -- parts ---------------------------------------------------------------------------------------------
    def _lane(self, body: list, node: ast.stmt) -> tuple:
        """(definition of the function that runs `body` for one thread, its parameters, what it gives)."""
        named = {n.id: isinstance(n.ctx, ast.Store) for statement in body for n in ast.walk(statement)
                 if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)} | {
                     n.id: True for statement in body for n in ast.walk(statement)
                     if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        named = {name: stored for name, stored in named.items() if name in self.local}
        parameters, stored = sorted(named), sorted(name for name in named if named[name])
        plain = Rewriter(self.forbidden)
        plain.local, plain.made, plain.tests = self.local | {"_e_own"}, self.made, self.tests
        visited = [plain.visit(_at(statement, node)) for statement in body]
        end = ast.Return(ast.Tuple([_name(name) for name in stored], ast.Load()))
        arguments = ast.arguments([], [ast.arg(name) for name in ("_e_own", *parameters)], None, [], [], None, [])
        made = ast.FunctionDef(self.name, arguments, [*visited, end], [], None, None, type_params=[])
        return _at(made, node), parameters, stored

    def _fork(self, name: str, lane: tuple, node: ast.stmt, everyone: bool) -> list:
        """Statements that let threads run apart."""
        definition, parameters, stored = lane
        call = self._call("_e_fork", _name(name), _name(self.name), self._call("_e_locals"), _words(parameters), _words(stored),
                          ast.Constant(everyone))
        if stored:
            return [definition, _at(ast.Assign([ast.Tuple([_store(x) for x in stored], ast.Store())], call), node)]
        return [definition, _at(ast.Expr(call), node)]


def _returns(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _store(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())


def _words(names: list) -> ast.Tuple:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


def _at(made: Any, node: ast.AST) -> Any:
    """`made` at the line of `node`, as far as its parts have none of their own."""
    ast.copy_location(made, node)
    return ast.fix_missing_locations(made)

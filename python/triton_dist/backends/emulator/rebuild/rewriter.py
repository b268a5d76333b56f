# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The syntax tree of a kernel with assignments, conditions and the like routed through `statements`."""
import ast

from triton_dist.runtime.errors import UnsupportedFeature


class Rewriter(ast.NodeTransformer):
    """Routes what the code generator treats specially through the helpers."""

    def __init__(self, forbidden: set):
        self.forbidden, self.made, self.local, self.tests = forbidden, set(), set(), []

    def _call(self, helper: str, *args: ast.expr) -> ast.Call:
        return ast.Call(ast.Name(helper, ast.Load()), list(args), [])

    def _temporary(self) -> str:
        name = f"_e_t{len(self.made)}"
        self.made.add(name)
        return name

    def _visited(self, body: list) -> list:
        """Statements after a visit, which may make several of one."""
        made = [self.visit(statement) for statement in body]
        return [x for item in made for x in (item if isinstance(item, list) else [item])]

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
        body = self._visited(node.body)
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
            node.body, node.orelse = self._visited(node.body), self._visited(node.orelse)
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

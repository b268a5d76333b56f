# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Grid expressions, as Python and as C have them: integers, names of integer parameters, + - * / // %, min, max, cdiv and sms.

`/` is division of integers, as in C. sms is the number of multiprocessors of the device.
"""

import ast
from typing import Mapping

from triton_dist.runtime.errors import InvalidArgument

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "/", ast.Mod: "%"}
_CALLS = {"min": "tdist_min", "max": "tdist_max", "cdiv": "tdist_cdiv"}


def to_c(expression: str, integers: Mapping[str, int]) -> tuple[str, list[str]]:
    """(C expression over int64_t, its divisors). `integers`: position of each parameter that is an integer, by name.

    Raises InvalidArgument for what is no such expression.
    """
    divisors: list[str] = []
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise InvalidArgument(f"grid: expected an expression, found {expression!r}") from error
    return _text(tree, integers, divisors, expression), divisors


def _text(node: ast.AST, integers: Mapping[str, int], divisors: list[str], whole: str) -> str:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return f"INT64_C({node.value})"
    if isinstance(node, ast.Name) and node.id == "sms":
        return "sms"
    if isinstance(node, ast.Name) and node.id in integers:
        return f"values[{integers[node.id]}].as.integer"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return f"(-{_text(node.operand, integers, divisors, whole)})"
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = (_text(side, integers, divisors, whole) for side in (node.left, node.right))
        if _BINARY[type(node.op)] in "/%":
            divisors.append(right)
        return f"({left} {_BINARY[type(node.op)]} {right})"
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _CALLS
        and len(node.args) == 2
        and not node.keywords
    ):
        left, right = (_text(arg, integers, divisors, whole) for arg in node.args)
        if node.func.id == "cdiv":
            divisors.append(right)
        return f"{_CALLS[node.func.id]}({left}, {right})"
    raise InvalidArgument(
        f"grid: expected integers, integer parameters ({', '.join(integers) or 'there are none'}), sms, + - * / %, "
        f"min, max and cdiv; found {ast.unparse(node)!r} in {whole!r}"
    )

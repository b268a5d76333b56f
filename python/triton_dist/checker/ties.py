# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a value depends on, by the source: the names it is computed from, back to the calls that they come from.

Of a load's pointer: whether it comes from a consume_token. Of a token: whether it may come from a wait. Names are followed
through assignments of the function, in any order, and through parameters into the calling statements.
"""
import ast
from typing import Any, Callable, Optional

from triton_dist.backends.emulator.rebuild import sources

_CONSUME = "consume_token"
# Calls whose results hold nothing but what goes in; any other may be, or contain, a wait.
_PURE = {"abs", "arange", "cast", "cdiv", "constexpr", "full", "max", "maximum", "min", "minimum", "num_programs", "num_ranks",
         "program_id", "range", "rank", "static_range", "to", "where", "zeros", "zeros_like"}


_answers: dict = {}          # id of a stack -> (the stack, which keeps the id its own, the answer)
_tokens: dict = {}           # the same for tokens


def forget() -> None:
    """Drops the answers that are known, and with them the code they keep alive."""
    _answers.clear()
    _tokens.clear()


def tied(stack: tuple) -> Optional[bool]:
    """Of the load at a kernel stack: True, False, or None where the source does not tell."""
    if id(stack) not in _answers:
        _answers[id(stack)] = stack, _tied(stack)
    return _answers[id(stack)][1]


def _tied(stack: tuple) -> Optional[bool]:
    if not stack:
        return None
    function, call = _place(*stack[0])
    if call is None:
        return None
    pointers = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "pointer")]
    if isinstance(call.func, ast.Attribute):         # x.load(...): the descriptor, or a pointer's own method
        pointers.append(call.func.value)
        pointers += call.args
    return _depends(function, pointers, stack[1:], lambda name: name == _CONSUME)


def derived(stack: tuple) -> Optional[bool]:
    """Of a call that takes a token, at a kernel stack: whether the token may come from a wait; None: the source does not tell."""
    if id(stack) not in _tokens:
        function, call = _place(*stack[0]) if stack else (None, None)
        found = None if call is None else _depends(function, call.args, stack[1:], lambda name: name not in _PURE)
        _tokens[id(stack)] = stack, found
    return _tokens[id(stack)][1]


def _place(code: Any, instruction: int) -> tuple:
    """(function definition, call expression) of an instruction; the second is None where it is not found."""
    line, _, column, _ = list(code.co_positions())[instruction // 2]
    function = sources.definition_of(code)
    if function is None:
        return None, None
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)
             and node.lineno == line and node.col_offset == column]
    return function, max(calls, key=lambda call: (call.end_lineno, call.end_col_offset), default=None)


def _depends(function: ast.FunctionDef, expressions: list, callers: tuple, sought: Callable[[str], bool]) -> Optional[bool]:
    """Whether expressions of a function depend on a call of a function with a name that is `sought`."""
    sources = _assignments(function)
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    seen: set = set()
    waiting, outside = list(expressions), []
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.Call) and sought(getattr(node.func, "attr", "") or getattr(node.func, "id", "")):
                return True
            if isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                waiting += sources.get(node.id, ())
                if node.id in parameters:
                    outside.append(node.id)
    return _through(outside, parameters, callers, sought) if outside and callers else False


def _through(names: list, parameters: list, callers: tuple, sought: Callable[[str], bool]) -> Optional[bool]:
    """The same for the arguments that a calling statement gives for parameters."""
    outer, call = _place(*callers[0])
    if call is None:
        return None
    given = dict(zip(parameters, call.args))
    if parameters[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        given = dict(zip(parameters, [call.func.value, *call.args]))
    given.update({k.arg: k.value for k in call.keywords if k.arg})
    found = [given[name] for name in names if name in given]
    return _depends(outer, found, callers[1:], sought) if found else False


def _assignments(function: ast.FunctionDef) -> dict:
    """Name -> expressions that are assigned to it somewhere in a function."""
    found: dict = {}

    def note(target: ast.AST, value: Optional[ast.AST]) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and value is not None:
                found.setdefault(node.id, []).append(value)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                note(target, node.value)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            note(node.target, node.value)
        elif isinstance(node, ast.For):
            note(node.target, node.iter)
    return found

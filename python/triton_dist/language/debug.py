# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Looking into a kernel: prints and breakpoints that only some programs take."""
import triton.language as tl
from triton.language import core

from triton_dist.compat.triton import constexpr_function, unwrap_constexpr
from triton_dist.language._call import helper

_STOP = tl.constexpr("breakpoint_if")


@constexpr_function
def _is_text(condition) -> bool:
    return isinstance(condition, str)


@constexpr_function
def _rule(condition: str, axis: int) -> tuple:
    """("==", number) that a text such as "=0,>3" has for an axis of the grid; ("", 0) where it has none."""
    words = condition.split(",")
    if len(words) > 3:
        raise ValueError(f"condition: expected a rule for at most three axes of the grid, got {condition!r}")
    word = words[axis].strip() if axis < len(words) else ""
    if not word:
        return "", 0
    for sign in ("==", "!=", ">=", "<=", "=", ">", "<"):
        number = word[len(sign):].strip()
        if word.startswith(sign) and number.isdigit():
            return "==" if sign == "=" else sign, int(number)
    raise ValueError(f"condition: expected rules for program_id(0), (1), (2) such as '=0,>3', got {condition!r}")


@helper
def _axis_holds(condition: tl.constexpr, axis: tl.constexpr):
    rule: tl.constexpr = _rule(condition, axis)
    pid = tl.program_id(axis)
    if rule[0] == "==":
        return pid == rule[1]
    elif rule[0] == "!=":
        return pid != rule[1]
    elif rule[0] == ">":
        return pid > rule[1]
    elif rule[0] == ">=":
        return pid >= rule[1]
    elif rule[0] == "<":
        return pid < rule[1]
    elif rule[0] == "<=":
        return pid <= rule[1]
    else:
        return pid >= 0


@helper
def _holds(condition):
    if _is_text(condition):
        return _axis_holds(condition, 0) & _axis_holds(condition, 1) & _axis_holds(condition, 2)
    else:
        return condition != 0


@constexpr_function
def _in_order(function: str, *values) -> None:
    """Refuses a value after a None: it would not be printed."""
    given = [value is not None for value in values]
    if given != sorted(given, reverse=True):
        raise TypeError(f"{function}: values are a, then b, then c, then d; one of them was left out before another")


@helper
def _print(prefix, a, b, c, d):
    if a is None:
        tl.device_print(prefix)
    elif b is None:
        tl.device_print(prefix, a)
    elif c is None:
        tl.device_print(prefix, a, b)
    elif d is None:
        tl.device_print(prefix, a, b, c)
    else:
        tl.device_print(prefix, a, b, c, d)


@core.builtin
def _stop(message, _semantic=None):
    """A failed assertion, whether or not TRITON_DEBUG is set: the device says where, and traps."""
    false = _semantic.to_tensor(False)
    _semantic.builder.create_assert(false.handle, unwrap_constexpr(message))


@helper
def print_if(condition, prefix, a=None, b=None, c=None, d=None):
    """Prints from those programs for which a condition holds, as `tl.device_print` does from all of them.

    The whole program calls it in uniform control flow. On a GPU it needs no variable; the driver shows the lines when the host
    synchronises, and drops what does not fit its buffer.

    Args:
        condition: a scalar of the program, such as `dl.rank() == 1` or `count > limit`. Or a text with rules for
            `program_id(0)`, `(1)` and `(2)`: "=0" for the first program, ">3,=0" for two axes.
        prefix: text before the values, a constexpr.
        a: value to print, a scalar or a tensor; None for none.
        b: another one.
        c: another one.
        d: another one.
    """
    _in_order("print_if", a, b, c, d)
    if _holds(condition):
        _print(prefix, a, b, c, d)


@helper
def breakpoint_if(condition, a=None, b=None, c=None, d=None):
    """Stops where a condition holds.

    In the emulator Python's debugger opens at the next line of the kernel, with all its variables; other ranks wait. On a GPU the
    program traps: the driver says block, thread, file and line on stderr, and the context is gone; under the vendor's debugger it
    stops there. The whole program calls it in uniform control flow.

    Args:
        condition: as for `print_if`.
        a: value that is printed first, a scalar or a tensor; None for none. After a trap a driver may not show it.
        b: another one.
        c: another one.
        d: another one.
    """
    _in_order("breakpoint_if", a, b, c, d)
    if _holds(condition):
        if a is not None:
            _print(_STOP, a, b, c, d)
        _stop(_STOP)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Launches as lines of JSON: what a program has launched, for who compiles it ahead of time."""

import ast
import json
from pathlib import Path
from typing import Any, Mapping

from triton_dist.backends.gpu.prebuilt import specialised
from triton_dist.runtime.errors import InvalidArgument

_PLAIN = (bool, int, float, str, type(None))
# Options that a launch gives; others follow from the target, or name files of a machine.
_OPTIONS = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "launch_cooperative_grid",
    "launch_pdl",
    "enable_fp_fusion",
    "waves_per_eu",
    "matrix_instr_nonkdim",
    "kpack",
    "schedule_hint",
    "allow_flush_denorm",
)


class Recorder:
    """Appends a line for each launch that it has not seen yet.

    Raises InvalidArgument where the file cannot be written: later it would be one rank's error in the middle of a call.
    """

    def __init__(self, path: str):
        self._path, self._seen = Path(path), set()
        try:
            self._path.open("a").close()
        except OSError as error:
            raise InvalidArgument(f"TRITON_DIST_AOT_RECORD={path}: cannot be written: {error.strerror}") from error

    def add(self, kernel: Any, args: tuple, kwargs: Mapping) -> None:
        """A launch with these arguments. One that cannot be written down, such as of tuples, is left out."""
        try:
            signature, constexprs, attrs, options, _ = specialised(kernel, args, kwargs)
        except (AttributeError, TypeError, ValueError):  # of another Triton
            return
        line = _line(kernel, signature, constexprs, attrs, options)
        if line is not None and line not in self._seen:
            self._seen.add(line)
            with self._path.open("a") as file:
                file.write(line + "\n")


def _line(kernel: Any, signature: Mapping, constexprs: Mapping, attrs: Mapping, options: Any) -> str | None:
    names = list(kernel.arg_names)
    if any(len(path) != 1 for path in (*constexprs, *attrs)) or any(
        not isinstance(kind, str) for kind in signature.values()
    ):
        return None
    hints = {names[path[0]]: 16 for path, value in attrs.items() if ["tt.divisibility", 16] in value}
    constants = {
        names[path[0]]: getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        for path, value in constexprs.items()
    }
    declared = {param.name for param in kernel.params if param.is_constexpr}
    given = vars(options)
    return json.dumps(
        {
            "kernel": f"{kernel.fn.__module__}:{kernel.fn.__qualname__}",
            "types": {
                name: "i32" if kind == "constexpr" and name not in declared else kind for name, kind in signature.items()
            },
            "hints": {**hints, **{name: 1 for name in constants if name not in declared}},
            "constexprs": {name: _written(value) for name, value in constants.items() if name in declared},
            "options": {name: given[name] for name in _OPTIONS if name in given and given[name] is not None},
        }
    )


def _written(value: Any) -> Any:
    return value if isinstance(value, _PLAIN) else {"gluon": repr(value)}


def read_value(written: Any) -> Any:
    """The value of a constexpr. Raises InvalidArgument for what is neither plain nor a layout of Gluon with plain arguments."""
    if not isinstance(written, dict):
        return written
    from triton.experimental.gluon import language as gl

    try:
        call = ast.parse(written["gluon"], mode="eval").body
        return getattr(gl, call.func.id)(
            *map(ast.literal_eval, call.args), **{word.arg: ast.literal_eval(word.value) for word in call.keywords}
        )
    except (AttributeError, KeyError, TypeError, ValueError, SyntaxError) as error:
        raise InvalidArgument(
            f"a recorded constant: expected a number, a string or a layout of Gluon, found {written}"
        ) from error

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist env`: every variable that matters, its value here, and what it does."""
import argparse
import os
import re
import shutil
import sys
import textwrap
from typing import Mapping, Sequence

from triton_dist.doctor.variable_table import SECTIONS, VARIABLES, Variable

_HELP = ("Lists every environment variable that matters, ours and Triton's, with its value and its effect. "
         "docs/environment.md is the same list.")


def main(words: Sequence[str]) -> int:
    """Entry point: 0; 1 where a variable holds a value that it cannot have; 2 where no variable has the word in its name."""
    parser = argparse.ArgumentParser(prog="triton-dist env", description=_HELP)
    parser.add_argument("word", nargs="?", default="", help="only variables with this in their name or effect")
    parser.add_argument("--set", action="store_true", help="only variables that are set")
    args = parser.parse_args(words)
    text = listing(os.environ, args.word, args.set, min(120, shutil.get_terminal_size().columns))
    if not text and args.word:
        print(f"triton-dist env: no variable{' that is set' if args.set else ''} has {args.word!r} in its name or effect",
              file=sys.stderr)
        return 2
    print(text or "none is set")
    return int(any(problem(variable, os.environ) for variable in VARIABLES.values()))


def listing(environ: Mapping[str, str], word: str = "", only_set: bool = False, width: int = 120) -> str:
    """The table as text: a line for name and value, and the effect below."""
    parts = []
    for title, variables in SECTIONS.items():
        chosen = [variable for variable in variables if (not only_set or environ.get(variable.name, "").strip())
                  and word.lower() in f"{variable.name} {variable.effect}".lower()]
        if chosen:
            parts.append("\n".join([title, *(_entry(variable, environ, width) for variable in chosen)]))
    return "\n\n".join(parts)


def _entry(variable: Variable, environ: Mapping[str, str], width: int) -> str:
    value = environ.get(variable.name, "").strip()
    shown = value if value else f"(unset: {plain(variable.default)})" if variable.default != "unset" else "(unset)"
    wrong = problem(variable, environ)
    lines = textwrap.wrap(plain(variable.effect), width - 8, break_on_hyphens=False)
    return "\n".join([f"  {variable.name}  {shown}", *(["      ! " + wrong] if wrong else []),
                      *("      " + line for line in lines)])


def problem(variable: Variable, environ: Mapping[str, str]) -> str:
    """What is wrong with the value that it has; "" where nothing is."""
    value = environ.get(variable.name, "").strip()
    return variable.check(value) if value else ""


def plain(text: str) -> str:
    """Markdown without its marks; links to pages keep their words."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The `triton-dist` command. Each tool is imported when it is asked for, and parses its own words."""
import argparse
import sys
from typing import Callable, Sequence

from triton_dist.cli.check import end_on_interrupt

TOOLS = {
    "aot": "compile kernels ahead of time into a C library; needs no GPU",
    "bench": "time an op beside its baselines",
    "check": "find races, deadlocks and wrong scopes of a script's kernels on emulated ranks",
    "doctor": "say what this machine has, try what can be tried, and name what is missing and the command that fixes it",
    "dump": "print what a kernel is compiled to, at any stage, for any GPU; needs none",
    "env": "list every environment variable that matters, with its value and its effect",
    "launch": "run a script on every GPU of this machine, or on emulated ranks where there is none; as launch.sh does",
    "tiles": "draw the order in which programs take the tiles of a product",
    "trace": "record what all programs of all ranks do in one call: a Perfetto file, and a picture of the overlap",
    "tune": "time the ways to run an op at given shapes, and write a table of them",
}


def parser() -> argparse.ArgumentParser:
    """The command line up to the name of a tool."""
    listed = "\n".join(f"  {name:8}{about}" for name, about in TOOLS.items())
    top = argparse.ArgumentParser(prog="triton-dist", description="Tools for overlap kernels.", usage="%(prog)s TOOL ...",
                                  epilog=f"tools:\n{listed}\n\n`triton-dist TOOL --help` has the options of a tool.",
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("tool", choices=TOOLS, metavar="TOOL", help="one of those below")
    top.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="the words of the tool")
    return top


def main() -> None:
    """Entry point of the console script and of `python -m triton_dist`."""
    args = parser().parse_args()
    if args.tool == "check":
        end_on_interrupt("triton-dist check")
    try:
        sys.exit(_tool(args.tool)(args.words))
    except KeyboardInterrupt:
        print("triton-dist: interrupted", file=sys.stderr)
        sys.exit(130)


def _tool(name: str) -> Callable[[Sequence[str]], int]:
    """What runs a tool on its words."""
    if name == "launch":
        from triton_dist.cli.launch import main as launch
        return lambda words: launch(list(words), "triton-dist launch")
    if name == "aot":
        from triton_dist.aot import command as tool
    elif name == "bench":
        from triton_dist.bench import command as tool
    elif name == "check":
        from triton_dist.checker import command as tool
    elif name == "doctor":
        from triton_dist.doctor import command as tool
    elif name == "tiles":
        from triton_dist.tiles import command as tool
    elif name == "trace":
        from triton_dist.trace import command as tool
    elif name == "env":
        from triton_dist.doctor import list_variables as tool
    elif name == "dump":
        from triton_dist.aot import dump as tool
    else:
        from triton_dist.tune import command as tool
    return lambda words: tool.main(list(words))

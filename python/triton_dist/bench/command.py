# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist bench`: the command line, and what every rank does.

    triton-dist bench ag_gemm                                 # starts a rank on every GPU, or emulated ranks
    bash launch.sh --nproc_per_node 2 benchmarks/bench.py gemm_rs --shapes 8B 70B@2048 8192,8192,29568 --out results
    triton-dist bench plot results/2026-01-31-4xH100-80GB     # pictures, on any machine
"""
import argparse
import os
import sys
from datetime import date
from pathlib import Path

from triton_dist.bench.shapes import OPS, parse

_DTYPES = ("bfloat16", "float16", "float32")
_METHODS = ("auto", "ws", "portable", "unfused")
_PEERS = ("torch", "none")


def parser() -> argparse.ArgumentParser:
    """The command line of `bench`."""
    top = argparse.ArgumentParser(prog="triton-dist bench", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    for op in OPS:
        sub = commands.add_parser(op, help=f"time {op} beside its baselines")
        sub.add_argument("--shapes", nargs="+", default=[], metavar="NAME|M,N,K",
                         help="8B, 70B, GPT3, 405B (M = 8192), 8B@2048 and so on, global sizes, or a set: default, "
                              "large, medium, small, tiny")
        sub.add_argument("--dtype", choices=_DTYPES, default="bfloat16")
        sub.add_argument("--methods", type=_names(_METHODS), default=("auto", "ws", "portable"), metavar="A,B",
                         help=f"of {', '.join(_METHODS)}; figures speak of the first (default: auto,ws,portable)")
        sub.add_argument("--peers", type=_names(_PEERS), default=("torch",), metavar="A,B",
                         help="torch (its fused symmetric-memory op) or none")
        sub.add_argument("--rounds", type=_positive, help="interleaved rounds (default: 9; emulated 3)")
        sub.add_argument("--iters", type=_positive,
                         help="calls in a batch (default: what fills 20 ms, 10 to 200; emulated 2)")
        sub.add_argument("--nproc_per_node", "--nproc-per-node", type=_positive, metavar="N", help="ranks to start")
        sub.add_argument("--out", type=Path, metavar="DIR", help="write DIR/<date>-<host>/<op>.json and host.json")
    plot = commands.add_parser("plot", help="draw pictures from a folder of results")
    plot.add_argument("folder", type=Path, metavar="DIR")
    return top


def main(argv: list) -> int:
    """Runs the command; the exit status is 1 where a result was wrong or a shape gave no figure."""
    args = parser().parse_args(argv)
    if args.command != "plot":
        try:
            parse(args.shapes, args.command, world=1, emulated=True)
        except ValueError as error:                     # said once, before ranks start
            parser().error(str(error))
    if args.command == "plot":
        return _plot(args.folder)
    if "RANK" not in os.environ:
        return _start_ranks(argv, args.nproc_per_node)
    return _on_rank(args)


def _plot(folder: Path) -> int:
    try:
        from triton_dist.bench.plot import draw
        print("\n".join(str(path) for path in draw(folder)))
    except ModuleNotFoundError as error:
        print(f"triton-dist bench plot: needs {error.name}: pip install 'triton_dist[bench]'", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"triton-dist bench plot: {error}", file=sys.stderr)
        return 1
    return 0


def _start_ranks(argv: list, ranks: int | None) -> int:
    """Replaces this process by torchrun with this command on every rank."""
    from triton_dist.cli import launch
    options = {} if ranks is None else {"nproc_per_node": str(ranks)}
    command = launch.Command(Path("triton_dist.bench"), argv, options, torchrun=["-m"])
    try:
        torchrun, environment = launch.plan(command, dict(os.environ))
    except launch.UsageError as error:
        print(f"triton-dist bench: {error}", file=sys.stderr)
        return 2
    sys.stdout.flush()
    os.execve(torchrun[0], torchrun, environment)


def _on_rank(args: argparse.Namespace) -> int:
    import triton_dist
    from triton_dist.bench import results, table
    from triton_dist.bench.run import run
    from triton_dist.runtime.groups import resolve

    triton_dist.initialize_distributed()
    group = resolve()
    try:
        status, rows, host = run(args, group)
    except ValueError as error:
        status, rows, host = 2, [], {}
        if group.rank == 0:
            print(f"triton-dist bench: {error}", file=sys.stderr)
    if group.rank == 0 and rows:
        print(table.text(rows), flush=True)
        if args.out is not None:
            folder = args.out / f"{date.today().isoformat()}-{host['kind']}"
            print(f"written: {results.save(folder, args.command, rows, host)}", flush=True)
    group.barrier()
    triton_dist.finalize_distributed()
    return status


def _names(known: tuple):
    def split(text: str) -> tuple:
        names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        wrong = [name for name in names if name not in known]
        if wrong or not names:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, found {text!r}")
        return tuple(name for name in names if name != "none")
    return split


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return int(text)

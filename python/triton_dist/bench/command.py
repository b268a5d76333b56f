# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist bench`: times an op beside its baselines, on every GPU or on emulated ranks.

    triton-dist bench ag_gemm                                 # starts a rank on every GPU, or emulated ranks
    bash launch.sh --nproc_per_node 2 benchmarks/bench.py gemm_rs --shapes 8B 70B@2048 8192,8192,29568 --out results
    triton-dist bench ag_gemm --late 1:2                      # rank 1 is late by 2 ms before each call: what does it cost?
    triton-dist bench dispatch                                # what does an eager call cost the host?
    triton-dist bench all_reduce --sizes 1K:128M --graph      # collectives, by size instead of shape
    triton-dist bench gemm_ar --graph                         # the models' down projections for 1 to 2048 rows
    triton-dist bench all_reduce --graph --peer-path peers.py # and other projects' all-reduces, which this file calls
    triton-dist bench my_module:my_op --shapes 512,1024,1     # an op of another package or a file here
    triton-dist bench all_reduce_rmsnorm --graph              # what follows a linear in a decoder, alone and in a chain
    triton-dist bench all_reduce_rmsnorm --graph --quant fp8_tensor,fp8_row,fp8_1x128     # and with fp8 outputs beside it
    triton-dist bench model --arch llama3-8b --phase decode --graph       # layers of a decoder, beside what else there is
"""
import argparse
import inspect
import os
import sys
from datetime import date
from pathlib import Path
from typing import Any, Callable

from triton_dist.bench import dispatch_rows
from triton_dist.bench.collective import norm_words, outside, sizes
from triton_dist.bench.model import words as model
from triton_dist.bench.any_op import loaded
from triton_dist.bench.shapes import OPS, parse
from triton_dist.cli.status import check_folder
from triton_dist.ops import OPS as REGISTRY
from triton_dist.runtime.environment import SHARED, share_gpus, wait_timeout

DTYPES = ("bfloat16", "float16", "float32")
_LATEST = 1000                              # milliseconds: later than this, and waits would be taken for hangs


def parser(asked: str = "") -> argparse.ArgumentParser:
    """The command line of `bench`. asked: the command, maybe MODULE:NAME. Raises ValueError where that is no op."""
    top = argparse.ArgumentParser(prog="triton-dist bench", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command")
    for op in OPS:
        sub = commands.add_parser(op, help=f"time {op} beside its baselines")
        _shapes(sub)
        _common(sub, ("auto", *REGISTRY[op].methods), ("auto", "ws", "portable"), ("torch", "none"),
                "torch (its fused symmetric-memory op) or none")
        who = sub.add_mutually_exclusive_group()
        who.add_argument("--late", type=_late, metavar="RANK:MS", help="time also with this rank late before each call")
        who.add_argument("--jitter", type=_milliseconds, metavar="MS",
                         help="time also with every rank late by a random time up to MS before each call")
        sub.add_argument("--late-on", choices=("host", "device"), help="where it is late (default: host)")
    for op in sizes.COMMANDS:
        sub = commands.add_parser(op, help=f"time {op} beside NCCL and torch's symmetric-memory ops")
        sub.add_argument("--sizes", nargs="+", default=[], metavar="BYTES|A:B",
                         help="of the larger of input and output: 64K, or 1K:128M, which doubles (default: 1K:128M)")
        _graph(sub)
        peers = sizes.PEERS if op == "all_reduce" else sizes.PEERS[:1]
        _common(sub, sizes.METHODS, ("auto",), (*peers, "none"), f"of {', '.join(peers)}, or none")
        if op in outside.COMMANDS:
            _outside(sub)
    sub = commands.add_parser("gemm_ar", help="time gemm_ar beside a matmul with NCCL or torch's symmetric-memory ops")
    _shapes(sub)
    _graph(sub)
    _common(sub, ("auto", *REGISTRY["gemm_ar"].methods), ("auto", "unfused"), (*sizes.PEERS, "none"),
            f"all-reduce behind a matmul: of {', '.join(sizes.PEERS)}, or none")
    _outside(sub)
    sub = commands.add_parser(norm_words.COMMAND, help="time all_reduce_rmsnorm beside an all-reduce, then torch's sum and norm")
    sub.add_argument("--shapes", nargs="+", default=[], metavar="M,N[,K]",
                     help="rows alone, or after a product that sums over K on each rank: a decoder's chain")
    sub.add_argument("--quant", type=_names(norm_words.QUANTS), default=(), metavar="A,B",
                     help=f"time all_reduce_rmsnorm_quant in the same rounds: of {', '.join(norm_words.QUANTS)}")
    _graph(sub)
    _common(sub, norm_words.METHODS, ("auto", "unfused"), (*norm_words.PEERS, "none"),
            f"all-reduce before torch's sum and norm: of {', '.join(norm_words.PEERS)}, or none")
    _outside(sub)
    sub = commands.add_parser(model.COMMAND, help="time layers of a decoder, by our ops and by other libraries")
    sub.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    model.options(sub)
    _graph(sub)
    _repeats(sub)
    _where(sub)
    others = {name: op for name, op in REGISTRY.items() if name not in commands.choices and name not in sizes.COMMANDS.values()}
    for name, op in {**others, **({asked: loaded(asked)} if ":" in asked else {})}.items():
        sub = commands.add_parser(name, help=f"time the methods of {op.name}")
        sub.add_argument("--shapes", nargs="+", default=[], metavar="M,N,K", help="global sizes, or tiny")
        _graph(sub)
        methods = ("auto", *(op.methods if "method" in inspect.signature(op.function).parameters else ()))
        _common(sub, methods, methods, ("none",), "none are known")
        sub.set_defaults(any_op=op)
    calls = commands.add_parser(dispatch_rows.COMMAND, help="host time of eager calls, beside a bare launch of the same kernel")
    calls.add_argument("--calls", nargs="+", default=[], choices=dispatch_rows.CALLS, metavar="OP",
                       help=f"of {', '.join(dispatch_rows.CALLS)} (default: all)")
    calls.add_argument("--rounds", type=positive, help="interleaved rounds (default: 60; emulated fewer)")
    _where(calls)
    return top


def _shapes(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--shapes", nargs="+", default=[], metavar="NAME|M,N,K",
                     help="8B, 70B, GPT3, 405B (M = 8192), 8B@2048 and so on, global sizes, or a set: default, "
                          "large, medium, small, serving, tiny")


def _graph(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--graph", action="store_true", help="time calls in a CUDA graph, which leaves the host out")


def _outside(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--peer-path", type=Path, metavar="FILE",
                     help="a Python file whose PEERS are timed too (triton_dist.bench.collective.outside says what it has)")


def _common(sub: argparse.ArgumentParser, methods: tuple, default: tuple, peers: tuple, about_peers: str) -> None:
    """The options that every op has."""
    sub.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    sub.add_argument("--methods", type=_names(methods), default=default, metavar="A,B",
                     help=f"of {', '.join(methods)}; figures speak of the first (default: {','.join(default)})")
    sub.add_argument("--peers", type=_names(peers), default=peers[:-1], metavar="A,B", help=about_peers)
    _repeats(sub)
    _where(sub)


def _repeats(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--rounds", type=positive, help="interleaved rounds (default: 9; emulated fewer)")
    sub.add_argument("--iters", type=positive, help="calls in a batch (default: what suits the size; emulated fewer)")


def _where(sub: argparse.ArgumentParser) -> None:
    """On how many ranks, and where to."""
    sub.add_argument("--nproc_per_node", "--nproc-per-node", type=positive, metavar="N", help="ranks to start")
    sub.add_argument("--out", type=Path, metavar="DIR", help="write DIR/<date>-<host>/<command>.json and host.json")


def main(argv: list) -> int:
    """Runs the command; the exit status is 1 where a result was wrong or a shape gave no figure."""
    try:
        args = parser(argv[0] if argv else "").parse_args(argv)
    except ValueError as error:
        parser().error(str(error))
    if args.command is None:
        measuring = ", ".join([*OPS, *sizes.BESIDE_PEERS, model.COMMAND, dispatch_rows.COMMAND, "or another op"])
        parser().error(f"a command is required: {measuring}")
    if args.command in OPS and args.late_on is not None and args.late is None and args.jitter is None:
        parser().error("--late-on: needs --late or --jitter, which say who is late")
    try:
        if args.command in sizes.COMMANDS:
            sizes.parse(args.sizes, emulated=True)
        elif args.command == norm_words.COMMAND:
            norm_words.parse(args.shapes, emulated=True)
        elif args.command not in (dispatch_rows.COMMAND, model.COMMAND):
            parse(args.shapes, args.command, world=1, emulated=True)
        if args.out is not None:
            check_folder(args.out)
    except ValueError as error:                         # said once, before ranks start
        parser().error(str(error))
    if share_gpus():
        parser().error(SHARED)
    if "RANK" not in os.environ:
        if wait_timeout():
            print("triton-dist bench: TRITON_DIST_WAIT_TIMEOUT is set: kernels with bounded waits are measured", file=sys.stderr)
        return _start_ranks(argv, args.nproc_per_node)
    return _on_rank(lambda group: _bench(args, group))


def _start_ranks(argv: list, ranks: int | None) -> int:
    from triton_dist.cli import launch
    return launch.start_tool("bench", argv, ranks)


def _on_rank(work: Callable[[Any], int]) -> int:
    """Joins the world, does the work of a rank, leaves."""
    import triton_dist
    from triton_dist.runtime.groups import resolve

    triton_dist.initialize_distributed()
    group = resolve()
    status = work(group)
    group.barrier()
    triton_dist.finalize_distributed()
    return status


def _bench(args: argparse.Namespace, group: Any) -> int:
    from triton_dist.bench import results
    (work, shown), written = _tools(args.command), []

    def keep(row: dict, host: dict) -> None:
        """Writes a row as soon as it is there, so that a run which is cut off loses none."""
        if group.rank == 0 and args.out is not None:
            folder = args.out / f"{date.today().isoformat()}-{host['kind']}"
            written[:] = [results.save(folder, args.command, [row], host)]
    try:
        status, rows = work(args, group, keep)
    except ValueError as error:
        status, rows = 2, []
        if group.rank == 0:
            print(f"triton-dist bench: {error}", file=sys.stderr)
    if group.rank == 0 and rows:
        print("\n".join([shown(rows), *(f"written: {path}" for path in written)]), flush=True)
    return status


def _tools(name: str) -> tuple[Callable, Callable]:
    """(what a rank runs, what shows its rows) for a command that measures."""
    if name == dispatch_rows.COMMAND:
        from triton_dist.bench import dispatch
        return dispatch.run, dispatch_rows.text
    if name == model.COMMAND:
        from triton_dist.bench.model import command, rows as model_rows
        return command.run, model_rows.text
    from triton_dist.bench.run import run
    if name in OPS:
        from triton_dist.bench import table
        return run, table.text
    from triton_dist.bench.collective import rows
    return run, rows.text


def _names(known: tuple):
    def split(text: str) -> tuple:
        names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        wrong = [name for name in names if name not in known]
        if wrong or not names:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, found {text!r}")
        return tuple(name for name in names if name != "none")
    return split


def _late(text: str) -> tuple[int, float]:
    rank, colon, ms = text.partition(":")
    if not colon or not rank.isdecimal():
        raise argparse.ArgumentTypeError(f"expected RANK:MS such as 1:2.5, found {text!r}")
    return int(rank), _milliseconds(ms)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= _LATEST:
        raise argparse.ArgumentTypeError(f"expected milliseconds, above 0 and at most {_LATEST}, found {text!r}")
    return value


def positive(text: str) -> int:
    """A whole number of at least 1 from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return int(text)

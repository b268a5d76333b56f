# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist tune`: times the ways to run an op at given shapes, and writes a table.

    triton-dist tune ag_gemm gemm_rs --shapes large medium --out tuned.json      # starts a rank on every GPU
    bash launch.sh --nproc_per_node 2 python/triton_dist/tune/__main__.py gemm_rs --shapes 8B@2048 8192,8192,29568

Every shape is measured, whatever is known of it; the user's own cache gets the figures too. Entries of other shapes, devices
and world sizes that FILE has already stay in it.
"""
import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, Callable

from triton_dist.bench.command import DTYPES, positive
from triton_dist.bench.any_op import arguments, loaded
from triton_dist.bench.shapes import Shape, parse
from triton_dist.cli.status import check_file
from triton_dist.ops import OPS, Op
from triton_dist.ops.tuning.table import read
from triton_dist.runtime.environment import SHARED, share_gpus
from triton_dist.runtime.errors import InvalidArgument


def parser() -> argparse.ArgumentParser:
    """The command line of `tune`."""
    top = argparse.ArgumentParser(prog="triton-dist tune", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("ops", nargs="+", type=_op, metavar="OP",
                     help=f"{' or '.join(_timed())}, or MODULE:NAME of an op of another package")
    top.add_argument("--shapes", nargs="+", default=[], metavar="NAME|M,N,K", help="as for triton-dist bench")
    top.add_argument("--dtype", nargs="+", choices=DTYPES, default=["bfloat16"])
    top.add_argument("--seconds", type=positive, default=10**9, metavar="S",
                     help="start on no further shape once so many have passed (default: no limit)")
    top.add_argument("--nproc_per_node", "--nproc-per-node", type=positive, metavar="N", help="ranks to start")
    top.add_argument("--out", type=Path, metavar="FILE", help="table to write to (default: the user's own cache alone)")
    return top


def main(argv: list) -> int:
    """Runs the command; the exit status is 1 where a shape could not be measured or time ran out, 2 for a usage error."""
    args = parser().parse_args(argv)
    try:
        for op in args.ops:
            parse(args.shapes, op.name, world=1, emulated=True)
    except ValueError as error:                         # said once, before ranks start
        parser().error(str(error))
    if args.out is not None:
        try:
            check_file(args.out)
            read(args.out)
        except InvalidArgument as error:
            parser().error(str(error))
        except (ValueError, OSError) as error:
            parser().error(f"{error}; name another file with --out")
    if share_gpus():
        parser().error(SHARED)
    if "RANK" not in os.environ:
        from triton_dist.cli import launch
        return launch.start_tool("tune", argv, args.nproc_per_node)
    os.environ["TRITON_DIST_AUTOTUNE"] = "force"
    os.environ.setdefault("TRITON_PRINT_AUTOTUNING", "1")
    return _on_rank(args)


def _on_rank(args: argparse.Namespace) -> int:
    import triton_dist
    from triton_dist.ops.calls.record import record_of
    from triton_dist.ops.tuning import table, tables
    from triton_dist.runtime.groups import resolve
    from triton_dist.runtime.streams import device

    triton_dist.initialize_distributed()
    group, start = resolve(), time.perf_counter()
    say: Callable = print if group.rank == 0 else (lambda *words, **options: None)
    try:
        jobs = [(op, dtype, shape) for dtype in args.dtype for op in args.ops
                for shape in parse(args.shapes, op.name, group.size, device().type != "cuda")]
    except ValueError as error:
        say(f"triton-dist tune: {error}", file=sys.stderr)
        jobs, status = [], 2
    else:
        status = 0
    for number, (op, dtype, shape) in enumerate(jobs):
        if group.broadcast_object(time.perf_counter() - start > args.seconds):
            say(f"triton-dist tune: {len(jobs) - number} of {len(jobs)} shapes are left after {args.seconds} s",
                file=sys.stderr)
            status = 1
            break
        _call(op, dtype, shape, group)
    known = [tables.of(op, record_of(op, group, op.members(group))) for op in dict.fromkeys(args.ops)]
    found = [every.entries[shape] for every in known for shape in sorted(every.fresh, key=str)]
    status = status or int(any(not entry.ms for entry in found))
    if group.rank == 0 and args.out is not None and found:
        table.add(args.out, found)
        print(f"written: {len(found)} shapes to {args.out}", flush=True)
    group.barrier()
    triton_dist.finalize_distributed()
    return status


def _call(op: Op, dtype: str, shape: Shape, group: Any) -> None:
    """One call of the op at a shape on random inputs, which tunes it."""
    import torch

    place = {} if op.local else {"group": group}
    op.function(**arguments(op, shape, getattr(torch, dtype), group), **place)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()                        # the next shape's buffers have other sizes


def _timed() -> list[str]:
    return [name for name, op in OPS.items() if op.timed]


def _op(word: str) -> Op:
    """The op of the command line's word. Raises ArgumentTypeError for one whose ways are not timed."""
    try:
        found = loaded(word) if ":" in word else OPS.get(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found is None or not found.timed:
        raise argparse.ArgumentTypeError(f"expected {', '.join(_timed())}, or MODULE:NAME of an op whose ways are timed, found "
                                         f"{word!r}")
    return found

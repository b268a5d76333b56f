# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist trace`: records one call on every GPU of this machine, or on emulated ranks where there is none."""
import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Sequence

from triton_dist.cli.status import check_file, status_of
from triton_dist.ops.ep_dispatch.op import LAYOUTS
from triton_dist.runtime.backend import detect
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.trace.calls import TRACED, Call
from triton_dist.trace.files import files

_SIZES = {"emulator": (512, 512, 512), "": (8192, 8192, 8192)}       # M, N, K where none is given


def main(words: Sequence[str]) -> int:
    """Entry point: 0, 1 where the call fails, 2 for words that make no sense."""
    args = _parser().parse_args(words)
    return status_of("trace", lambda: _traced(args))


def _traced(args: argparse.Namespace) -> int:
    options = {name: value for name, value in (("method", args.method), ("comm_sms", args.comm_sms), ("layout", args.layout))
               if value is not None}
    if args.what not in TRACED:
        if ":" not in args.what:
            raise InvalidArgument(f"expected one of {', '.join(TRACED)}, or path.py:function, found {args.what!r}")
        if options or args.shape:
            raise InvalidArgument(f"--{next(iter(options), 'shape')} is of an op; {args.what} is called without arguments")
    if args.shape and min(args.shape) < 1:
        raise InvalidArgument(f"--shape: expected sizes of at least 1, found {' '.join(map(str, args.shape))}")
    emulated = detect() == "emulator"
    m, n, k = args.shape or _SIZES["emulator" if emulated else ""]
    call = Call(args.what, m, n, k, options)
    out = args.out or f"trace_{Path(args.what).stem if args.what not in TRACED else args.what}"
    for path in files(out):
        check_file(path)
    return _emulated(call, args.nproc_per_node, args.seed, out) if emulated else _on_gpus(call, args.nproc_per_node, out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="triton-dist trace", description="Records what the programs of all ranks do in one call, and writes a file for "
        "ui.perfetto.dev and a picture. Where there is no GPU, ranks are emulated, and time is counted in turns of the emulator.")
    parser.add_argument("what", metavar="OP", help=f"one of {', '.join(TRACED)}, or path.py:function that each rank calls")
    parser.add_argument("--nproc_per_node", "--nproc-per-node", type=int, default=2, help="ranks (default %(default)s)")
    parser.add_argument("--shape", type=int, nargs=3, metavar=("M", "N", "K"), help="global sizes")
    parser.add_argument("--method", help="way of the op, such as portable or ws")
    parser.add_argument("--comm_sms", "--comm-sms", type=int, help="of ag_gemm: SMs that push, in place of the copy engine")
    parser.add_argument("--layout", choices=LAYOUTS, help="of ep_dispatch and ep_combine: where the rows lie")
    parser.add_argument("--seed", type=int, default=0, help="of the emulator's order (default %(default)s)")
    parser.add_argument("--out", help="path of the files, to which .json.gz and .svg are added (default trace_OP)")
    return parser


def _emulated(call: Call, ranks: int, seed: int, out: str) -> int:
    from triton_dist.backends.emulator import run_ranks
    from triton_dist.backends.emulator.engine.tracer import Tracer
    from triton_dist.runtime.groups import resolve
    from triton_dist.runtime.streams import synchronize
    from triton_dist.trace.files import finish
    from triton_dist.trace.merged import merged

    tracer = Tracer()

    def rank() -> None:
        function, group = call.made(), resolve(None)
        function()                      # the first call compiles, and meets for its workspace
        synchronize()
        group.barrier()
        if group.rank == 0:
            tracer.clear()
        group.barrier()
        function()
        synchronize()
    run_ranks(rank, ranks, mode="round-robin", seed=seed, observer=tracer)
    finish(merged(call.words, "turns", [tracer.spans], local=call.local), out)
    return 0


def _on_gpus(call: Call, ranks: int, out: str) -> int:
    from triton_dist.cli.launch import main as launch
    from triton_dist.trace import rank
    os.environ["TRITON_DIST_TRACE"] = "1"
    return launch(["--nproc_per_node", str(ranks), rank.__file__, json.dumps({"call": asdict(call), "out": out})],
                  "triton-dist trace")

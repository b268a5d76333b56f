# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""One run of a collective's benchmark on one rank: size after size, a row each."""
import argparse
import sys
import time
from typing import Any

import torch

from triton_dist.bench import host
from triton_dist.bench.collective import rows, sizes
from triton_dist.bench.collective.measure import Settings, measure
from triton_dist.bench.collective.problem import Problem
from triton_dist.bench.rows import NoResult
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device


def run(args: argparse.Namespace, group: Group) -> tuple[int, list, dict]:
    """(exit status, rows, host.json) for a parsed command line. Collective; the same on all ranks.

    Raises ValueError for sizes or options that do not suit the machine.
    """
    emulated = device().type != "cuda"
    if args.graph and emulated:
        raise ValueError("--graph: the emulator has no graph capture")
    wanted = sizes.parse(args.sizes, emulated)
    settings = Settings(rounds=args.rounds or (3 if emulated else 9), iterations=args.iters or (2 if emulated else None),
                        methods=args.methods, peers=args.peers, graph=args.graph)
    facts = group.broadcast_object(host.describe(group.size) if group.rank == 0 else {})
    status, found = 0, []
    for nbytes in wanted:
        start = time.perf_counter()
        row, complaint = _row(args, nbytes, settings, facts, group)
        found += [row] if row else []
        status = 1 if complaint else status
        if group.rank == 0:
            figure = "no figure" if row is None else f"{row['us']:.2f} us by {row['method']}"
            print(f"{sizes.text(nbytes)}: {figure}, {time.perf_counter() - start:.1f} s"
                  f"{'; WRONG: ' + complaint if complaint else ''}", file=sys.stderr, flush=True)
    return status, found, facts


def _row(args: argparse.Namespace, nbytes: int, settings: Settings, facts: dict, group: Group) -> tuple[Any, str]:
    """(the row of a size or None, what went wrong or "")."""
    problem = Problem(args.command, nbytes, getattr(torch, args.dtype), group)
    measured = measure(problem, settings)
    about = {"op": args.command, "dtype": args.dtype, "world": group.size, "device": host.device_name(),
             "commit": facts["commit"], "date": facts["date"]}
    try:
        row = rows.build(about, problem, measured, settings)
    except NoResult as error:
        return None, str(error)
    return row, "; ".join(f"{name}: {measured.skipped[name]}" for name in measured.failed)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""One run of the benchmark on one rank: shape after shape, a row each."""
import argparse
import sys
import time
from typing import Any

import torch

from triton_dist.bench import host, rows
from triton_dist.bench.late import Lateness
from triton_dist.bench.measure import Settings, measure
from triton_dist.bench.problems import PROBLEMS
from triton_dist.bench.shapes import Shape, parse
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device


def run(args: argparse.Namespace, group: Group) -> tuple[int, list, dict]:
    """(exit status, rows, host.json) for a parsed command line. Collective; the same on all ranks.

    Raises ValueError where a shape or the late rank does not fit the world.
    """
    emulated = device().type != "cuda"
    shapes = parse(args.shapes, args.command, group.size, emulated)
    settings = Settings(methods=args.methods, peers=args.peers, rounds=args.rounds or (3 if emulated else 9),
                        iterations=args.iters or (2 if emulated else None), lateness=_lateness(args, group))
    facts = host.describe(group.size) if group.rank == 0 else {}
    facts = group.broadcast_object(facts)
    status, found = 0, []
    for shape in shapes:
        start = time.perf_counter()
        row, complaint = _row(args, shape, settings, facts, group)
        found += [row] if row else []
        status = 1 if complaint else status
        if group.rank == 0:
            _progress(shape, row, complaint, time.perf_counter() - start)
    return status, found, facts


def _lateness(args: argparse.Namespace, group: Group) -> Lateness | None:
    where = args.late_on or "host"
    if args.jitter is not None:
        return Lateness(None, args.jitter, where)
    if args.late is None:
        return None
    rank, ms = args.late
    if rank >= group.size:
        raise ValueError(f"--late {rank}:{ms:g}: expected a rank below {group.size}")
    return Lateness(rank, ms, where)


def _row(args: argparse.Namespace, shape: Shape, settings: Settings, facts: dict, group: Group) -> tuple[Any, str]:
    """(the row of a shape or None, what went wrong or "")."""
    problem = PROBLEMS[args.command](shape, getattr(torch, args.dtype), group)
    measured = measure(problem, settings)
    del problem
    if device().type == "cuda":
        torch.cuda.empty_cache()                        # the next shape's buffers have other sizes
    wrong = "; ".join(f"{name}: {measured.skipped[name]}" for name in measured.failed)
    about = {"op": args.command, "shape": shape.name, "dtype": args.dtype, "world": group.size,
             "device": host.device_name(), "m": shape.m, "n": shape.n, "k": shape.k, "commit": facts["commit"],
             "date": facts["date"]}
    try:
        return rows.build(about, measured, settings), wrong
    except rows.NoResult as error:
        return None, str(error)


def _progress(shape: Shape, row: Any, complaint: str, seconds: float) -> None:
    figure = "no figure" if row is None else f"T*/T {row['efficiency']:.3f} by {row['method']}"
    skipped = "" if row is None else "".join(f"; no {name}: {why}" for name, why in row["skipped"].items())
    print(f"{shape.name}: {figure}, {seconds:.1f} s{skipped}{'; WRONG: ' + complaint if complaint else ''}",
          file=sys.stderr, flush=True)

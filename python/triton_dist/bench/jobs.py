# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a run measures for an op with a limit T*: shapes."""
import argparse
from functools import partial

import torch

from triton_dist.bench import rows
from triton_dist.bench.late import Lateness
from triton_dist.bench.measure import Measurement, Settings, measure
from triton_dist.bench.problems import PROBLEMS
from triton_dist.bench.shapes import Shape, parse
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device


def jobs(args: argparse.Namespace, group: Group) -> list:
    """[(name of a shape, call that measures it)]. Raises ValueError where a shape or the late rank does not fit the world."""
    emulated = device().type != "cuda"
    settings = Settings(**asked(args, emulated), lateness=_lateness(args, group))
    return [(shape.name, partial(_row, args, shape, settings, group))
            for shape in parse(args.shapes, args.command, group.size, emulated)]


def figure(row: dict) -> str:
    """A row in a few words."""
    skipped = "".join(f"; no {name}: {why}" for name, why in row["skipped"].items())
    return f"T*/T {row['efficiency']:.3f} by {row['method']}{skipped}"


def asked(args: argparse.Namespace, emulated: bool) -> dict:
    """What the options of every op say of how to measure."""
    return dict(methods=args.methods, peers=args.peers, rounds=args.rounds or (3 if emulated else 9),
                iterations=args.iters or (2 if emulated else None))


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


def _row(args: argparse.Namespace, shape: Shape, settings: Settings, group: Group, about: dict) -> tuple[dict, Measurement]:
    measured = measure(PROBLEMS[args.command](shape, getattr(torch, args.dtype), group), settings)
    facts = {"op": args.command, "shape": shape.name, **about, "m": shape.m, "n": shape.n, "k": shape.k}
    return rows.build(facts, measured, settings), measured

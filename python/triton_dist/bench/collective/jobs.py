# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a run measures for an op beside its peers: sizes of a collective, shapes of gemm_ar."""
import argparse
from functools import partial
from typing import Callable

import torch

from triton_dist.bench import shapes
from triton_dist.bench.any_op import AnyOp
from triton_dist.bench.collective import norm_words, outside, rows, sizes
from triton_dist.bench.collective.norm import Norm
from triton_dist.bench.collective.gemm_ar import GemmAr
from triton_dist.bench.collective.measure import Measurement, Settings, measure
from triton_dist.bench.collective.problem import Problem
from triton_dist.bench.jobs import asked
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device


def jobs(args: argparse.Namespace, group: Group) -> list:
    """[(name of a problem, call that measures it)]. Raises ValueError for options that do not suit the machine."""
    emulated, dtype = device().type != "cuda", getattr(torch, args.dtype)
    if args.graph and emulated:
        raise ValueError("--graph: the emulator has no graph capture")
    theirs = outside.loaded(getattr(args, "peer_path", None))
    settings = Settings(**asked(args, emulated) | {"peers": (*args.peers, *theirs)}, graph=args.graph, outside=theirs)
    if args.command == GemmAr.op:
        made = [(shape.name, partial(GemmAr, shape, dtype, group))
                for shape in shapes.parse(args.shapes, args.command, group.size, emulated)]
    elif args.command == norm_words.COMMAND:
        made = [(shape.name, partial(Norm, shape, dtype, group, quants=args.quant))
                for shape in norm_words.parse(args.shapes, emulated)]
    elif getattr(args, "any_op", None) is not None:
        made = [(shape.name, partial(AnyOp, args.any_op, shape, dtype, group))
                for shape in shapes.parse(args.shapes, args.any_op.name, group.size, emulated)]
    else:
        made = [(sizes.text(nbytes), partial(Problem, args.command, nbytes, dtype, group))
                for nbytes in sizes.parse(args.sizes, emulated)]
    return [(name, partial(_row, args.command, make, settings)) for name, make in made]


def figure(row: dict) -> str:
    """A row in a few words."""
    return f"{row['us']:.2f} us by {row['method']}"


def _row(command: str, make: Callable, settings: Settings, about: dict) -> tuple[dict, Measurement]:
    problem = make()
    measured = measure(problem, settings)
    return rows.build({"op": command, **about}, problem, measured, settings), measured

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist bench model`: what every rank does."""
import argparse
import sys
import time
import warnings
from typing import Callable

import torch

from triton_dist.bench import host
from triton_dist.bench.model import rows, variants
from triton_dist.bench.model.measure import Case, measure
from triton_dist.bench.model.words import ARCHS, COMMAND, ROWS
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device


def run(args: argparse.Namespace, group: Group, keep: Callable = lambda row, host: None) -> tuple[int, list]:
    """(exit status, rows) for a parsed command line. Collective. Raises ValueError for what does not fit.

    keep(row, host.json) is called for each row as soon as it is there.
    """
    emulated = device().type != "cuda"
    if args.graph and (emulated or args.phase == "train"):
        raise ValueError("--graph: for prefill and decode on GPUs")
    arch = ARCHS[args.arch or ("tiny" if emulated else "llama3-8b")]
    if arch.kv_heads % group.size:
        raise ValueError(f"{arch.name}: expected ranks that divide its {arch.kv_heads} key heads, found {group.size}")
    chosen = variants.chosen(args.phase, args.ways)
    # torch's own async TP removes nodes of its graphs twice, and says so for each.
    warnings.filterwarnings("ignore", r"erase_node\(.*\) on an already erased node")
    facts = group.broadcast_object(host.describe(group.size) if group.rank == 0 else {})
    found, status = [], 0
    for count in args.rows or ([4 * group.size] if emulated else ROWS[args.phase]):
        if args.phase != "decode" and count % group.size:
            raise ValueError(f"--rows {count}: expected a multiple of the {group.size} ranks")
        cached = args.cached or (8 if emulated else 1024)
        case = Case(arch.name, args.phase, count, cached if args.phase == "decode" else 0,
                    args.layers or (2 if emulated else 4), getattr(torch, args.dtype))
        start, rounds = time.perf_counter(), args.rounds or (2 if emulated else 9)
        measured = measure(case, group, rounds, args.iters or (1 if emulated else None), args.graph, chosen)
        about = {"op": COMMAND, "arch": case.arch, "phase": case.phase, "rows": count, "cached": case.cached,
                 "layers": case.layers, "dtype": args.dtype, "world": group.size, "device": host.device_name(),
                 "commit": facts["commit"], "date": facts["date"]}
        found.append(rows.build(about, measured, rounds, args.graph))
        keep(found[-1], facts)
        status = 1 if measured.failed else status
        if group.rank == 0:
            wrong = "".join(f"; WRONG: {name}: {measured.skipped[name]}" for name in measured.failed)
            print(f"{found[-1]['call']}: {time.perf_counter() - start:.1f} s{wrong}", file=sys.stderr, flush=True)
        if device().type == "cuda":
            torch.cuda.empty_cache()
    return status, found

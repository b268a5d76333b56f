# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""One run of the benchmark on one rank: problem after problem, a row each."""
import argparse
import sys
import time
from typing import Callable

import torch

from triton_dist.bench import host, jobs
from triton_dist.bench.collective import jobs as peer_jobs
from triton_dist.bench.rows import NoResult
from triton_dist.bench.shapes import OPS
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device


def run(args: argparse.Namespace, group: Group, keep: Callable = lambda row, host: None) -> tuple[int, list]:
    """(exit status, rows) for a parsed command line. Collective; the same on all ranks.

    keep(row, host.json) is called for each row as soon as it is there.
    Raises ValueError for problems or options that do not suit the world or the machine.
    """
    kind = jobs if args.command in OPS else peer_jobs
    todo = kind.jobs(args, group)
    facts = group.broadcast_object(host.describe(group.size) if group.rank == 0 else {})
    about = {"dtype": args.dtype, "world": group.size, "device": host.device_name(), "commit": facts["commit"],
             "date": facts["date"]}
    status, found = 0, []
    for name, job in todo:
        start = time.perf_counter()
        try:
            row, measured = job(about)
            figure, wrong = kind.figure(row), [f"{failed}: {measured.skipped[failed]}" for failed in measured.failed]
            found.append(row)
            keep(row, facts)
        except NoResult as error:
            figure, wrong = "no figure", [str(error)]
        if device().type == "cuda":
            torch.cuda.empty_cache()                    # the next problem's buffers have other sizes
        status = 1 if wrong else status
        if group.rank == 0:
            complaint = f"; WRONG: {'; '.join(wrong)}" if wrong else ""
            print(f"{name}: {figure}, {time.perf_counter() - start:.1f} s{complaint}", file=sys.stderr, flush=True)
    return status, found

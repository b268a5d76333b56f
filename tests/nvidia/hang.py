# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A hang on purpose: the last rank never notifies its successor, and all ranks must end with one table that says so.

    bash launch.sh --nproc_per_node 2 tests/nvidia/hang.py [--host | --all-reduce]

TRITON_DIST_WAIT_TIMEOUT is 3 unless it is set. The launch ends with an error, within the time-out plus 10 seconds. With
--host the last rank does not launch at all, but waits for its peers in a barrier. With --all-reduce it does not take part in an
all_reduce, whose data is its own flag.
"""
import argparse
import os
import sys
import time

import torch

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.groups import resolve

os.environ.setdefault("TRITON_DIST_WAIT_TIMEOUT", "3")       # before the first use of a backend, which reads it


@triton_dist.jit
def forgetful_ring(flag, silent):
    """Every rank but `silent` notifies the next one; every rank waits."""
    if dl.rank() != silent:
        dl.notify(flag, (dl.rank() + 1) % dl.num_ranks(), 1)
    dl.wait(flag, 1, "sys", "acquire", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--host", action="store_true", help="the last rank waits on the host")
    kind.add_argument("--all-reduce", action="store_true", help="the last rank leaves out an all_reduce")
    args = parser.parse_args()
    triton_dist.initialize_distributed()
    group = resolve()
    flag = triton_dist.create_symm_tensor((1,), torch.int32, name="ready")
    x = torch.ones(4096, dtype=torch.bfloat16, device=triton_dist.device())
    forgetful_ring.warmup(flag, group.size - 1, grid=(1,))
    triton_dist.ops.all_reduce(x)
    triton_dist.synchronize()
    group.barrier()
    print(f"rank {group.rank} of {group.size} starts at {time.time():.1f}", flush=True)
    if not ((args.host or args.all_reduce) and group.rank == group.size - 1):
        if args.all_reduce:
            triton_dist.ops.all_reduce(x)
        else:
            forgetful_ring[(1,)](flag, group.size - 1)
        triton_dist.synchronize()
    group.barrier()
    sys.exit("this line must not be reached")


if __name__ == "__main__":
    main()

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Random ops in random states of torch, then plainly: no wrong result, and no call after another's refusal that fails.

    bash launch.sh --nproc_per_node 2 tests/emulator/fuzz_ambient.py --rounds 500 --seed 1

Each round takes an op, a shape and a state, the same on all ranks; the call is wrapped in the state, and then made again
without. A round that goes wrong ends the run with its seed.
"""
import argparse
import random
import sys
import time
import traceback
import warnings

import triton_dist
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.state import state

from ambient_states import CASES, OF_PROCESSES, REFUSED, SERVED

RECORDING = ("make_fx",)                       # ops are recorded as operators; symmetric tensors cannot be
STATES = {**SERVED, **REFUSED, **OF_PROCESSES}


def a_round(seed: int, rank: int, world: int) -> str:
    """One round; what it did."""
    draw = random.Random(seed)
    op, name, extra = draw.choice(sorted(CASES)), draw.choice(sorted(STATES)), draw.randrange(4)
    if draw.random() < 0.3:                     # a state within another one
        outer = draw.choice(sorted(SERVED))
        if outer == "compile" or "dual" in outer and ("jvp" in name or "forward" in name or "dual" in name):
            outer = "no_grad"                   # torch has no such nesting
        if name in ("compile", "other thread") and outer == "side stream":
            outer = "no_grad"                   # what follows the op, or the other thread, would have to wait for the stream
    else:
        outer = ""
    case = CASES[op](seed, rank, world, extra)
    what = f"{op}, {extra} rows more, in {name}" + (f" in {outer}" if outer else "")
    refused = name in REFUSED and op != "create_symm_tensor" or name in RECORDING and op == "create_symm_tensor"
    if name == "forward-mode AD" and "inference_mode" in outer:         # torch makes no tangents there
        refused = False
    try:
        got = STATES[name](case.run, case.x) if not outer else SERVED[outer](lambda x: STATES[name](case.run, x), case.x)
    except InvalidArgument:
        if name not in {*REFUSED, *RECORDING} or name in RECORDING and not refused:
            raise
    else:
        case.check(got)
        if refused:
            raise AssertionError("the call should have been refused")
    case.check(case.run(case.x))
    return what


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    triton_dist.initialize_distributed()
    world, start = state().world, time.perf_counter()
    done: dict = {}
    for number in range(options.rounds):
        seed = options.seed * 100_000 + number
        try:
            what = a_round(seed, world.rank, world.size)
        except BaseException:
            draw = random.Random(seed)
            print(f"round {number} (seed {seed}) on rank {world.rank}: {draw.choice(sorted(CASES))} in "
                  f"{draw.choice(sorted(STATES))}", file=sys.stderr, flush=True)
            traceback.print_exc()
            raise
        done[what] = done.get(what, 0) + 1
    if world.rank == 0:
        print(f"{options.rounds} rounds of seed {options.seed}, {len(done)} different ones, on {world.size} ranks: all right, "
              f"{time.perf_counter() - start:.0f} s", flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A hang on purpose
=================

.. code-block:: bash

    bash launch.sh 11-hang.py            # ends with a table and an error
    bash launch.sh 11-hang.py --fix      # the same kernel without the mistake

The kernel is the ring of the README, called twice. Its mistake: it notifies with 1 and waits for the number of the call. The
first call ends. The second waits for ever, since the flag still holds 1.
"""
import argparse
import os

import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

os.environ.setdefault("TRITON_DIST_WAIT_TIMEOUT", "5")      # read when the backend is first used

# %%
# The kernel
# ----------
#
# Every rank sends its number and that of the call to the next one. Without `FIX` the signal of the second call is wrong.


@triton_dist.jit(do_not_specialize=["call"])
def ring(inbox, flag, out, call, FIX: tl.constexpr):
    successor = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(inbox, successor), 100 * call + dl.rank())
    dl.notify(flag, successor, call if FIX else 1)
    token = dl.wait(flag, 1, "sys", "acquire", call)
    tl.store(out, tl.load(dl.consume_token(inbox, token)))
    dl.barrier_all()


# %%
# Reading the report
# ------------------
#
# It has a line for each program that waits:
#
# rank, kernel, program, at
#     which program waits, and on which line
# waits for
#     the flag, by the name that `create_symm_tensor` was given, and whose memory it is in
# wanted, seen
#     what the wait was for, and what the flag held at the end
# last writer
#     who wrote it last (emulator), or who should write it, where that is known (GPU)
#
# Begin with the flag: `seen` is 1, `wanted` is 2, and the rank before has written it. So the signal came, with the wrong value.
# If `seen` were 0, "never written", the notify would be missing, or would have gone to another rank.
#
# On a GPU nothing watches a spinning kernel unless `TRITON_DIST_WAIT_TIMEOUT` is set, here to 5 seconds. The emulator also sees
# by itself when no rank can move any more. The page "Troubleshooting" (docs/troubleshooting.md) has the usual causes.


def main() -> None:
    parser = argparse.ArgumentParser(description="a hang on purpose")
    parser.add_argument("--fix", action="store_true", help="without the mistake")
    args = parser.parse_args()
    triton_dist.initialize_distributed()
    rank = torch.distributed.get_rank()
    inbox = triton_dist.create_symm_tensor((1,), torch.int32, name="inbox")
    flag = triton_dist.create_symm_tensor((1,), torch.int32, name="ring flag")
    out = torch.zeros(1, dtype=torch.int32, device=triton_dist.device())
    for call in (1, 2):
        ring[(1,)](inbox, flag, out, call, FIX=args.fix)
        triton_dist.synchronize()
        print(f"rank {rank}, call {call}: got {out.item()}", flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()

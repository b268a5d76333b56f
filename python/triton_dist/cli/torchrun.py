# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""torchrun that ends in one line: a rank that fails has said why, and a traceback of the launcher's own adds nothing.

Run by path with torchrun's arguments, so that it imports torch only.
"""
import logging
import signal
import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun


def verdict(rank: int, exitcode: int) -> tuple[int, str]:
    """(exit status, what to say) for the rank that failed first; a negative exit code is a signal, as subprocess gives it."""
    if exitcode >= 0:
        return max(1, exitcode), f"rank {rank} failed with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    return 128 - exitcode, f"rank {rank} was ended by {name}"


def main() -> int:
    """Runs torchrun on this process's arguments; the exit status is that of the rank that failed first."""
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    try:
        torchrun()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        status, words = verdict(rank, failure.exitcode)
        print(f"launch.sh: {words}", file=sys.stderr, flush=True)
        return status
    return 0


if __name__ == "__main__":
    sys.exit(main())

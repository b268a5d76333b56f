# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""torchrun that ends in one line: a rank that fails has said why, and a traceback of the launcher's own adds nothing.

Run by path with the name of the command that it ends for and torchrun's arguments, so that it imports torch only.
"""
import logging
import os
import signal
import sys


def verdict(rank: int, exitcode: int) -> tuple[int, str]:
    """(exit status, what to say) for the rank that failed first; a negative exit code is a signal, as subprocess gives it."""
    if exitcode >= 0:
        return max(1, exitcode), f"rank {rank} failed with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    return 128 - exitcode, f"rank {rank} was ended by {name}"


def cannot_meet(error: Exception) -> str:
    """What to say where launchers cannot make the store by which ranks find each other, or do not find it."""
    cause = error.__cause__ or error
    first = next(iter(f"{cause}".strip().splitlines()), type(cause).__name__)       # torch raises some without words
    remedy = "name another --master_port" if "EADDRINUSE" in first else "see --master_addr, --master_port and --node_rank"
    return f"ranks cannot meet: {first}; {remedy}"


def run() -> tuple[int, str]:
    """Runs torchrun on this process's arguments: (exit status, what to say; nothing where all went well)."""
    try:
        from torch.distributed import DistError
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import RendezvousError
        from torch.distributed.run import get_args_parser, main as torchrun
    except KeyboardInterrupt:
        return 130, "interrupted"
    interrupted = []

    def end(*_: object) -> None:
        """Ctrl-C ends ranks as a termination does: by SIGINT each of them would print where it was."""
        interrupted.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
    if "--signals-to-handle" in get_args_parser().format_help():
        sys.argv.insert(1, "--signals-to-handle=SIGTERM,SIGHUP,SIGQUIT")
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:           # it is in a background job, and stays so
        signal.signal(signal.SIGINT, end)
    for name in ("multiprocessing.api", "agent.server.api"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    try:
        torchrun()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return verdict(rank, failure.exitcode)
    except (DistError, RendezvousError) as error:
        return 1, cannot_meet(error)
    except KeyboardInterrupt:
        return 130, "interrupted"
    except SignalException as error:                    # torchrun has ended the ranks
        if interrupted or error.sigval == signal.SIGINT:
            return 130, "interrupted"
        return 128 + error.sigval, f"ended by {signal.Signals(error.sigval).name}"
    return 0, ""


def main() -> int:
    """The exit status is that of the rank that failed first, or 130 after Ctrl-C."""
    name = sys.argv.pop(1)
    status, words = run()
    if words:
        print(f"{name}: {words}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())

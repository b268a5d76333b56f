# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`launch.sh --check`: the checker, which Ctrl-C ends in one line, also while it imports torch.

Run by path with the name of the command that it ends for, and the words of `triton-dist check`.
"""
import os
import signal
import sys


def end_on_interrupt(name: str) -> None:
    """Ctrl-C ends the process at once, with a line: the ranks of a check share it, and none of them has anything to save."""
    def end(*_: object) -> None:
        show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""        # a progress bar hides it
        os.write(2, f"{show_cursor}{name}: interrupted\n".encode())
        os._exit(130)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


if __name__ == "__main__":
    end_on_interrupt(sys.argv.pop(1))
    if not sys.flags.safe_path:
        del sys.path[0]                          # this folder, whose modules are no top-level ones
    from triton_dist.checker.command import main
    sys.exit(main(sys.argv[1:]))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`python -m triton_dist.checker`: the same as `triton-dist check`."""
import sys

from triton_dist.checker.command import main
from triton_dist.cli.check import end_on_interrupt

if __name__ == "__main__":
    end_on_interrupt("triton-dist check")
    sys.exit(main(sys.argv[1:]))

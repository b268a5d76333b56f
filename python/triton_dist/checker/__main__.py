# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`python -m triton_dist.checker`: the same as `triton-dist check`."""
import sys

from triton_dist.checker.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

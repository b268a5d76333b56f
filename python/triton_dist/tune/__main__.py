# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`python -m triton_dist.tune`: what the launcher starts on every rank."""
import sys

from triton_dist.tune.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`python -m triton_dist.bench`: what the launcher starts on every rank."""
import sys

from triton_dist.bench.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

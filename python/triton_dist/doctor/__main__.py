# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`python -m triton_dist.doctor [--json]`: the doctor on a machine that lacks even click."""
import sys

from triton_dist.doctor.command import main

if __name__ == "__main__":
    sys.exit(main("--json" in sys.argv[1:]))

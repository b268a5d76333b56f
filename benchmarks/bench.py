# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The benchmark as a script: `bash launch.sh benchmarks/bench.py ag_gemm --out benchmarks/results`."""
import sys

from triton_dist.bench.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

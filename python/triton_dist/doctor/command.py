# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The command line of the doctor."""
import os
import sys

import triton_dist
from triton_dist.doctor.examine import examine
from triton_dist.doctor.trials import attempt
from triton_dist.runtime.console import printable


def main(as_json: bool) -> int:
    """Prints the report; the exit code is 1 when something that the chosen backend needs is missing."""
    print("triton_dist doctor: trying the backend and the symmetric heap, up to a minute", file=sys.stderr, flush=True)
    report = examine(os.environ, attempt)
    print(report.to_json() if as_json else printable(f"triton_dist {triton_dist.__version__}\n\n{report.to_text()}"))
    return report.exit_code

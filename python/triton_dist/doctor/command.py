# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The command line of the doctor."""
import argparse
import os
import sys

import triton_dist
from triton_dist.doctor.examine import examine
from triton_dist.doctor.trials import attempt
from triton_dist.runtime.console import printable


def main(argv: list[str]) -> int:
    """Prints the report; the exit code is 1 when something that the chosen backend needs is missing."""
    parser = argparse.ArgumentParser(prog="triton-dist doctor", description="Says what this machine has, tries what can be "
                                     "tried, and names what is missing and the command that fixes it.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args(argv).json
    print("triton_dist doctor: trying the backend and the symmetric heap, up to a minute", file=sys.stderr, flush=True)
    report = examine(os.environ, attempt)
    print(report.to_json() if as_json else printable(f"triton_dist {triton_dist.__version__}\n\n{report.to_text()}"))
    return report.exit_code

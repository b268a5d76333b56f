# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Runs a script that works under launch.sh as the host script of every virtual rank, once a schedule."""
import contextlib
import io
import sys
import time
import types
from pathlib import Path
from typing import Any, Callable, Iterable, Optional, Sequence

from triton_dist.checker.faults import Faults
from triton_dist.checker.rank_environment import rank_environment
from triton_dist.checker.report import Report
from triton_dist.checker.run import few_collections, run_schedule
from triton_dist.checker.schedules import Schedule


def check_script(path: Path, args: Sequence[str], schedules: Iterable[Schedule], keep_going: bool = False,
                 output: Optional[Any] = None, advance: Callable[[], None] = lambda: None,
                 detector: Optional[Callable] = None) -> Report:
    """Checks a script over `schedules`, up to the first fault unless `keep_going`. Its ranks share one process.

    output: where what the script prints goes; nowhere by default. advance: called after each schedule. detector: makes the
    detector of a schedule. The script's module is executed as __main__ once a rank and schedule; the modules that it imports
    are shared by all.
    """
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)       # bytes: it may say its encoding
    report, start = Report(), time.perf_counter()
    faults = Faults(keep_going, found=report.faults)

    def run() -> None:
        module = types.ModuleType("__main__")
        module.__file__ = str(path)
        sys.modules["__main__"] = module
        try:
            exec(code, module.__dict__)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise

    before = sys.argv, sys.path[:], sys.modules["__main__"]
    sys.argv = [str(path), *args]
    sys.path.insert(0, str(path.parent))
    try:
        with few_collections(), rank_environment(), contextlib.redirect_stdout(output or io.StringIO()):
            for schedule in schedules:
                run_schedule(run, schedule, faults, report, detector=detector, heap=False)
                advance()
                if report.faults and not keep_going:
                    break
        faults.settle()
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = before
    report.seconds = time.perf_counter() - start
    return report

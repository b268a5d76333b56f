# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist check`: the command line of the checker."""
import importlib.util
import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Callable, Iterator

from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.machine import default_sms
from triton_dist.checker.chiplets import ChipletDetector
from triton_dist.checker.faults import Faults
from triton_dist.checker.schedules import EXHAUSTIVE, parse, schedules
from triton_dist.checker.script import check_script
from triton_dist.checker.traced import TracedDetector
from triton_dist.cli.launch import UsageError, astray, find_script
from triton_dist.cli.status import check_file
from triton_dist.runtime.context import MAX_WORLD
from triton_dist.runtime.environment import number
from triton_dist.runtime.errors import InvalidArgument

_RANKS = 4


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="triton-dist check", description="Runs a script that works under launch.sh on emulated ranks, in many orders, and "
        "reports races, deadlocks, wrong scopes and other faults of its kernels. Exit status 1 where there is one.")
    parser.add_argument("--schedules", type=int, default=20, metavar="N", help="runs, each in an order of its own (20)")
    parser.add_argument("-n", "--nproc_per_node", "--nproc-per-node", type=int, metavar="N", help=f"ranks ({_RANKS})")
    parser.add_argument("--num-sms", type=int, metavar="N", help="programs resident at a time on a rank (8)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first schedules (0)")
    parser.add_argument("--mode", action="append", choices=(*MODES, EXHAUSTIVE), dest="modes",
                        help="only these orders; may be repeated. exhaustive: all with few preemptions, for small kernels")
    parser.add_argument("--keep-going", action="store_true", help="list all faults, not only the first")
    parser.add_argument("--replay", metavar="TOKEN", help="one run: the schedule of a report's token")
    parser.add_argument("--chiplets", action="store_true", help="as on GPUs whose barriers leave stores under way (AMD)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a timeline of the last run for Perfetto (JSON)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the last run (PNG, PDF or SVG)")
    parser.add_argument("--output", action="store_true", help="show what the script prints")
    parser.add_argument("script", help="path, or bare name of a file under tests/, tutorials/ or benchmarks/")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="for the script")
    return parser


@contextlib.contextmanager
def _progress(length: int) -> Iterator[Callable[[], None]]:
    """A progress bar where there is a terminal and rich."""
    if importlib.util.find_spec("rich") is None or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress
    with Progress(console=Console(stderr=True), transient=True) as bar:
        schedules = bar.add_task("schedules", total=length)
        yield lambda: bar.advance(schedules)


def _writable(trace: Path | None, plot: Path | None) -> None:
    """Refuses, before anything runs, files that could not be written after it."""
    for option, path in (("--trace", trace), ("--plot", plot)):
        if path is not None:
            check_file(path, option)
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'triton_dist[plot]'")


def _ranks(asked: int | None) -> int:
    """How many ranks to emulate: as asked for, else as the environment says."""
    ranks = int(number("NPROC_PER_NODE", _RANKS, 1, int)) if asked is None else asked
    if ranks > MAX_WORLD:
        raise InvalidArgument(f"--nproc_per_node: expected at most {MAX_WORLD} ranks, found {ranks}")
    return ranks


def main(words: list) -> int:
    """Exit status: 0 clean, 1 with a fault, 2 where the command line makes no sense."""
    parser = _parser()
    options = parser.parse_args(words)
    os.environ["TRITON_DIST_BACKEND"] = "emulator"
    try:
        path = find_script(options.script, "nvidia")
        if path is None:
            raise UsageError(f"no script {options.script!r}")
        chosen = [parse(options.replay)] if options.replay else schedules(
            options.schedules, options.seed, _ranks(options.nproc_per_node),
            default_sms() if options.num_sms is None else options.num_sms, options.modes)
        _writable(options.trace, options.plot)
        if options.chiplets and (options.trace or options.plot):
            raise UsageError("--chiplets draws nothing; leave out --trace and --plot")
    except (UsageError, InvalidArgument) as error:
        parser.error(str(error))
    note = astray(path, options.args, set(vars(options)) | {"mode"}, "the checker")
    if note is not None:
        print(f"triton-dist check: {note}", file=sys.stderr)
    with _progress(1 if options.replay else options.schedules) as advance:
        drawn: list = []

        def traced(faults: Faults) -> TracedDetector:
            drawn[:] = [TracedDetector(faults)]
            return drawn[0]
        report = check_script(path, options.args, chosen, options.keep_going, sys.stdout if options.output else None, advance,
                              traced if options.trace or options.plot else ChipletDetector if options.chiplets else None)
    for path in filter(None, (options.trace, options.plot)):
        path.parent.mkdir(parents=True, exist_ok=True)
    if options.trace:
        drawn[0].timeline.write(options.trace)
    if options.plot:
        drawn[0].timeline.plot(options.plot)
    print(report)
    print(report.traffic())
    return 0 if report.clean else 1

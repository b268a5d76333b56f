# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Checks and measures everything on a host with several GPUs, the most valuable first, as far as the time goes.

    python3 benchmarks/host.py --out results                        # ten minutes, on all GPUs of this machine
    python3 benchmarks/host.py --out results                        # once more: goes on with what is left
    python3 benchmarks/host.py --out results --missing --list       # what benchmarks/results lacks or what is older than its code
    python3 benchmarks/host.py --out results --only all_reduce stress --peer-path peers.py

Each step is a launch of its own with a time limit. OUT/steps.json keeps how it ended, as soon as it has, and OUT/NAME.log what it
printed. A step that has succeeded at this commit, with the same words, is not run again. The exit status is 0 if all that was
planned has succeeded.
"""
import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

from tools.perf.steps import Step, planned, steps, unchanged  # noqa: E402
from triton_dist.bench.host import commit as current_commit  # noqa: E402
from triton_dist.runtime.files import write_shared  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PATIENCE = 45.0                 # seconds a launcher has to end its ranks: it gives them 30 before it kills them


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results, logs and steps.json")
    found.add_argument("--minutes", type=float, default=10.0, help="time for all steps (default: 10)")
    found.add_argument("--gpus", type=int, metavar="N", help="on so many GPUs (default: all)")
    found.add_argument("--missing", action="store_true",
                       help="leave out what benchmarks/results has, unless its code has changed since")
    found.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="steps of these names, with * and ?")
    found.add_argument("--list", action="store_true", help="print what would run, and run nothing")
    found.add_argument("--peer-path", type=Path, metavar="FILE", help="other projects' kernels, as for triton-dist bench")
    return found


def command(step: Step, gpus: int) -> list[str]:
    """The words that start a step on `gpus` GPUs."""
    ranks = ["--nproc_per_node", str(gpus)]
    if step.words[0].endswith(".py"):
        return [sys.executable, str(ROOT / "python/triton_dist/cli/launch.py"), *ranks, *step.words]
    return [sys.executable, "-m", "triton_dist", *step.words, *ranks]


def run(step: Step, gpus: int, log: Path, seconds: float) -> int:
    """The exit status of a step; 124 where it took longer than `seconds`."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")])))
    with log.open("w") as said:
        started = subprocess.Popen(command(step, gpus), cwd=ROOT, env=environment | dict(step.variables), stdout=said,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return started.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            end(started)


def end(process: subprocess.Popen) -> None:
    """Ends what is left of a launch: the launcher ends its ranks when it is told to."""
    for stop in (process.terminate, process.kill):
        if process.poll() is None:
            stop()
            try:
                process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                continue


def leave_by_signals() -> None:
    """Lets SIGTERM and SIGHUP raise SystemExit, so that the step that runs is ended as well."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:          # nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def before(state: Path) -> dict:
    """What steps.json says of earlier runs: {name of a step: how it ended}."""
    try:
        found = json.loads(state.read_text()) if state.exists() else {}
        if all(entry.keys() >= {"status", "commit"} for entry in found.values()):
            return found
    except (ValueError, AttributeError):
        pass
    parser().error(f"{state}: expected what this script writes; delete the file, or name another --out")


def main(argv: list) -> int:
    """Runs the steps that are left."""
    args = parser().parse_args(argv)
    args.out = args.out.resolve()               # steps run in the repository's root
    args.peer_path = args.peer_path and args.peer_path.resolve()
    begun, state = time.monotonic(), args.out / "steps.json"
    if not args.minutes > 0:
        parser().error(f"--minutes: expected a number above 0, found {args.minutes}")
    gpus = args.gpus or torch.cuda.device_count()
    if gpus < 2 and not args.list:
        parser().error(f"expected at least 2 GPUs, found {gpus}; --gpus N --list shows the steps for N")
    names = [step.name for step in steps(max(gpus, 2), args.out)]
    for name in args.only:
        if not fnmatch.filter(names, name):
            parser().error(f"--only {name}: no step has this name; --list shows the names")
    commit, ended = current_commit(), before(state)

    def words(step: Step) -> str:
        return f"{gpus} GPUs: {' '.join(step.words)}".replace(str(args.out), "OUT")

    def has_run(step: Step) -> bool:
        entry = ended.get(step.name, {})
        return entry.get("words") == words(step) and (
            entry["commit"] == commit or args.missing and unchanged(entry["commit"], step.sources))

    all_steps = [step for step in steps(max(gpus, 2), args.out, RESULTS if args.missing else None, args.peer_path,
                                        lambda row, sources: unchanged(row["commit"], sources))
                 if any(fnmatch.fnmatch(step.name, name) for name in args.only)]
    done = {step.name: ended[step.name]["status"] for step in all_steps if has_run(step)}
    plan = planned(all_steps, done, 60 * args.minutes)
    for step in plan:
        print(f"{step.name}, about {step.seconds:.0f} s: {' '.join(step.words)}", flush=True)
    if args.list:
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for step in plan:
        left = 60 * args.minutes - (time.monotonic() - begun)
        if step.seconds > left:                         # those before took longer than planned
            print(f"{step.name}: no time left", flush=True)
            failed = True
            continue
        start = time.monotonic()
        status = run(step, gpus, args.out / f"{step.name.replace(' ', '_')}.log", min(left, 2 * step.seconds + 30))
        seconds = time.monotonic() - start
        ended[step.name] = {"status": status, "commit": commit, "seconds": round(seconds, 1), "words": words(step)}
        write_shared(state, json.dumps(ended, indent=1) + "\n")
        print(f"{step.name}: {'done' if status == 0 else f'exit status {status}'} after {seconds:.0f} s", flush=True)
        failed |= status != 0
    return int(failed)


if __name__ == "__main__":
    leave_by_signals()
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

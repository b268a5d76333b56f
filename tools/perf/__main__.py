# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`python -m tools.perf`, in the root of a checkout: from committed results to verdicts, pages and pictures.

    python -m tools.perf bars                                 # does the newest result of each kind reach its bar?
    python -m tools.perf docs                                 # the pages of performance and their pictures
    python -m tools.perf plot results/2026-01-31-4xH100-80GB  # pictures of one folder of results
"""
import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "python"))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m tools.perf", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    bars = commands.add_parser("bars", help="print each bar with its figure; exit 1 where one falls short, "
                                            "2 where one is not measured")
    bars.add_argument("results", nargs="?", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    plot = commands.add_parser("plot", help="draw pictures from a folder of results")
    plot.add_argument("results", type=Path, metavar="DIR")
    docs = commands.add_parser("docs", help="write the pages of performance and their pictures from all results")
    docs.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    docs.add_argument("--out", type=Path, default=ROOT / "docs" / "performance.md", metavar="FILE",
                      help="pictures go to a folder of its name (default: docs/performance.md)")
    return top


def main(argv: list) -> int:
    """Runs the command. Exit status 2: the files, or what draws them, are not there."""
    args = parser().parse_args(argv)
    try:
        return {"bars": _bars, "plot": _plot, "docs": _docs}[args.command](args)
    except ModuleNotFoundError as error:
        reason = f"needs {error.name}: pip install matplotlib"
    except (OSError, ValueError) as error:
        reason = str(error)
    print(f"python -m tools.perf {args.command}: {reason}", file=sys.stderr)
    return 2


def _bars(args: argparse.Namespace) -> int:
    from tools.perf import bars
    findings = bars.judge(args.results)
    print(bars.text(findings))
    return bars.status(findings)


def _plot(args: argparse.Namespace) -> int:
    from tools.perf.plot import draw
    print("\n".join(str(path) for path in draw(args.results)))
    return 0


def _docs(args: argparse.Namespace) -> int:
    from tools.perf.docs import write
    print("\n".join(str(path) for path in write(args.results, args.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

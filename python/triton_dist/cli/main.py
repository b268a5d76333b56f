# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The `triton-dist` command. Each tool is imported when it is asked for."""
import sys


def main() -> None:
    """Entry point of the console script and of `python -m triton_dist`."""
    try:
        import click
    except ImportError:
        sys.exit("triton-dist: needs click: pip install click")

    @click.group(context_settings={"help_option_names": ["-h", "--help"]})
    def tools() -> None:
        """Tools for overlap kernels."""

    # The tool parses its own words: ranks under torchrun read the same command line, on machines without click.
    @tools.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def launch(words: tuple) -> None:
        """Run a script on every GPU of this machine, or on emulated ranks where there is none; as launch.sh does."""
        from triton_dist.cli.launch import main as run
        sys.exit(run(list(words), "triton-dist launch"))

    @tools.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def bench(words: tuple) -> None:
        """Time an op beside its baselines; judge results, or make pictures and pages of them."""
        from triton_dist.bench.command import main as run
        sys.exit(run(list(words)))

    @tools.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def tune(words: tuple) -> None:
        """Time the ways to run an op at given shapes, and write a table of them."""
        from triton_dist.tune.command import main as run
        sys.exit(run(list(words)))

    @tools.command()
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    def doctor(as_json: bool) -> None:
        """Say what this machine has, try what can be tried, and name what is missing and the command that mends it."""
        from triton_dist.doctor.command import main as run
        sys.exit(run(as_json))

    @tools.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def check(words: tuple) -> None:
        """Find races, deadlocks and wrong scopes of a script's kernels on emulated ranks."""
        from triton_dist.checker.command import main as run
        sys.exit(run(list(words)))

    try:
        sys.exit(tools.main(prog_name="triton-dist", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print("triton-dist: interrupted", file=sys.stderr)
        sys.exit(130)

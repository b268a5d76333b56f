# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Freezes the labelled suite: writes suite/FROZEN.txt, the sha256 of every file of it, and why it was changed.

    python tests/checker/freeze.py "why the labels or cases change"

Labels are frozen before a detector is tuned on them; a later change is an amendment, with its reason, in the open.
"""
import hashlib
import sys
from pathlib import Path

SUITE = Path(__file__).resolve().parent / "suite"
FROZEN = SUITE / "FROZEN.txt"
HEAD = """Labels of the suite, frozen before the detector is tuned. One line a file: sha256 and name. Written by freeze.py.
"""
AMENDMENTS = "Amendments (file: why)"


def digests() -> dict:
    """{file name: sha256} of the suite as it is."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(SUITE.glob("*.py"))}


def frozen() -> tuple:
    """({file name: sha256}, [amendments]) as they are written down."""
    text, _, reasons = FROZEN.read_text().partition(AMENDMENTS)
    lines = [line.split() for line in text.splitlines()]
    return {line[1]: line[0] for line in lines if len(line) == 2 and len(line[0]) == 64}, reasons.split("\n")[1:]


def main() -> None:
    if len(sys.argv) != 2 or not sys.argv[1].strip():
        sys.exit("usage: freeze.py REASON")
    before, reasons = frozen() if FROZEN.exists() else ({}, [])
    now = digests()
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    reasons = [line for line in reasons if line.strip()]
    if before and changed:
        reasons.append(f"- {', '.join(changed)}: {sys.argv[1].strip()}")
    FROZEN.write_text(HEAD + "\n" + "".join(f"{digest}  {name}\n" for name, digest in now.items())
                      + f"\n{AMENDMENTS}\n" + "".join(f"{line}\n" for line in reasons))


if __name__ == "__main__":
    main()

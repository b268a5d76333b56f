# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Writes the table of docs/amd_registers.md: registers, LDS and spills of every kernel on AMD GPUs.

    source scripts/setenv.sh && "$PYTHON" tools/amd_table.py .venv-triton-3.9.0

By the Triton of this Python, and by each that the arguments name: folders that pip has installed one to (`bash scripts/test.sh`
does). A cell has one number, or one for each Triton where they differ.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "amd_registers.md"
HEADS = ("kernel", "target", "VGPR", "SGPR", "LDS bytes", "VGPR spills", "scratch bytes")


def measured(folder: str) -> dict:
    """What tests/compile/amd_kernels.py finds by the Triton in a folder; "": by this Python's own."""
    places = (folder, ROOT / "python", ROOT / "tests" / "compile", os.environ.get("PYTHONPATH"))
    path = os.pathsep.join(str(place) for place in places if place)
    command = [sys.executable, str(ROOT / "tests" / "compile" / "amd_kernels.py")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(found: list) -> str:
    """Markdown of one or several measurements."""
    rows = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for name, targets in found[0]["kernels"].items():
        for target in targets:
            cells = zip(*(one["kernels"][name][target] for one in found))
            words = [" / ".join(map(str, cell if len(set(cell)) > 1 else cell[:1])) for cell in cells]
            rows.append(f"| {name} | {target} | {' | '.join(words)} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    found = [measured(folder) for folder in ("", *sys.argv[1:])]
    text = PAGE.read_text()
    start = text.index(f"| {HEADS[0]} | {HEADS[1]} |")
    end = text.find("\n\n", start)
    PAGE.write_text(text[:start] + table(found) + (text[end + 1:] if end >= 0 else ""))
    print(f"{PAGE.name}: {len(found[0]['kernels'])} kernels, Triton {', '.join(one['triton'] for one in found)}")


if __name__ == "__main__":
    main()

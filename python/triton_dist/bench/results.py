# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Result files: a folder per date and kind of host, one list of rows per op, and host.json.

    <out>/<date>-<host kind>/ag_gemm.json  gemm_rs.json  host.json
"""
import json
import os
import tempfile
from pathlib import Path
from typing import Any

# Rows that agree in these are the same cell: a later run replaces the earlier one's.
KEY = ("op", "dtype", "world", "m", "n", "k", "graph")


def key(row: dict) -> tuple:
    """Which cell a row fills."""
    return tuple(row.get(name) for name in KEY)


def merge(old: list, new: list) -> list:
    """`old` with the rows of `new` in place of those with the same key, and the others behind."""
    fresh = {key(row): row for row in new}
    kept = [fresh.pop(key(row), row) for row in old]
    return kept + list(fresh.values())


def save(folder: Path, op: str, rows: list, host: dict) -> Path:
    """Merges rows into folder/op.json, writes host.json; returns the former's path. Readers never see half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{op}.json"
    _write(path, merge(load(path) if path.exists() else [], rows))
    _write(folder / "host.json", host)
    return path


def load(path: Path) -> list:
    """The rows of a result file. Raises ValueError for anything else."""
    rows = json.loads(Path(path).read_text())
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "op" in row for row in rows):
        raise ValueError(f"{path}: expected a list of benchmark rows")
    return rows


def _write(path: Path, content: Any) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1, allow_nan=False)
            file.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise

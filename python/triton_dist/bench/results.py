# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Result files: a folder per date and kind of host, one list of rows per op, and host.json.

    <out>/<date>-<host kind>/ag_gemm.json  gemm_rs.json  host.json
"""
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from triton_dist.runtime.files import write_shared

PLAIN = "plain"                             # the mode of a row without stragglers
_DATED = re.compile(r"\d{4}-\d\d-\d\d-(.+)")
_KEY = ("op", "dtype", "world", "m", "n", "k", "bytes", "graph", "call")


def mode(row: dict) -> str:
    """PLAIN, or which ranks were made late and how (late.Lateness); rows older than the column are plain."""
    return row.get("mode", PLAIN)


def asked(row: dict) -> str:
    """The method that the row's figures speak of, as it was asked for: "auto" stays "auto"."""
    return next(iter(row["ours"]))


def key(row: dict) -> tuple:
    """Which cell a row fills: of two rows in one cell the later replaces the earlier."""
    return (*(row.get(name) for name in _KEY), mode(row), asked(row))


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


def newest(folder: Path, op: str) -> dict:
    """{host kind: (rows of `op`, host.json)}: of each cell the newest row of all dated folders in `folder`, of host.json the
    newest. Empty where `op` was not measured. FileNotFoundError where there is no dated folder at all."""
    dated = sorted(path for path in Path(folder).glob("*") if _DATED.fullmatch(path.name))
    if not dated:
        raise FileNotFoundError(f"{folder}: expected folders such as 2026-01-31-4xH100-80GB, found none")
    found: dict = {}
    for path in dated:
        if (path / f"{op}.json").exists():
            kind = _DATED.fullmatch(path.name).group(1)
            rows, _ = found.get(kind, ([], {}))
            found[kind] = merge(rows, load(path / f"{op}.json")), json.loads((path / "host.json").read_text())
    return found


def headline(rows: list) -> list:
    """A row for each problem, without stragglers: that of method="auto", which is what users get, else the last one."""
    best: dict = {}
    for row in rows:
        cell = tuple(row.get(name) for name in _KEY)
        if mode(row) == PLAIN and (asked(row) == "auto" or cell not in best or asked(best[cell]) != "auto"):
            best[cell] = row
    return list(best.values())


def digest(figures: Any) -> str:
    """Names what a picture shows. It is kept in the picture, so that one of older figures can be told."""
    return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()[:16]


def _write(path: Path, content: Any) -> None:
    write_shared(path, json.dumps(content, indent=1, allow_nan=False) + "\n")

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Folders of caches, and whether they can be written. Standard library only: the launcher loads this file by its path."""
import os
import tempfile
from pathlib import Path
from typing import Mapping

_BYTES = 4096                   # written on trial: a disk that is full takes empty files
_TRIES = 20


def own_cache(environ: Mapping[str, str]) -> Path:
    """TRITON_DIST_CACHE_DIR, or .triton_dist in the home folder."""
    return Path(environ.get("TRITON_DIST_CACHE_DIR") or _home(environ) / ".triton_dist")


def triton_cache(environ: Mapping[str, str]) -> Path:
    """Where Triton keeps compiled kernels: TRITON_CACHE_DIR, or .triton/cache in TRITON_HOME or the home folder."""
    return Path(environ.get("TRITON_CACHE_DIR") or Path(environ.get("TRITON_HOME") or _home(environ)) / ".triton" / "cache")


def unwritable(environ: Mapping[str, str], emulated: bool) -> list[str]:
    """What is wrong with each cache that cannot be written, in a line that says what to do; empty where all is well.

    emulated: the emulator compiles nothing of ours, so it needs Triton's cache only.
    """
    found, caches = [], [("TRITON_CACHE_DIR", triton_cache(environ)), ("TRITON_DIST_CACHE_DIR", own_cache(environ))]
    for variable, folder in caches[:1 if emulated else 2]:
        reason = why_unwritable(folder)
        if reason:
            found.append(f"cannot write {folder}: {reason}; set {variable} to a folder that can be written, such as "
                         f"{Path(tempfile.gettempdir()) / variable.removesuffix('_CACHE_DIR').lower()}")
    return found


def why_unwritable(folder: Path) -> str:
    """Why no file can be written into `folder`, which is made unless it is there; '' where one can."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        for left in reversed(range(_TRIES)):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                    file.write(b"\0" * _BYTES)
                break
            except (FileNotFoundError, FileExistsError):       # or another rank has made the folder on trial, and removed it
                if not left:
                    raise
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for place in missing:                   # leaves no trace
            try:
                place.rmdir()
            except OSError:
                break
    return ""


def _home(environ: Mapping[str, str]) -> Path:
    """The home folder as Triton finds it: HOME, else that of the user's entry; where there is none, a folder called ~."""
    return Path(environ.get("HOME") or os.path.expanduser("~"))

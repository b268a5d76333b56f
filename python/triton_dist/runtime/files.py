# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Files that other processes, and other users of a shared cache, may read at any time."""
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


def write_shared(path: Path, text: str) -> None:
    """Writes a text file that everyone may read, and its folders. Readers see the old file or the new one, never a part.

    Raises OSError that names the path, where the folder cannot be written or the disk is full; then nothing is left behind.
    """
    draft = ""
    try:
        make_folder(path.parent)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(draft, 0o644)              # mkstemp makes files that their owner alone may read
        os.replace(draft, path)
    except OSError as error:
        if draft:
            Path(draft).unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot write {path}: {error.strerror or error}") from error


def cached(folder: Path, name: str, text: str) -> str:
    """Path of a file of that text in a folder of the cache. It is written unless it is there: its name tells its content.

    Raises OSError that says what to do, where it cannot be written.
    """
    path = folder / name
    if not path.exists():
        try:
            write_shared(path, text)        # another rank may be writing the same file
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}; set TRITON_DIST_CACHE_DIR to a folder that can be written") from error
    return str(path)


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Holds `path`.lock, which one process at a time can. The kernel frees the lock of a process that dies.

    Args:
        path: what the lock protects. The lock file stays beside it.
        seconds: how long to wait.

    Raises OSError where another process keeps the lock for longer.
    """
    import filelock                         # here, since importing the package must stay cheap
    lock = filelock.FileLock(f"{path}.lock", timeout=seconds)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise OSError(f"{path}.lock: another process has held it for {seconds:.0f} s") from error
    try:
        yield
    finally:
        lock.release()


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, that everyone may enter and read. Folders that are there stay as they are."""
    for missing in [parent for parent in reversed((folder, *folder.parents)) if not parent.exists()]:
        missing.mkdir(exist_ok=True)
        os.chmod(missing, 0o755)

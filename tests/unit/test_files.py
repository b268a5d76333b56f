# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Files of caches: others may read them, a write that fails leaves nothing behind, and no other code makes drafts."""
import errno
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest

from triton_dist.backends.gpu import device_runtime
from triton_dist.bench import results
from triton_dist.ops.tuning import table
from triton_dist.runtime import files
from triton_dist.runtime.files import write_shared
from triton_dist.runtime.folders import why_unwritable

PACKAGE = Path(write_shared.__code__.co_filename).parents[1]


def readable(path):
    """By everyone, with the folders above it up to the test's own."""
    return stat.S_IMODE(path.stat().st_mode) == 0o644 and stat.S_IMODE(path.parent.stat().st_mode) == 0o755


@pytest.fixture
def private():
    """A user whose files are their own."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_library_that_cannot_be_cached_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", "/dev/null/cache")
    device_runtime.library.cache_clear()
    with pytest.raises(OSError, match="cannot write /dev/null/.*: Not a directory; set TRITON_DIST_CACHE_DIR to a folder"):
        device_runtime.library("nvidia")
    device_runtime.library.cache_clear()
    monkeypatch.setattr(files, "write_shared", lambda path, text: pytest.fail("it is there"))
    (tmp_path / "one.ll").write_text("text")
    assert files.cached(tmp_path, "one.ll", "text") == str(tmp_path / "one.ll")


def test_all_caches_can_be_read_by_others(private, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", str(tmp_path / "shared" / "cache"))
    device_runtime.library.cache_clear()
    assert readable(Path(device_runtime.library("nvidia")))
    device_runtime.library.cache_clear()
    table.add(tmp_path / "tables" / "tuned.json", [])
    assert readable(tmp_path / "tables" / "tuned.json")
    results._write(tmp_path / "results" / "ag_gemm.json", [])
    assert readable(tmp_path / "results" / "ag_gemm.json")


def test_a_full_disk_is_named_and_the_old_file_stays(tmp_path, monkeypatch):
    path = tmp_path / "kept.json"
    write_shared(path, "old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=f"cannot write {re.escape(str(path))}: No space left on device"):
        write_shared(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_one_helper_writes_them_all():
    """A second way to write files atomically is a second policy of who may read them."""
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "os.replace(draft" in path.read_text()}
    assert found == {"runtime/files.py"}
    drafts = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "mkstemp" in path.read_text()}
    assert drafts == {"runtime/files.py", "backends/emulator/worlds/arena.py"}, "memory that ranks share is no cache"


def test_a_folder_that_another_rank_makes_and_removes_on_trial_can_be_written(monkeypatch, tmp_path):
    def other_rank_first(*args, real=tempfile.TemporaryFile, **options):
        monkeypatch.setattr(tempfile, "TemporaryFile", real)
        (tmp_path / "new").rmdir()
        return real(*args, **options)
    monkeypatch.setattr(tempfile, "TemporaryFile", other_rank_first)
    assert why_unwritable(tmp_path / "new") == "" and not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    assert why_unwritable(tmp_path / "file") == "File exists"

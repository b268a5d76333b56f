# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every row of libshmem_device over NVSHMEM's own device bitcode, out of its pip wheels. Needs no GPU.

The wheels (190 MB in all) are fetched once, their bitcode is kept in the user's cache folder.
"""
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
import shmem_kernels
from compile_util import compile_kernel

from triton_dist.backends.nvidia import nvshmem_library
from triton_dist.language._linked import statement
from triton_dist.language.shmem_abi import FUNCTIONS, LIBRARY

pytestmark = pytest.mark.full
VERSIONS = ("3.3.24", "3.4.5", "3.6.5")
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton_dist" / "nvshmem"


def bitcode(version: str) -> Path:
    """Folder that holds lib/*.bc of an NVSHMEM release, fetched unless it is there."""
    home = FOLDER / version
    if not list(home.glob("lib/*.bc")):
        with tempfile.TemporaryDirectory() as draft:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", draft,
                            f"nvidia-nvshmem-cu13=={version}"], check=True, timeout=600)
            (home / "lib").mkdir(parents=True, exist_ok=True)
            wheel, = Path(draft).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".bc"):
                        (home / "lib" / Path(name).name).write_bytes(archive.read(name))
    return home


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_every_row_compiles_and_nothing_is_left_unresolved(version, target, tmp_path, monkeypatch):
    monkeypatch.setenv("NVSHMEM_HOME", str(bitcode(version)))
    nvshmem_library.library.cache_clear()
    path, found = nvshmem_library.library(int(target[3:]))
    nvshmem_library.library.cache_clear()
    assert found == version
    lacking = {name for name in shmem_kernels.on_nvidia() if statement(path).why_not(FUNCTIONS[name].symbol)}
    assert not lacking or all("fcollect" in name for name in lacking) and (version, target) == ("3.6.5", "sm_80")
    rows = list({FUNCTIONS[name].symbol: name for name in shmem_kernels.on_nvidia() if name not in lacking}.values())
    for names in (rows[i:i + 8] for i in range(0, len(rows), 8)):
        kernel = compile_kernel(shmem_kernels.make(tmp_path, *names), shmem_kernels.SIGNATURE, {}, target,
                                extern_libs={LIBRARY: path}, ptx_options="--opt-level 1")
        outside = set(re.findall(r"^\.extern \.func .*?(\w+)\s*\n?\(", kernel.asm["ptx"], re.M))
        assert kernel.asm["cubin"] and outside <= {"vprintf", "__assertfail"}, names


def test_the_version_the_host_looks_for_is_in_the_binary(tmp_path, monkeypatch):
    monkeypatch.setenv("NVSHMEM_HOME", str(bitcode("3.4.5")))
    nvshmem_library.library.cache_clear()
    path, _ = nvshmem_library.library(90)
    nvshmem_library.library.cache_clear()
    binary = compile_kernel(shmem_kernels.exchange, dict(dest="*fp32", source="*fp32", sig_addr="*i64", n="i32"), {}, "sm_90",
                            extern_libs={LIBRARY: path}).asm["cubin"]
    assert b"nvshmemi_device_state_d" in binary and b"nvshmemi_device_lib_version_d" in binary
    assert bytes([3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0]) in binary

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Running programs on a driver that records what it is asked, on a machine without a GPU."""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import pytest
import triton.backends

HERE = Path(__file__).parent
INCLUDE = Path(triton.backends.__file__).parent / "nvidia" / "include"
HIP_INCLUDE = Path(triton.backends.__file__).parent / "amd" / "include"
TARGETS = "cuda:80,cuda:90,cuda:100,hip:gfx942"
KERNELS = ("add_kernel", "scalars", "copy_box", "copy_by_made_descriptor", "fill", "after_the_last", "who_am_i")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic")

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns when it is unset


def compiler() -> str:
    found = shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler")
    return found


def compile_c(target: Path, *words) -> None:
    done = subprocess.run(
        [compiler(), *map(str, words), "-o", str(target)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@dataclass
class Result:
    """What a program did: its output, and the driver calls that it made."""

    code: int
    out: str
    err: str
    calls: list

    def named(self, name: str) -> list:
        return [line for line in self.calls if line.startswith(name)]


START = """
import ctypes
from pathlib import Path
from triton_dist.backends.gpu.kernel_library import *
lib = KernelLibrary(Path({library!r}))
def code(f, *args, **more):
    try:
        f(*args, **more)
    except LibraryError as error:
        return error.code, str(error)
    return 0, ''
"""
CURRENT_DEVICE = """
cuda, context = driver, ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
"""


class Mock:
    """Runs programs on the mock driver.

    Args:
        driver: its file, under the name by which it is looked for.
        start: Python that `python` runs first, with `driver` loaded.
    """

    def __init__(self, driver: Path, start: str = ""):
        self.driver, self.folder, self.start = driver, driver.parent, start
        self.runs = 0

    def run(self, *words, timeout: float = 60, **environ) -> Result:
        self.runs += 1
        log = self.folder / f"calls.{self.runs}"
        environ = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder),
            "TDIST_MOCK_LOG": str(log),
            "TRITON_DIST_BACKEND": "emulator",
            **environ,
        }
        pipe = subprocess.PIPE
        with subprocess.Popen([*map(str, words)], stdout=pipe, stderr=pipe, text=True, env=environ, start_new_session=True) as p:
            try:
                out, err = p.communicate(timeout=timeout)
            except BaseException:
                os.killpg(p.pid, signal.SIGKILL)  # the ranks that it has forked as well, which hold the pipes
                raise
        return Result(p.returncode, out, err, log.read_text().splitlines() if log.exists() else [])

    def python(self, code: str, library: Path, **environ) -> Result:
        """Runs `code` with `lib`, the library, and device 0 current."""
        self.runs += 1
        log, out = self.folder / f"calls.{self.runs}", self.folder / f"out.{self.runs}"
        words = forked(self.start + code, library, out, self.driver, TDIST_MOCK_LOG=str(log), **environ)
        return Result(0, words, "", log.read_text().splitlines() if log.exists() else [])


def forked(code: str, library: Path, out: Path, driver: Optional[Path] = None, **environ) -> str:
    """What `code` prints with `lib`, the library, where `driver` is loaded, in a fork: a new process would import torch anew."""
    child = os.fork()
    if child == 0:
        _run_here(START.format(library=str(library)) + code, out, driver, environ)
    _, status = os.waitpid(child, 0)
    words = out.read_text()
    assert status == 0, words
    return words


def _run_here(code: str, out: Path, driver: Optional[Path], environ: dict) -> None:
    status = 1
    try:
        os.environ.update(environ)
        file = os.open(out, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w")
        exec(code, {"__name__": "child", "driver": driver and ctypes.CDLL(str(driver))})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def parameters(line: str) -> list:
    """The parameters of a recorded launch, as bytes."""
    return [bytes.fromhex(found) for found in re.findall(r" p\d+=([0-9a-f]*)", line)]

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Runs a script that was written against the published API: python -m triton_dist.dropin.run SCRIPT [ARGS...].

`bash launch.sh --published SCRIPT` starts it on every rank. It makes what such a script expects: kernels of plain triton.jit
that use `dl` and SHMEM, the modules of the published Triton, and on emulated ranks torch.cuda, cuda-python and nvshmem4py.
"""
import inspect
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import triton

import triton_dist
from triton_dist.runtime.backend import backend

_PLAIN = triton.jit
_SMS = "132"                       # of an H100 or H200: published kernels launch cooperative grids of that size


def _jit(fn: Any = None, **options: Any) -> Any:
    """triton.jit whose kernels are linked with the device runtime; Triton's and torch's own stay as they are."""
    if fn is None:
        return lambda function: _jit(function, **options)
    if not inspect.isfunction(fn) or str(fn.__module__).startswith(("triton.", "torch.", "triton_dist.")):
        return _PLAIN(fn, **options) if options else _PLAIN(fn)
    return triton_dist.jit(fn, **options)


def install() -> None:
    """Prepares this process. Idempotent."""
    if triton.jit is _jit:
        return
    from triton_dist.dropin import packages
    triton.jit = _jit
    packages.of_triton()
    packages.leaving_with_the_process_group()
    if backend().name == "emulator":
        os.environ.setdefault("TRITON_DIST_EMULATOR_SMS", _SMS)
        from triton_dist.dropin import cuda_device
        cuda_device.install()
        packages.of_cuda_python()
        packages.of_nvshmem()
    else:
        packages.old_names_of_cuda_python()
        packages.keeping_our_heap()


def main() -> None:
    """Runs sys.argv[1] as __main__, with the arguments after it."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m triton_dist.dropin.run SCRIPT [ARGS...]")
    if os.environ.get("TRITON_DIST_BACKEND") == "emulator":
        os.environ.setdefault("TRITON_DIST_EMULATOR_SMS", _SMS)
    install()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

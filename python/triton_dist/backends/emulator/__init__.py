# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The CPU emulator: every rank, stream, program and copy engine of a GPU machine, on a laptop.

`run_ranks` runs a host script on every rank of a virtual world; see `virtual.run_ranks`.
"""
from typing import Any

from triton_dist.runtime.errors import UnsupportedFeature


def make() -> Any:
    """The emulator as this process's backend; plain triton.jit kernels run in it too."""
    _require_greenlet()
    from triton_dist.backends.emulator.backend import EmulatorBackend
    from triton_dist.backends.emulator.driver import install
    install()
    return EmulatorBackend()


def __getattr__(name: str) -> Any:
    """`run_ranks`, imported when it is asked for: the registry imports this package on machines without greenlet."""
    if name != "run_ranks":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _require_greenlet()
    from triton_dist.backends.emulator.worlds.virtual import run_ranks
    return run_ranks


def _require_greenlet() -> None:
    try:
        import greenlet  # noqa: F401
    except ImportError as error:
        raise UnsupportedFeature("the emulator needs the greenlet package: pip install greenlet") from error

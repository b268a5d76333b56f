# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The CPU emulator: every rank, stream, program and copy engine of a GPU machine, on a laptop."""
from typing import Any

from triton_dist.runtime.errors import UnsupportedFeature


def make() -> Any:
    """The emulator as this process's backend; plain triton.jit kernels run in it too."""
    try:
        import greenlet  # noqa: F401
    except ImportError as error:
        raise UnsupportedFeature("the emulator needs the greenlet package: pip install greenlet") from error
    from triton_dist.backends.emulator.backend import EmulatorBackend
    from triton_dist.backends.emulator.driver import install
    install()
    return EmulatorBackend()


def run_ranks(*args: Any, **kwargs: Any) -> list:
    """Runs a host script on every rank of a virtual world: see `virtual.run_ranks`."""
    from triton_dist.backends.emulator.virtual import run_ranks as run
    return run(*args, **kwargs)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The registry of backends, and the one that this process uses.

A backend is a device (`runtime/device.py`) with capabilities (`runtime/capabilities.py`). Nothing outside `backends/`
names a vendor, except for the registry here.
"""
import functools
import importlib
import os
from importlib.metadata import entry_points

from triton_dist.runtime.capabilities import Capabilities
from triton_dist.runtime.device import Device
from triton_dist.runtime.errors import InvalidArgument

__all__ = ["BACKENDS", "Backend", "backend", "backends", "detect", "device_nodes", "use"]

BACKENDS = {
    "nvidia": "triton_dist.backends.nvidia",
    "amd": "triton_dist.backends.amd",
    "emulator": "triton_dist.backends.emulator",
}


class Backend(Device, Capabilities):
    """What a vendor, or the emulator, implements: a device, and what ops may ask of it."""


def backends() -> dict[str, str]:
    """Package of each backend, by name: those here, and what installed distributions offer as `triton_dist.backends`."""
    return {**{found.name: found.value for found in entry_points(group="triton_dist.backends")}, **BACKENDS}


def device_nodes() -> bool:
    """Whether a GPU driver shows its device files. Unlike asking torch, this starts no driver, so a later fork is safe."""
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def detect() -> str:
    """Backend name: the environment's word first, then what torch sees."""
    asked = os.environ.get("TRITON_DIST_BACKEND", "").lower()
    if asked and asked != "auto":
        if asked not in BACKENDS and asked not in backends():
            raise InvalidArgument(f"TRITON_DIST_BACKEND={asked!r}: expected one of {', '.join(backends())} or auto")
        return asked
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return "emulator"
    import torch
    if not torch.cuda.is_available():
        return "emulator"
    return "amd" if torch.version.hip else "nvidia"


@functools.cache
def backend() -> Backend:
    """The process's backend, made on first use. Its package exports `make() -> Backend`."""
    return importlib.import_module(backends()[detect()]).make()


def use(name: str, purpose: str) -> None:
    """Makes `name` this process's backend, and that of the processes that it starts, where no other is in use yet.

    Args:
        name: one of `backends()`.
        purpose: what needs it, for the error.

    Raises InvalidArgument where the process has another backend already.
    """
    if backend.cache_info().currsize and backend().name != name:
        raise InvalidArgument(f"{purpose} needs the backend {name!r}, and this process uses another one, {backend().name!r}; "
                              f"start it with TRITON_DIST_BACKEND={name}, or call this before anything else of triton_dist")
    os.environ["TRITON_DIST_BACKEND"] = name

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Lets plain triton.jit kernels launch on a machine with no GPU: they go to the emulator, once they are launched."""
from typing import Any

from triton import runtime

from triton_dist.compat.triton import has_driver
from triton_dist.runtime.backend import backend, detect, device_nodes
from triton_dist.runtime.errors import InvalidArgument


class _OnFirstUse:
    """Stands in for Triton's driver until one is asked for; then the backend puts its own in place."""

    def __getattr__(self, name: str) -> Any:
        backend()
        driver = runtime.driver.active
        if driver is self:
            raise RuntimeError("this backend brings no Triton driver")
        return getattr(driver, name)


def offer() -> None:
    """Called at import: costs nothing, and changes nothing where there is a GPU or a driver has been chosen already.

    A TRITON_DIST_BACKEND that names no backend is refused when one is first used. At import the doctor could not say so.
    """
    if device_nodes() or has_driver():
        return
    try:
        emulated = detect() == "emulator"
    except InvalidArgument:
        return
    if emulated:
        runtime.driver.set_active(_OnFirstUse())       # pyright: ignore[reportArgumentType]

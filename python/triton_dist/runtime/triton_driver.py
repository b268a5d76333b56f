# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Lets plain triton.jit kernels launch on a machine with no GPU: they go to the emulator, once they are launched."""
from typing import Any

from triton import runtime

from triton_dist.compat.triton import has_driver
from triton_dist.runtime.backend import backend, detect, device_nodes


class _OnFirstUse:
    """Stands in for Triton's driver until one is asked for; then the backend puts its own in place."""

    def __getattr__(self, name: str) -> Any:
        backend()
        driver = runtime.driver.active
        if driver is self:
            raise RuntimeError("this backend brings no Triton driver")
        return getattr(driver, name)


def offer() -> None:
    """Called at import: costs nothing, and changes nothing where there is a GPU or a driver has been chosen already."""
    if not device_nodes() and not has_driver() and detect() == "emulator":
        runtime.driver.set_active(_OnFirstUse())       # pyright: ignore[reportArgumentType]

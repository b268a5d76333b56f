# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tells a SHMEM library of the kernels that call it: their modules hold its state, which the host fills."""
from typing import Any, Callable

from triton import knobs

from triton_dist.backends.gpu.context import holds, refuse_capture
from triton_dist.language.shmem_abi import LIBRARY
from triton_dist.runtime.errors import NotInitialized


class ShmemModules:
    """Every loaded module that calls the library, those loaded before it was initialised included."""

    library: str        # name of the library
    heap: str           # value of TRITON_DIST_HEAP that takes it
    state: str          # the global variable by which its device code knows the world

    def __init__(self) -> None:
        self._modules: set = set()
        self._initialise: Callable | None = None
        self._finalise: Callable | None = None
        hooks = knobs.runtime
        hooks.kernel_load_start_hook.add(self._before_load)
        hooks.kernel_load_end_hook.add(self._after_load)
        if hasattr(hooks, "kernel_unload_hook"):       # Triton 3.6 never unloads
            hooks.kernel_unload_hook.add(self._before_unload)

    def start(self, initialise: Callable[[int], Any], finalise: Callable[[int], Any]) -> None:
        """The library is up: `initialise` and `finalise` take a module's handle."""
        self._initialise, self._finalise = initialise, finalise
        for module in sorted(self._modules):
            initialise(module)

    def stop(self) -> None:
        """The library is about to go down."""
        for module in sorted(self._modules) if self._finalise is not None else ():
            self._finalise(module)
        self._initialise = self._finalise = None

    def _before_load(self, module, function, name, metadata_group, _hash) -> None:
        if not holds(metadata_group, LIBRARY, self.state):
            return
        refuse_capture(name)
        if self._initialise is None:
            raise NotInitialized(f"{name}: calls {self.library}, which this process has not joined; set "
                                 f"TRITON_DIST_HEAP={self.heap} and call triton_dist.initialize_distributed() first")

    def _after_load(self, module, function, name, metadata_group, _hash) -> None:
        if holds(metadata_group, LIBRARY, self.state):
            self._modules.add(module)
            self._initialise(module)

    def _before_unload(self, module, function, name, metadata_group, _hash) -> None:
        if module in self._modules:
            self._modules.discard(module)
            if self._finalise is not None:
                self._finalise(module)

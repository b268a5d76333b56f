# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Keeps the context global of every loaded module up to date (protocol rule 20).

Triton calls its load hooks around each module load, disk-cache hits included. A module that uses the context is filled
before its first launch, and again whenever the world changes.
"""
import dataclasses
import json
import os
from pathlib import Path

import torch
from triton import knobs

from triton_dist.backends.gpu.driver import GpuDriver
from triton_dist.backends.gpu.replicas import refuse_replicas
from triton_dist.backends.gpu.wait_sites import sites_of
from triton_dist.language._call import LIBRARY
from triton_dist.runtime.context import (DIAG_RECORD_SIZE, DIAG_SLOTS, SIZE, SYMBOL, Context, WaitRecord,
                                         unpack_records)
from triton_dist.runtime.environment import wait_timeout
from triton_dist.runtime.errors import NotInitialized, TritonDistError


@dataclasses.dataclass
class _Module:
    """A loaded module that holds a context."""
    address: int         # of its context global
    device: int
    kernel_id: int


class ContextWriter:
    """Writes contexts into modules; owns the buffer that expired waits write to."""

    def __init__(self, driver: GpuDriver, bounded: bool):
        self._driver = driver
        self._bounded = bounded
        self._context: Context | None = None
        self._modules: dict[int, _Module] = {}         # by module handle
        self._kernels: list[tuple] = []                # (name, path of its assembly), by kernel id
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._diagnostics: torch.Tensor | None = None
        hooks = knobs.runtime
        hooks.kernel_load_start_hook.add(self._before_load)
        hooks.kernel_load_end_hook.add(self._after_load)
        if hasattr(hooks, "kernel_unload_hook"):       # Triton 3.6 never unloads
            hooks.kernel_unload_hook.add(self._before_unload)

    @property
    def context(self) -> Context | None:
        """What modules see now; None before there is a world."""
        return self._context

    def set(self, context: Context) -> None:
        """Makes `context` the one that all modules see, those loaded so far and those to come."""
        self._context = self._complete(context)
        if self._modules:
            torch.cuda.synchronize()                   # no kernel may see half a context
        for module in self._modules.values():
            self._fill(module)

    def wait_records(self) -> list[WaitRecord]:
        """What expired waits have written so far. Works after the device has faulted: the buffer is host memory."""
        if self._diagnostics is None:
            return []
        return unpack_records(self._diagnostics.numpy().tobytes())

    def kernel_name(self, kernel_id: int) -> str:
        """Name of the kernel a context's kernel_id stands for."""
        return self._kernels[kernel_id][0] if 0 <= kernel_id < len(self._kernels) else f"kernel {kernel_id}"

    def line_of(self, record: WaitRecord) -> str:
        """'file.py:line' of the wait that wrote a record; '' where Triton kept no line numbers."""
        path = self._kernels[record.kernel_id][1] if 0 <= record.kernel_id < len(self._kernels) else ""
        return sites_of(path).get(record.site, "")

    def _before_load(self, module, function, name, metadata_group, _hash) -> None:
        if not _uses_context(metadata_group):
            return
        ttgir = next((path for file, path in metadata_group.items() if file.endswith(".ttgir")), None)
        if ttgir is not None:
            refuse_replicas(name, Path(ttgir).read_text())
        refuse_capture(name)
        if self._context is None:
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                raise NotInitialized(f"{name}: asks for its rank or for a peer's memory, but this process has not "
                                     "joined a world; call triton_dist.initialize_distributed() first")
            self._context = self._complete(Context(wait_timeout_ns=int(wait_timeout() * 1e9)))

    def _after_load(self, module, function, name, metadata_group, _hash) -> None:
        if not _uses_context(metadata_group):
            return
        found = self._driver.module_global(module, SYMBOL)
        if found is None:                              # linked in, then found unused
            return
        address, nbytes = found
        if nbytes != SIZE:
            raise TritonDistError(f"{name}: its context has {nbytes} bytes, this runtime's {SIZE}; it was compiled "
                                  "with another version of triton_dist, clear the Triton cache")
        self._modules[module] = _Module(address, torch.cuda.current_device(), len(self._kernels))
        assembly = next((path for file, path in metadata_group.items() if file.endswith((".ptx", ".amdgcn"))), "")
        self._kernels.append((name, str(assembly)))
        self._fill(self._modules[module])

    def _before_unload(self, module, function, name, metadata_group, _hash) -> None:
        self._modules.pop(module, None)

    def _complete(self, context: Context) -> Context:
        if not self._bounded:
            return context
        if self._diagnostics is None:
            self._diagnostics = torch.zeros(DIAG_SLOTS * DIAG_RECORD_SIZE, dtype=torch.uint8, device="cpu",
                                            pin_memory=True)
        # Pinned memory has one address for host and device (unified addressing).
        return dataclasses.replace(context, diagnostics=self._diagnostics.data_ptr())

    def _fill(self, module: _Module) -> None:
        with torch.cuda.device(module.device):
            if module.device not in self._streams:     # torch's streams do not wait for the legacy default stream
                self._streams[module.device] = torch.cuda.Stream()
            stream = self._streams[module.device]
            raw = self._context.pack(module.kernel_id)
            self._driver.copy_to_device(module.address, raw, stream.cuda_stream)
            stream.synchronize()                       # `raw` must live until here


def _uses_context(metadata_group: dict) -> bool:
    """Whether a compiled kernel was linked with the device runtime and kept its context."""
    return holds(metadata_group, LIBRARY, SYMBOL)


def holds(metadata_group: dict, library: str, symbol: str) -> bool:
    """Whether a compiled kernel was linked with `library` (a key of extern_libs) and its binary names `symbol`."""
    metadata = next(Path(path) for name, path in metadata_group.items() if name.endswith(".json"))
    libraries = json.loads(metadata.read_text()).get("extern_libs") or ()
    if library not in dict(libraries):
        return False
    binary = next((Path(path) for name, path in metadata_group.items() if name.endswith((".cubin", ".hsaco"))), None)
    if binary is None:                                 # of a backend that makes no binaries
        return False
    return symbol.encode() in binary.read_bytes()


def refuse_capture(name: str) -> None:
    """Raises inside a graph capture, where a kernel's first launch, which loads it, cannot be."""
    if torch.cuda.is_current_stream_capturing():
        raise TritonDistError(f"{name}: the first launch of a kernel loads it and fills its context, which cannot "
                              "be captured in a graph; run it once before the capture")

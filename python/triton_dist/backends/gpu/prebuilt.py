# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels that were compiled ahead of time, in place of those that would be compiled at their first launch."""

import functools
import hashlib
import json
import logging
from pathlib import Path
from typing import Any, Mapping

import torch
import triton
from triton import knobs

from triton_dist.backends.gpu.kernel_library import KernelLibrary, LibraryLaunch
from triton_dist.backends.gpu.source_digest import source_digest
from triton_dist.compat.torch import cuda_raw_stream
from triton_dist.runtime.environment import cache_dir
from triton_dist.runtime.errors import UnsupportedFeature

# Options that name files of a machine, or follow from the target.
_NO_PART = {"extern_libs", "arch", "backend_name", "TRITON_DISABLE_LINE_INFO"}


def identity(kernel: Any, signature: Mapping, constexprs: Mapping, attrs: Mapping, options: Any, target: str) -> str:
    """The SHA-256 of all that a compilation depends on.

    Args:
        kernel: a JITFunction; its source and that of what it calls count.
        signature, constexprs, attrs: as ASTSource takes them; constexprs and attrs by paths of positions.
        options: the parsed options of Triton's backend.
        target: "cuda:90", "hip:gfx942".
    """
    given = vars(options)
    libraries = dict(given.get("extern_libs") or ())
    parts = {
        "kernel": f"{kernel.fn.__module__}:{kernel.fn.__qualname__}",
        "source": source_digest(kernel),
        "signature": [(name, kind.replace(" ", "")) for name, kind in signature.items()],
        "constexprs": sorted((list(path), repr(plain(value))) for path, value in constexprs.items()),
        "attrs": sorted((list(path), value) for path, value in attrs.items() if value),
        "options": sorted((name, repr(value)) for name, value in given.items() if name not in _NO_PART),
        "libraries": sorted((name, _content(path)) for name, path in libraries.items()),
        "target": target,
        "triton": triton.__version__,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def plain(value: Any) -> Any:
    """The value inside of a tl.constexpr, or the value."""
    return getattr(value, "value", value) if type(value).__name__ == "constexpr" else value


@functools.cache
def _content(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def default_folder() -> Path:
    """Where a library of kernels is written, and looked for."""
    return cache_dir() / "aot"


def specialised(kernel: Any, args: tuple, kwargs: Mapping) -> tuple:
    """(signature, constexprs, attrs, options, target) of a launch on the current device, as Triton has them when it compiles.

    What is used of Triton here is its own affair: where it has changed, AttributeError, TypeError or ValueError comes.
    """
    device = triton.runtime.driver.active.get_current_device()
    _, _, target, compiler, binder = kernel.device_caches[device]
    given = dict(kwargs, debug=kwargs.get("debug", kernel.debug) or knobs.runtime.debug)
    bound, specialization, options = binder(*args, **given)
    options, signature, constexprs, attrs = kernel._pack_args(compiler, given, bound, specialization, options)
    return signature, constexprs, attrs, options, f"{target.backend}:{target.arch}"


class Prebuilt:
    """The library that a process launches kernels from, where it has them.

    Args:
        folder: of the library; empty for the usual place.
        tells: whether this process, of those of a world, writes to the log.
        bounded: whether device waits are bounded (TRITON_DIST_WAIT_TIMEOUT): a library has kernels whose waits are not.
    """

    def __init__(self, folder: str, tells: bool, bounded: bool = False):
        self._tells, self._lacking = tells, set()
        self._library: KernelLibrary | None = None
        try:
            self._library = KernelLibrary(Path(folder) if folder else default_folder())
        except UnsupportedFeature as error:
            self._tell(f"kernels are compiled as they are used: {error}; build a library by scripts/gen_aot_code.sh")
        if self._library is not None and bounded:
            self._library = None
            self._tell("kernels are compiled as they are used: TRITON_DIST_WAIT_TIMEOUT is set, and the kernels of a library "
                       "wait without a bound; unset it to use the library")

    def set_context(self, context: bytes) -> None:
        """What kernels know of the world from now on."""
        if self._library is not None:
            self._library.set_world(context)

    def prepare(self, kernel: Any, grid: tuple, args: tuple, kwargs: dict, positions: tuple) -> "PrebuiltLaunch | None":
        """A launch that is kept, as Backend.prepare has it; None, with a line of log, where the library lacks the kernel.

        It has the very binary that would be compiled here: of the same source, types, hints, constants, options and compiler.
        """
        if self._library is None:
            return None
        key = self._key(kernel, args, kwargs)
        if key is None or not self._library.has(key):
            name = f"{kernel.fn.__name__}"
            if name not in self._lacking:
                self._lacking.add(name)
                self._tell(f"{name} is compiled as it is used: {self._library.folder} has no variant for this call")
            return None
        bound = self._library.prepare(key, (*grid, 1, 1)[:3], args, positions)
        return PrebuiltLaunch(kernel.fn.__name__, torch.cuda.current_device(), bound)

    def _key(self, kernel: Any, args: tuple, kwargs: dict) -> str | None:
        try:
            signature, constexprs, attrs, options, target = specialised(kernel, args, kwargs)
        except (AttributeError, TypeError, ValueError):
            return None
        return identity(kernel, signature, constexprs, attrs, options, target)

    def _tell(self, words: str) -> None:
        if self._tells:
            logging.getLogger("triton_dist").warning("triton_dist: USE_TRITON_DISTRIBUTED_AOT: %s", words)


class PrebuiltLaunch:
    """A kernel of a library with its grid and the arguments that stay. A call takes those that vary."""

    def __init__(self, name: str, device: int, bound: LibraryLaunch):
        self._name, self._device, self._bound, self._hooks = name, device, bound, knobs.runtime
        self._stream = cuda_raw_stream
        self.again = bound.again

    def __call__(self, *args: Any) -> None:
        stream = self._stream(self._device)
        enter, leave = self._hooks.launch_enter_hook, self._hooks.launch_exit_hook
        if not (enter.calls or leave.calls):
            self._bound(stream, args)
            return
        metadata = _Metadata({"name": self._name, "function": None, "stream": stream})
        enter(metadata)
        self._bound(stream, args)
        leave(metadata)

    def on(self, grid: tuple, changed: dict) -> None:
        """See runtime.device.Prepared. The library is asked again, for another variant may be the one."""


class _Metadata(dict):
    """What Triton's launch hooks are given: a dict, and the same by get()."""

    def get(self, *_: Any) -> dict:
        return dict(self)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a compiled kernel is the compilation of: one word, equal for the compiler ahead of time and for the one at run time."""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Mapping

import triton

from triton_dist.runtime.environment import cache_dir

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
        "source": kernel.cache_key,
        "signature": list(signature.items()),
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

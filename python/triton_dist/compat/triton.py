# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Names of Triton that are no part of its documented interface, and are there as soon as triton is imported."""
import re
from dataclasses import replace
from typing import Any

from triton import knobs, runtime
from triton.compiler.errors import CompilationError
from triton.language import core
from triton.runtime.cache import triton_key
from triton.runtime.jit import ConstexprFunction, JITCallable, JITFunction, constexpr_function

__all__ = ["CompilationError", "ConstexprFunction", "JITCallable", "JITFunction", "constexpr_function", "triton_key"]

aggregate = core._aggregate                         # the decorator of classes whose instances are kernel values
unwrap_constexpr = core._unwrap_if_constexpr


def has_driver() -> bool:
    """Whether Triton has chosen a driver. Asking runtime.driver.active would make it choose."""
    return runtime.driver._active is not None


def make_backend(target: Any) -> Any:
    """Triton's compiler for a target."""
    from triton.compiler.compiler import make_backend as make
    return make(target)


def overridden(target: Any) -> Any:
    """The GPUTarget that TRITON_OVERRIDE_ARCH (sm80, gfx942) makes of `target`; `target` itself where it is not set.

    Raises ValueError for what is no architecture of the target's kind.
    """
    text = knobs.runtime.override_arch
    if not text:
        return target
    number = re.fullmatch(r"sm(\d+)", text)
    if isinstance(target.arch, int) != (number is not None):
        raise ValueError(f"TRITON_OVERRIDE_ARCH={text!r}: expected {'sm80' if isinstance(target.arch, int) else 'gfx942'} or "
                         f"the like, for {target.backend}")
    return replace(target, arch=int(number[1]) if number else text)


def load(compiled: Any) -> None:
    """Loads the module of a CompiledKernel now, load hooks included; else its first launch does."""
    compiled._init_handles()

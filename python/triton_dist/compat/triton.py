# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Names of Triton that are no part of its documented interface, and are there as soon as triton is imported."""
from typing import Any

from triton import runtime
from triton.compiler.errors import CompilationError
from triton.language import core
from triton.runtime.jit import ConstexprFunction, JITCallable, JITFunction, constexpr_function

__all__ = ["CompilationError", "ConstexprFunction", "JITCallable", "JITFunction", "constexpr_function"]

aggregate = core._aggregate                         # the decorator of classes whose instances are kernel values
unwrap_constexpr = core._unwrap_if_constexpr


def has_driver() -> bool:
    """Whether Triton has chosen a driver. Asking runtime.driver.active would make it choose."""
    return runtime.driver._active is not None


def load(compiled: Any) -> None:
    """Loads the module of a CompiledKernel now, load hooks included; else its first launch does."""
    compiled._init_handles()

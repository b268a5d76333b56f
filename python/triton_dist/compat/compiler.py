# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Names of Triton's compiler and of its interface for backends, which are imported when a kernel is compiled or emulated."""
from triton.backends import Backend, backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler import ASTSource, code_generator
from triton.compiler.code_generator import CodeGenerator
from triton.compiler.compiler import LazyDict, make_backend
from triton.compiler.errors import CompileTimeAssertionFailure

__all__ = ["ASTSource", "Backend", "CodeGenerator", "CompileTimeAssertionFailure", "DriverBase", "GPUTarget", "LazyDict",
           "backends", "code_generator", "make_backend"]

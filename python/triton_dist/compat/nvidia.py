# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Names of Triton's NVIDIA backend and of the LLVM in it."""
from triton._C.libtriton import ir, llvm, nvidia
from triton.backends.nvidia import compiler

__all__ = ["CUDABackend", "compiler", "ir", "llvm", "nvidia"]

CUDABackend = compiler.CUDABackend

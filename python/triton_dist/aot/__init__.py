# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels compiled ahead of time into a C library that needs neither Python nor a CUDA toolkit (docs/aot.md)."""

from triton_dist.aot.spaces import aot_compile_spaces, spaces_of

__all__ = ["aot_compile_spaces", "spaces_of"]

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path of what declares kernels for a library. It lies in triton_dist.aot."""
from triton_dist.aot import aot_compile_spaces  # noqa: F401

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rebuilding: a jit function becomes a plain Python function with the same source, whose builtins are twins."""

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""NVIDIA GPUs."""


def make():
    """The backend; runtime.backend calls this once."""
    from triton_dist.backends.nvidia.backend import NvidiaBackend
    return NvidiaBackend()

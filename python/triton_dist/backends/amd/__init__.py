# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""AMD GPUs."""


def make():
    """The backend; runtime.backend calls this once."""
    from triton_dist.backends.amd.backend import AmdBackend
    return AmdBackend()

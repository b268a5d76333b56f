# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins: Python functions in place of the builtins of Triton, Gluon and the device runtime.

Importing this package registers them all.
"""
from triton_dist.backends.emulator.memory import descriptors as _descriptors  # noqa: F401
from triton_dist.backends.emulator.rebuild import statements as _statements  # noqa: F401
from triton_dist.backends.emulator.twins import (  # noqa: F401
    core, debug, dist, float8, gluon_async_copy, gluon_layouts, gluon_mbarrier, gluon_partition, gluon_tma, gluon_wgmma,
    libdevice, math, memory, reduce, scaled, selfflag, shape, shmem, shmem_words, threads, trace)

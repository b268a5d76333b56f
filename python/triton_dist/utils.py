# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin; docs/migration.md has their clean forms."""
from triton_dist.dropin.host import *  # noqa: F403
from triton_dist.dropin.lazy import LazyAllocator, LazyTensor, LazyTensorSpec, NVSHMEMLazyAllocator  # noqa: F401
from triton_dist.dropin.timing import assert_allclose, assert_bitwise_equal, bitwise_equal  # noqa: F401

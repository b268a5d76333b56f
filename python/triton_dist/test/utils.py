# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin.timing."""
from triton_dist.dropin.timing import LAYER_CONFIGS, assert_allclose, assert_bitwise_equal, bitwise_equal  # noqa: F401

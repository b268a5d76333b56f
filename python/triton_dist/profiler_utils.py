# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin.timing."""
from triton_dist.dropin.timing import get_torch_prof_ctx, group_profile, perf_func, perf_func_with_l2_reset  # noqa: F401

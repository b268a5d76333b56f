# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin.all_to_all."""
from triton_dist.dropin.all_to_all import (  # noqa: F401
    AllToAllContext, all_to_all_post_process, create_all_to_all_context, fast_all_to_all)

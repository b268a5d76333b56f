# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin.op_names."""
from triton_dist.dropin.op_names import (  # noqa: F401
    AllReduceMethod, all_reduce, create_allreduce_ctx, get_auto_allreduce_method)

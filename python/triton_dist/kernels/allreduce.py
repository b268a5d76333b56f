# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin.op_names."""
from triton_dist.dropin.op_names import AllReduceMethod  # noqa: F401

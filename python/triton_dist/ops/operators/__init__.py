# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The operators of torch: what each is called with, the shapes it gives, and what a call of an op is recorded as."""
from triton_dist.ops.operators import collectives, gemms, others

__all__ = ["collectives", "gemms", "others"]

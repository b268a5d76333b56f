# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin.host."""
from triton_dist.dropin.host import get_numa_node, has_fullmesh_nvlink  # noqa: F401

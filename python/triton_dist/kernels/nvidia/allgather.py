# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin.op_names."""
from triton_dist.dropin.op_names import (  # noqa: F401
    AllGatherMethod, cp_engine_producer_all_gather_intra_node, get_auto_all_gather_method)

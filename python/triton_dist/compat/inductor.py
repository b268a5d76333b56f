# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Private names of Inductor, which are imported with its pass."""
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._guards import detect_fake_mode
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

__all__ = ["CustomGraphPass", "detect_fake_mode", "get_hash_for_files", "inductor_config"]

functional_collectives = torch.ops._c10d_functional         # the operators in a graph


def placed(node: Any) -> Any:
    """What orders nodes of a graph: a later node compares as larger."""
    return node._sort_key

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Graphs that a process holds when it leaves a world."""
import gc
import sys

import torch


def held() -> bool:
    """Whether this process holds graphs, which may have captured collectives of torch.distributed."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()                               # get_objects() leaves out what is frozen
    gc.collect()
    found = any(issubclass(type(each), torch.cuda.CUDAGraph) for each in gc.get_objects())
    if frozen:
        gc.freeze()
    return found


def end() -> bool:
    """See Device.end_graphs."""
    found = held()
    if found and "torch._inductor.cudagraph_trees" in sys.modules:
        torch.compiler.reset()
        found = held()
    return found

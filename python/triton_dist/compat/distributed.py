# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Private names of torch.distributed."""
from typing import Any

from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d as c10d

World = c10d._World                                                     # a process's table of groups; c10d._world is in use
resolve_process_group = c10d._resolve_process_group                     # the ProcessGroup of a name
default_store = c10d._get_default_store
isolate_threads = _distributed_c10d._set_thread_isolation_mode          # whether each thread has names of groups of its own


def group_sizes() -> tuple:
    """((name, number of ranks), ...) of this rank's process groups."""
    return tuple(sorted((name, group.size()) for group, name in c10d._world.pg_names.items()))


def symmetric_memory() -> Any:
    """torch's module of symmetric memory. Raises ImportError where this build has none."""
    import torch.distributed._symmetric_memory as module
    return module


def functional_collectives() -> Any:
    """torch's module of functional collectives."""
    import torch.distributed._functional_collectives as module
    return module

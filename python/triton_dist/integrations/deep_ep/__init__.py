# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""DeepEP's interface over ep_dispatch and ep_combine: programs written for its Buffer or ElasticBuffer run without changes.

    from triton_dist.integrations import deep_ep
    buffer = deep_ep.Buffer(group, low_latency_mode=True)       # in place of `import deep_ep`

    deep_ep.install()                                           # or: `import deep_ep` gives this module from now on

What cannot be done raises an error that names the argument. docs/moe.md lists what arguments mean here.
"""
import sys
import types

import torch

from triton_dist.integrations.deep_ep.config import Config
from triton_dist.integrations.deep_ep.elastic import ElasticBuffer, EPHandle
from triton_dist.integrations.deep_ep.events import EventHandle, EventOverlap
from triton_dist.integrations.deep_ep.buffer import Buffer
from triton_dist.runtime.errors import InvalidArgument

__all__ = ["Buffer", "Config", "ElasticBuffer", "EPHandle", "EventHandle", "EventOverlap", "install", "topk_idx_t"]

topk_idx_t = torch.int64            # of expert numbers; int32 works as well


def install() -> None:
    """Has `import deep_ep` give this module. Raises InvalidArgument if the real package has been imported already."""
    here, found = sys.modules[__name__], sys.modules.get("deep_ep")
    if found not in (None, here):
        raise InvalidArgument("deep_ep: it has been imported already; call install() before")
    utils = types.ModuleType("deep_ep.utils", "triton_dist's stand-in for deep_ep.utils.")
    utils.EventHandle, utils.EventOverlap = EventHandle, EventOverlap       # type: ignore[attr-defined]
    sys.modules["deep_ep"], sys.modules["deep_ep.utils"] = here, utils

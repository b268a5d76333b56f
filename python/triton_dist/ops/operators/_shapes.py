# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What operators have in common: sizes of groups, checks of shapes, autocast, and tensors that a call is given to write to."""
from typing import Any

import torch

from triton_dist.runtime import ambient
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve


def world_of(group: str) -> int:
    """Number of ranks of the group of this name."""
    return resolve(group).size


def require(condition: Any, what: str) -> None:
    """Raises InvalidArgument unless `condition` on sizes holds; of sizes that are dynamic it becomes a guard."""
    if not condition:
        raise InvalidArgument(what)


def cast(*tensors: torch.Tensor | None) -> tuple:
    """`tensors`, of which the first is x, as autocast hands them to a linear layer."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(ambient.cast(t, dtype) for t in tensors)


def written(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """`result`, or `out` with it."""
    if out is None:
        return result
    if out.shape != result.shape or out.dtype != result.dtype:
        raise InvalidArgument("out: expected the shape and the dtype of the result; pass None to have it allocated")
    return out.copy_(result)

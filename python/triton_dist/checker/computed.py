# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What torch operations compute from unwritten memory.

`torch.where(came, rows, 0)` reads all of `rows`, and makes no use of those that have not come. So an operation that reads
unwritten numbers is run on copies too, several times, with other numbers in their places. What differs between the results
depends on unwritten memory, and counts as unwritten itself.
"""
from typing import Any, Callable, Optional

import numpy as np
import torch

# Whatever a number is compared with, two of these are on different sides.
_FILLS = (lambda of: float("nan"), lambda of: of.max, lambda of: of.min, lambda of: 0.0)


class Found:
    """Unwritten elements that an operation is about to read. mask: bool, of the tensor's shape. where, text: of a report."""

    def __init__(self, tensor: torch.Tensor, mask: np.ndarray, where: list, text: str):
        self.tensor, self.mask, self.where, self.text = tensor, mask, where, text


class Trial:
    """Runs of one operation on copies of what it reads and writes."""

    def __init__(self, func: Any, args: tuple, kwargs: dict, found: list[Found], written: list[torch.Tensor]):
        self.func, self.written = func, written
        self._runs = [(_replaced((args, kwargs), copies), [copies[id(t)] for t in written])
                      for copies in ({**{id(t): t.clone() for t in written}, **{id(f.tensor): _filled(f, fill) for f in found}}
                                     for fill in _FILLS)]

    def differing(self, out: Any) -> Optional[list[tuple]]:
        """[(tensor, bool of its shape)] of the operation's results and of what it wrote: which elements differ.

        None where it refuses some numbers, or their shapes differ: then the host has used them.
        """
        try:
            runs = [[*_flat(self.func(*args, **kwargs)), *copies] for (args, kwargs), copies in self._runs]
        except RuntimeError:
            return None
        found = []
        for t, first, *others in zip([*_flat(out), *self.written], *runs):
            if any(one.shape != t.shape for one in (first, *others)):
                return None
            mask = torch.stack([~_same(first, other) for other in others]).any(0)
            if mask.any():
                found.append((t, mask))
        return found


def follows(func: Any, found: list[Found]) -> bool:
    """Whether results of an operation can be compared: it has no random numbers, and reads floating-point ones."""
    return (func.namespace == "aten" and torch.Tag.nondeterministic_seeded not in func.tags
            and all(f.tensor.is_floating_point() for f in found))


def _filled(found: Found, fill: Callable) -> torch.Tensor:
    copy, mask, value = found.tensor.clone(), torch.from_numpy(found.mask), fill(torch.finfo(found.tensor.dtype))
    if copy.element_size() > 1:
        copy.masked_fill_(mask, value)
    else:                                               # torch fills no float8
        copy.view(torch.uint8).masked_fill_(mask, torch.tensor([value]).to(copy.dtype).view(torch.uint8).item())
    return copy


def _replaced(value: Any, copies: dict) -> Any:
    """Arguments with their tensors replaced."""
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(v, copies) for v in value)
    if isinstance(value, dict):
        return {name: _replaced(v, copies) for name, v in value.items()}
    return copies.get(id(value), value)


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def _flat(out: Any) -> list[torch.Tensor]:
    return [t for t in (out if isinstance(out, (tuple, list)) else (out, )) if isinstance(t, torch.Tensor)]

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which rows or columns of a full weight a rank takes."""
from typing import Any

import torch

from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group


class Shards:
    """How `total` rows or columns of a weight are divided over a group: each part by itself, in whole units.

    parts: sizes of what the weight holds one after the other, or None: it is one part. unit: what is never cut, one for all
    parts or one for each. repeats: whether a part of fewer units than ranks may be held by several ranks each.
    Raises InvalidArgument where ranks could not get what belongs together.
    """

    def __init__(self, total: int, group: Group, parts: Any = None, unit: Any = None, repeats: bool = False):
        self.starts: list = []                  # of each part, this rank's first row or column in the whole
        self.sizes: list = []                   # and how many it has
        self.shared = False                     # whether ranks hold a part more than once
        whole = [total] if parts is None else _sizes("parts", parts)
        if sum(whole) != total:
            raise InvalidArgument(f"parts: expected sizes that add up to {total}, as many as the weight has, found {whole}")
        units = _sizes("unit", unit, len(whole)) if unit is not None else [1] * len(whole)
        for size, each in zip(whole, units):
            if size % each:
                raise InvalidArgument(f"unit: expected a size that divides each part, found {each} for a part of {size}")
        counts = [size // each for size, each in zip(whole, units)]
        alike, before = len(set(counts)) == 1, 0
        for size, each, count in zip(whole, units, counts):
            first, number = self._of_rank(count, group, alike, repeats and unit is not None)
            self.shared |= not alike and count < group.size
            self.starts.append(before + first * each)
            self.sizes.append(number * each)
            before += size

    @staticmethod
    def _of_rank(count: int, group: Group, alike: bool, repeats: bool) -> tuple[int, int]:
        """(first unit, number of units) of this rank, of a part of `count` units."""
        each, more = divmod(count, group.size)
        if alike or not more:                   # parts with equally many units are divided alike, so what belongs together stays
            return group.rank * each + min(group.rank, more), each + (group.rank < more)
        if repeats and count and group.size % count == 0:
            return group.rank * count // group.size, 1
        raise InvalidArgument(f"parts: a part of {count} units cannot be divided over {group.size} ranks so that what belongs "
                              "together stays on one rank: parts of different numbers of units need numbers divisible by "
                              "the ranks" + (", or of which the ranks are a multiple" if repeats else "")
                              + "; use another number of ranks")

    def take(self, t: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """This rank's shard of `t`, a copy: its rows (dim 0) or columns (dim 1) of each part, one part after the other."""
        return torch.cat([t.detach().narrow(dim, start, size) for start, size in zip(self.starts, self.sizes)], dim)


    def parameter(self, p: torch.Tensor | None, dim: int = 0) -> torch.nn.Parameter | None:
        """The shard of a parameter, which is trained if that is. What several ranks hold is not: it would come apart."""
        if p is None:
            return None
        return torch.nn.Parameter(self.take(p, dim), requires_grad=p.requires_grad and not self.shared)


def _sizes(name: str, value: Any, count: int | None = None) -> list:
    """Positive whole numbers: a list of `count` of them, or where `count` is given one number for all."""
    values = [value] * count if count is not None and isinstance(value, int) else value
    good = isinstance(values, (list, tuple)) and values and all(type(size) is int and size > 0 for size in values)
    if not good or count not in (None, len(values)):
        wanted = "a list of sizes above 0" if count is None else f"a size above 0, or a list of {count}"
        raise InvalidArgument(f"{name}: expected {wanted}, found {value!r}")
    return list(values)

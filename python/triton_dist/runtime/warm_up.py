# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Making ready for numbers of rows that have not come yet."""
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch

from triton_dist.runtime import ambient
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state

_ALIGNED = 16                   # bytes: torch's library has other kernels for operands at other addresses


def warm_up(call: Callable[[int], Any], rows: Sequence[int]) -> list[int]:
    """Makes ready for calls with any of these numbers of rows. Collective: all ranks call it alike.

    A first call with some number of rows may have to compile a kernel and to wait for the other ranks. After this, calls with
    a number in `rows` do neither. `call` runs with the largest number first, so that buffers have their final size. Then come
    the numbers that divide by the size of the world, and those of each other remainder, since ops may treat them differently.
    Between two numbers whose ops ran in different ways `call` runs with the one halfway, and so on until all ways are known.
    That a way which serves two numbers serves those between them is taken for granted. A way that is not fused is called at
    numbers a tenth apart, since the group's own collective may run in other ways. Its matmul by torch is then made alone, with
    each number of rows between the fewest and the most of the calls: torch's library takes kernels by that number, and loads
    each at its first use, which takes milliseconds. Other matmuls that `call` makes are not known here.

    Args:
        call: makes the calls to prepare, with as many rows as it is given: one op, a layer, or a model. Its result is dropped.
        rows: numbers in increasing order.

    Returns:
        The numbers that `call` was run with, in that order.

    Raises:
        InvalidArgument: `rows` is empty or does not increase.

    Example:
        x = torch.zeros(8192, 4096, dtype=torch.bfloat16, device="cuda")
        triton_dist.warm_up(lambda rows: ag_gemm(x[:rows], weight), range(1, 8193))
    """
    if not len(rows) or any(a >= b for a, b in zip(rows, rows[1:])):
        raise InvalidArgument(f"rows: expected numbers in increasing order, at least one, found {rows!r}")
    ways: dict[int, list] = {}

    def way(number: int) -> list:
        if number not in ways:
            ways[number] = _ways_of(lambda: call(number))
        return ways[number]

    def same_between(low: int, high: int) -> bool:
        """Whether numbers between these two, which have been called, need nothing that has not been made ready."""
        if way(low) != way(high):
            return False
        unfused = any(choice.method == "unfused" for _, _, choice, _ in way(low))
        return not unfused or high <= 1.1 * low or any(low < number < high and ways[number] == way(low) for number in ways)

    me, size = state(), resolve().size
    me.products = products = Products()
    try:
        way(rows[-1])
        for remainder in range(size):
            alike = [number for number in rows if number % size == remainder]
            intervals = [(0, len(alike) - 1)] if alike else []
            while intervals:
                low, high = intervals.pop()
                if not same_between(alike[low], alike[high]) and high - low > 1:
                    middle = (low + high) // 2
                    intervals += [(low, middle), (middle, high)]
    finally:
        me.products = None
    if len(ways) < len(rows):
        products.make_ready()
    return list(ways)


class Products:
    """The matmuls that ops leave to torch, and whose kernels torch's library has not loaded for all numbers of rows."""

    def __init__(self) -> None:
        self._found: dict[tuple, _Product] = {}

    def note(self, x: torch.Tensor, weight: torch.Tensor, step: int) -> None:
        """x [M, K] is multiplied by weight [N, K]. Other M are multiples of `step`."""
        layout = tuple((t.dtype, t.shape[1], t.stride(), t.data_ptr() % _ALIGNED) for t in (x, weight))
        found = self._found.setdefault((layout, weight.shape[0], step), _Product(x.shape[0], x, weight, step))
        found.least = min(found.least, x.shape[0])
        if x.shape[0] > found.x.shape[0]:
            found.x, found.weight = x, weight

    def make_ready(self) -> None:
        """Multiplies with each number of rows between the fewest and the most. Results are dropped."""
        with ambient.clean():
            for each in self._found.values():
                out = each.x.new_empty((each.x.shape[0], each.weight.shape[0]))
                for rows in range(each.least, each.x.shape[0] + 1, each.step):
                    torch.matmul(each.x[:rows], each.weight.t(), out=out[:rows])


@dataclass
class _Product:
    """least: the fewest rows. x, weight: of the call with the most."""
    least: int
    x: torch.Tensor
    weight: torch.Tensor
    step: int


def _ways_of(call: Callable[[], Any]) -> list:
    """How the ops in `call` run: for each its name, what the ranks have agreed on but for rows, and the way that was chosen."""
    me = state()
    me.doubt()                              # calls that are known are looked at again
    me.watched = found = []
    try:
        call()
    finally:
        me.watched = None
    return found

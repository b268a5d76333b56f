# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Making ready for numbers of rows that have not come yet."""
from dataclasses import dataclass
from collections.abc import Sequence
from typing import Any, Callable

import torch

from triton_dist.runtime import ambient
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state

_ALIGNED = 16                   # bytes: torch's library has other kernels for operands at other addresses


def warm_up(call: Callable[[int], Any], rows: Sequence[int]) -> list[int]:
    """Prepares calls with any of these numbers of rows. Collective: all ranks call it with the same arguments.

    A first call with a new number of rows may have to compile a kernel and wait for the other ranks. After warm_up, calls with
    a number in `rows` do neither. `call` first runs with the largest number, so that buffers get their final size. Then it runs
    with multiples of the world size, and with numbers of each other remainder, since ops may treat them differently. If ops ran
    in different ways for two numbers, `call` also runs with the number halfway, until all ways are known. warm_up assumes that
    a way which serves two numbers also serves those between them. Unfused calls run at numbers that are 10 % apart, since the
    group's own collective may change its algorithm. Then their torch matmul runs alone with each number of rows between the
    smallest and the largest of these: cuBLAS picks a kernel by that number and loads it at its first use, which takes
    milliseconds. warm_up does not know the other matmuls that `call` makes.

    Args:
        call: makes the calls to prepare, with as many rows as it is given: one op, a layer, or a model. Its result is dropped.
        rows: numbers in increasing order.

    Returns:
        The numbers that `call` was run with, in that order.

    Raises:
        InvalidArgument: `call` is no function, or `rows` are no whole numbers that increase.

    Example:
        x = torch.zeros(8192, 4096, dtype=torch.bfloat16, device="cuda")
        triton_dist.warm_up(lambda rows: ag_gemm(x[:rows], weight), range(1, 8193))
    """
    if not callable(call):
        raise InvalidArgument(f"call: expected a function of a number of rows, found {call!r}")
    if (not isinstance(rows, Sequence) or not len(rows) or not all(isinstance(number, int) for number in rows) or rows[0] < 0
            or any(a >= b for a, b in zip(rows, rows[1:]))):
        raise InvalidArgument(f"rows: expected numbers in increasing order, whole and at least 0, one or more, found {rows!r}")
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
    return [way for place, way in enumerate(found) if way not in found[:place]]         # layers of a model are alike

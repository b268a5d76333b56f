# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ranges of memory that may be touched, and single words in them."""
import ctypes
from typing import Any, Callable

import numpy as np
import torch

from triton_dist.backends.emulator.values.promotion import Info

_WORDS = {"int1": ctypes.c_uint8, "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32,
          "int64": ctypes.c_int64, "uint8": ctypes.c_uint8, "uint16": ctypes.c_uint16, "uint32": ctypes.c_uint32,
          "uint64": ctypes.c_uint64, "fp32": ctypes.c_float, "fp64": ctypes.c_double}


class Segment:
    """`nbytes` of memory at `base`. Views of it are made on first use and copy nothing."""

    def __init__(self, base: int, nbytes: int, name: str, rank: int):
        self.base, self.nbytes, self.end, self.name, self.rank = base, nbytes, base + nbytes, name, rank
        self.owner: Any = None               # weak reference to the storage of a registered tensor
        self._views: dict = {}

    def view(self, dtype: torch.dtype) -> tuple:
        """(1-d tensor of all aligned elements, address of the first)."""
        found = self._views.get(dtype)
        if found is None:
            start = self.base + -self.base % dtype.itemsize
            count = max(0, self.end - start) // dtype.itemsize
            raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(start)
            flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype) if count else torch.empty(0, dtype=dtype)
            found = self._views[dtype] = flat, start
        return found

    def __str__(self) -> str:
        return f"{self.name} ({'rank %d, ' % self.rank if self.rank >= 0 else ''}{self.nbytes} bytes)"


class _Element:
    """A word that ctypes has no type for (fp16, bf16, fp8)."""
    __slots__ = ("flat", "index")

    def __init__(self, flat: torch.Tensor, index: int):
        self.flat, self.index = flat, index

    @property
    def value(self) -> float:
        return self.flat[self.index].item()

    @value.setter
    def value(self, value: float) -> None:
        self.flat[self.index] = value


def word_at(segment: Segment, address: int, known: Info) -> Any:
    """What reads and writes the word at an address of a segment, as `value`."""
    word = _WORDS.get(known.ty.name) if not known.pointer else ctypes.c_int64
    if word is not None:
        return word.from_address(address)
    flat, start = segment.view(known.torch)
    return _Element(flat, (address - start) // known.size)


def rounds(index: torch.Tensor, update: Callable, flat: torch.Tensor) -> torch.Tensor:
    """Applies `update(elements, operands)` so that equal indices come in separate rounds; the values seen."""
    old, left = torch.empty(index.shape, dtype=flat.dtype), np.arange(index.numel())
    keys = index.numpy()
    while left.size:
        _, first = np.unique(keys[left], return_index=True)
        now = torch.from_numpy(np.sort(left[first]))
        at = index[now]
        old[now] = flat[at]
        update(at, now)
        left = np.delete(left, first)
    return old

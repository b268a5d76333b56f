# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is traced: one call of an op with random operands, or a function of a script."""
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch

from triton_dist.ops import ag_gemm, gemm_rs
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.streams import device

OPS = ("ag_gemm", "gemm_rs")


@dataclass(frozen=True)
class Call:
    """What a rank calls. what: an op, or path.py:function. m, n, k: global sizes. options: what the op takes beside tensors."""
    what: str
    m: int
    n: int
    k: int
    options: dict

    @property
    def words(self) -> str:
        """One line for titles."""
        if self.what not in OPS:
            return self.what
        given = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"{self.what} M={self.m} N={self.n} K={self.k}{given}"

    def made(self) -> Callable[[], Any]:
        """A function that makes the call on this rank. The world has been joined."""
        if self.what not in OPS:
            return _function(self.what)
        group = resolve(None)
        if self.m % group.size or (self.n if self.what == "ag_gemm" else self.k) % group.size:
            raise InvalidArgument(f"{self.words}: expected M, and the sharded one of N and K, as multiples of {group.size} ranks")
        rows, n, k = self.m, self.n, self.k
        if self.what == "ag_gemm":
            rows, n = self.m // group.size, self.n // group.size
        else:
            k = self.k // group.size
        x, weight = (_random(group.rank + seed, size, k) for seed, size in ((0, rows), (100, n)))
        op = {"ag_gemm": ag_gemm, "gemm_rs": gemm_rs}[self.what]
        return lambda: op(x, weight, **self.options)


def _random(seed: int, rows: int, columns: int) -> torch.Tensor:
    made = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return made.to(torch.bfloat16).to(device())


def _function(word: str) -> Callable[[], Any]:
    place, _, name = word.rpartition(":")
    path = Path(place)
    if path.suffix != ".py" or not name:
        raise InvalidArgument(f"expected one of {', '.join(OPS)}, or path.py:function, found {word!r}")
    if not path.is_file():
        raise InvalidArgument(f"{word}: there is no file {path}")
    key = f"tdist_traced_{path.stem}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, path)
        sys.modules[key] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[key])
    found = getattr(sys.modules[key], name, None)
    if not callable(found):
        raise InvalidArgument(f"{word}: {path} has no function {name}")
    return found

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is traced: one call of an op with random operands, or a function of a script."""
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch

from triton_dist.bench.any_op import arguments
from triton_dist.bench.shapes import Shape
from triton_dist.ops import OPS, ep_combine, ep_dispatch
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve

# Ops whose kernels record, and which of their sizes must be multiples of the number of ranks.
TRACED = {"ag_gemm": "mn", "gemm_rs": "mk", "gemm_ar": "k", "gemm_ar_rmsnorm": "k",
          "all_reduce": "", "all_gather": "m", "reduce_scatter": "m",
          "all_reduce_rmsnorm": "", "all_reduce_layernorm": "", "all_reduce_rmsnorm_quant": "",
          "all_to_all_single": "m", "all_to_all_vdev": "m", "all_to_all_vdev_2d": "m", "all_to_all_vdev_2d_offset": "m",
          "ep_dispatch": "", "ep_combine": "", "grouped_gemm": "", "rmsnorm_gemm": ""}


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
        if self.what not in TRACED:
            return self.what
        given = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"{self.what} M={self.m} N={self.n} K={self.k}{given}"

    @property
    def local(self) -> bool:
        """Whether each rank calls an op for itself, so that nothing is sent."""
        return self.what in TRACED and OPS[self.what].local

    def made(self) -> Callable[[], Any]:
        """A function that makes the call on this rank. The world has been joined."""
        if self.what not in TRACED:
            return _function(self.what)
        group = resolve(None)
        sharded = TRACED[self.what]
        if any(getattr(self, size) % group.size for size in sharded):
            names = " and ".join(sharded.upper())
            raise InvalidArgument(f"{self.words}: expected {names} as multiples of {group.size} ranks")
        op, shape, options = OPS[self.what], Shape(self.words, self.m, self.n, self.k), dict(self.options)
        combines = self.what == "ep_combine"            # it sums rows that a dispatch has brought from all ranks
        layout = {"layout": options.pop("layout")} if combines and "layout" in options else {}
        unknown = set(options) - set(inspect.signature(ep_combine if combines else op.function).parameters)
        if unknown:
            raise InvalidArgument(f"{self.what} does not take {', '.join(sorted(unknown))}")
        if combines:
            came = ep_dispatch(**arguments(OPS["ep_dispatch"], shape, torch.bfloat16, group), **layout)
            return lambda: ep_combine(came.x, came.handle, **options)
        given = arguments(op, shape, torch.bfloat16, group)
        return lambda: op.function(**given, **options)


def _function(word: str) -> Callable[[], Any]:
    place, _, name = word.rpartition(":")
    path = Path(place)
    if path.suffix != ".py" or not name:
        raise InvalidArgument(f"expected one of {', '.join(TRACED)}, or path.py:function, found {word!r}")
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

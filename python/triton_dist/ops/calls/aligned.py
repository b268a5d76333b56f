# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Operands that a device's core cannot read or write: copied where the core was asked for, else the portable kernel runs."""
from typing import Any

import torch

from triton_dist.ops.calls import checks, log

_BYTES = 16                     # of which addresses and row strides are multiples


def served(op: str, core: Any, asked: bool, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> tuple[bool, bool]:
    """(whether `core` runs a call on this rank's tensors, whether on copies of some of them).

    asked: whether the caller named the core's method. Without that the portable kernel serves tensors that the core cannot
    read, and a warning says so once. Other ranks do not notice: buffers, flags and tiling are the same.
    """
    if core is None or not x.numel() * weight.numel() * out.numel():
        return False, False                                 # without elements the core has nothing to do
    wrong = [name for name, t in (("x", x), ("weight", weight), ("out", out)) if not core.accepts(t)
             and not (name == "weight" and core.accepts_columns(t))]
    if wrong and not asked:
        _warn(op, wrong, x, weight, out)
        return False, False
    return True, bool(wrong)


def weight_for(core: Any, weight: torch.Tensor) -> torch.Tensor:
    """`weight` [N, K] with contiguous rows, or as it is where `core` reads contiguous columns as well."""
    if weight.stride(1) == 1 or core is not None and core.accepts_columns(weight):
        return weight
    return checks.rows_contiguous(weight)


def readable(core: Any, t: torch.Tensor) -> torch.Tensor:
    """`t`, or a copy of it that `core` accepts."""
    return t if core.accepts(t) else room(t).copy_(t)


def room(like: torch.Tensor) -> torch.Tensor:
    """A tensor of the shape and dtype of `like` [rows, columns], rows of which begin at aligned addresses."""
    rows, columns = like.shape
    each = _BYTES // like.element_size()
    return like.new_empty((rows, -(-columns // each) * each))[:, :columns]


def _warn(op: str, wrong: list, *tensors: torch.Tensor) -> None:
    found = [f"{name} begins at {t.data_ptr():#x} and its rows are {t.stride(0) * t.element_size()} bytes apart"
             for name, t in zip(("x", "weight", "out"), tensors) if name in wrong]
    log.fallback((op, "misaligned", *wrong), f"triton_dist.{op} runs the portable kernel on this rank instead of the faster "
                 f"'ws', which needs addresses and row strides of a multiple of {_BYTES} bytes: {', '.join(found)}; pass aligned "
                 "tensors, pad the columns, or ask for method='ws', which copies")

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The order of rows. Ops take matrices whose rows are divided over ranks; models have a sequence and a batch dimension.

Rows that are divided over ranks are those of the sequence, so it must be the slowest dimension of the matrix: [S, B, H] is one as
it lies. Of [B, S, H] with B > 1 a copy is made in which S comes first, and results are views that have it second again.
"""
import math
from typing import Any

import torch

from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve


def dimension(dim: Any) -> int:
    """`dim`, the dimension that ranks divide. Raises InvalidArgument for one that is not counted from the first."""
    if type(dim) is not int or dim < 0:
        raise InvalidArgument(f"sequence_dim: expected a dimension counted from the first, such as 0 or 1, found {dim!r}")
    return dim


def matrix_of(x: torch.Tensor) -> tuple[int, int]:
    """The sizes of x [..., K] as a matrix. K may be 0, of which torch's -1 makes nothing."""
    return math.prod(x.shape[:-1]), x.shape[-1]


def matrix(x: torch.Tensor) -> torch.Tensor:
    """x [..., K] as a matrix [rows, K]."""
    return x.reshape(matrix_of(x))


def flat(x: torch.Tensor, dim: int) -> torch.Tensor:
    """x [..., K] as a matrix [rows, K], dimension `dim` slowest."""
    if not isinstance(x, torch.Tensor) or x.ndim == 2 and dim == 0:
        return x                                # ops say what is wrong with what is no tensor
    if x.ndim < 2 or not 0 <= dim < x.ndim - 1:
        raise InvalidArgument(f"x: expected the sequence in dimension {dim} and features in the last one, found shape "
                              f"{list(x.shape)}; set layer.sequence_dim")
    return x.movedim(dim, 0).flatten(0, -2)


def shaped(y: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """The matrix y [rows', N] with the dimensions of x [..., K] that it was computed from; the sequence is as long as fits."""
    if x.ndim == 2:
        return y
    others = list(x.shape[:-1])
    del others[dim]
    if y.shape[0] % max(math.prod(others), 1):
        raise InvalidArgument(f"x: expected a sequence divisible by the group size, found shape {list(x.shape)}; pad it")
    return y.unflatten(0, (y.shape[0] // max(math.prod(others), 1), *others)).movedim(0, dim)


def must_divide(x: torch.Tensor, dim: int, group: Any) -> None:
    """Raises InvalidArgument for a sequence that ranks cannot divide. While a graph is made, the op's fake and `shaped` do."""
    if isinstance(x, torch.Tensor) and x.ndim > 2 and not torch.compiler.is_compiling() and x.shape[dim] % resolve(group).size:
        raise InvalidArgument(f"x: expected a sequence divisible by the group size, found shape {list(x.shape)} with the "
                              f"sequence in dimension {dim}; pad it")


def written(out: torch.Tensor | None, x: torch.Tensor, dim: int) -> torch.Tensor | None:
    """`out` as a matrix. Raises InvalidArgument where that would be a copy."""
    if out is None or not isinstance(out, torch.Tensor) or x.ndim == 2:
        return out
    if not out.movedim(dim, 0).is_contiguous():
        raise InvalidArgument("out: expected a tensor that is contiguous with the sequence dimension first; leave it out")
    return flat(out, dim)

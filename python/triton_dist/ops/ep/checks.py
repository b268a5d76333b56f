# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Argument checks that dispatch and combine share."""
from typing import Any

import torch

from triton_dist.ops.calls import checks
from triton_dist.ops.ep.chunks import MOST_CHOICES, MOST_EACH, most_chunks
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group


def choices(topk_ids: Any, rows: int | None, name: str = "topk_ids") -> None:
    """topk_ids: int32 or int64 [rows, K], contiguous. rows: None where any number will do. name: what users call it."""
    shape = tuple(topk_ids.shape) if isinstance(topk_ids, torch.Tensor) else ()
    if len(shape) != 2 or rows is not None and shape[0] != rows:
        found = f"shape {list(shape)}" if isinstance(topk_ids, torch.Tensor) else type(topk_ids).__name__
        raise InvalidArgument(
            f"{name}: expected int32 or int64 [{'T' if rows is None else rows}, K], the experts of each token, "
            f"found {found}")
    checks.counts(name, topk_ids, shape)
    if not 1 <= shape[1] <= MOST_CHOICES:
        raise InvalidArgument(f"{name}: expected 1 to {MOST_CHOICES} experts a token, found {shape[1]}")


def experts(num_experts: Any, group: Group) -> None:
    """A number of experts that ranks can share equally."""
    checks.size("num_experts", num_experts)
    if num_experts < 1 or num_experts % group.size:
        raise InvalidArgument(
            f"num_experts: expected a number divisible by the {group.size} ranks, found {num_experts}; add "
            "experts that no token chooses")


def most_tokens(max_tokens: Any, tokens: int) -> int:
    """How many tokens a rank may have, which all ranks agree on."""
    if max_tokens is None:
        return tokens
    checks.size("max_tokens", max_tokens)
    if tokens > max_tokens:
        raise InvalidArgument(f"max_tokens: expected at least as many as this rank has, {tokens}, found {max_tokens}")
    return max_tokens


def too_many(max_tokens: int) -> str | None:
    """Why no kernel serves this many tokens, if none does."""
    most = MOST_EACH * most_chunks()
    return f"kernels take at most {most} tokens of a rank" if max_tokens > most else None


def floats(name: str, t: Any, shape: tuple) -> None:
    """A contiguous fp32 tensor of this shape, or None."""
    if t is None:
        return
    checks.tensor(name, t, any_dtype=True)
    if t.dtype != torch.float32 or tuple(t.shape) != shape or not t.is_contiguous():
        raise InvalidArgument(
            f"{name}: expected a contiguous float32 tensor of shape {list(shape)}, found {t.dtype} of shape "
            f"{list(t.shape)}, strides {list(t.stride())}")

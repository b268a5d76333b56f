# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What both of DeepEP's buffers make of a dispatch: counts, places and origins of rows, all on the device."""
from typing import Any

import torch

from triton_dist.ops import EPDispatched
from triton_dist.ops.calls import checks
from triton_dist.ops.ep import checks as ep_checks
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group

_REFUSED = 1 << 62                      # in place of a number of tokens


def unpacked(x: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(rows, their scales [T, S] as float32 or None), of rows or of (fp8 rows, scales of float32 or packed int32)."""
    if not isinstance(x, tuple):
        return x, None
    if len(x) != 2:
        raise InvalidArgument(f"x: expected rows, or (rows, scales), found a tuple of {len(x)}")
    rows, scales = x
    for name, t in (("x[0]", rows), ("x[1]", scales)):
        if not isinstance(t, torch.Tensor):
            raise InvalidArgument(f"{name}: expected a torch.Tensor, rows and their scales, found {type(t).__name__}")
    scales = (scales if scales.ndim == 2 else scales.unsqueeze(1)).contiguous()
    return rows, scales.view(torch.float32) if scales.dtype == torch.int32 else scales


def repacked(rows: torch.Tensor, scales: torch.Tensor | None, given: Any) -> Any:
    """Rows, or (rows, scales) in the dtype of the given ones."""
    if not isinstance(given, tuple) or scales is None:
        return rows
    return rows, scales.view(given[1].dtype)


def number_of(tokens: torch.Tensor, width: int) -> torch.Tensor:
    """float32 [T, width] whose bits are each token's number. They travel as scales or weights, which no kernel computes with."""
    numbers = torch.arange(len(tokens), dtype=torch.int32, device=tokens.device)
    return numbers[:, None].expand(-1, width).contiguous().view(torch.float32)


def rows_by_source(told: torch.Tensor, world: int, chunks: int) -> torch.Tensor:
    """int64 [W]: rows that came from each rank."""
    return (told[1:1 + world * chunks].view(world, chunks) & 0xFFFF).sum(1)


def source_of_rows(by_source: torch.Tensor, rows: int) -> torch.Tensor:
    """int64 [rows]: the rank that each row came from; W for rows that nothing came for."""
    return torch.searchsorted(by_source.cumsum(0), torch.arange(rows, device=by_source.device), right=True)


def counts_of(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """int32 [experts]: how often each expert is chosen in `ids`; other numbers do not count. Does not wait for the device."""
    valid = (ids >= 0) & (ids < experts)
    where = torch.where(valid, ids, experts).reshape(-1).long()
    found = torch.zeros(experts + 1, dtype=torch.int32, device=ids.device)
    return found.scatter_add_(0, where, torch.ones_like(where, dtype=torch.int32))[:experts]


def scattered(values: torch.Tensor, positions: torch.Tensor, rows: int, fill: Any) -> torch.Tensor:
    """[rows]: values [R, K] at positions [R, K], where they are not -1; `fill` elsewhere."""
    found = torch.full((rows + 1,), fill, dtype=values.dtype, device=values.device)
    where = torch.where(positions >= 0, positions, rows).reshape(-1).long()
    return found.scatter_(0, where, values.reshape(-1))[:rows]


def aligned(counts: torch.Tensor, align: int) -> torch.Tensor:
    """Counts, each rounded up to a multiple."""
    return (counts + (align - 1)) // align * align


def weights_back(weights: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """float32 [R, K]: of weights [rows by expert] that of each choice, 0 where there is none."""
    with_none = torch.cat([weights, weights.new_zeros(1)])              # there may be no rows
    return with_none[torch.where(positions >= 0, positions, len(weights)).long()]


def tokens_of(x: Any, ids: Any, weights: Any) -> int:
    """Refuses what a dispatch does not take. Gives the number of rows."""
    values, scales = unpacked(x)
    checks.tensor("x", values, ndim=2, any_dtype=True)
    if scales is not None:
        ep_checks.floats("x[1]", scales, (len(values), scales.shape[1]))
    ep_checks.choices(ids, len(values), "topk_idx")
    if weights is not None:
        weights_of(weights, len(values), ids.shape[1])
    return len(values)


def weights_of(weights: Any, *shape: int | None) -> None:
    """Raises InvalidArgument unless weights are float32 of this shape. None stands for any size."""
    found = f"{weights.dtype} of shape {list(weights.shape)}" if isinstance(weights, torch.Tensor) else type(weights).__name__
    sizes = tuple(weights.shape) if isinstance(weights, torch.Tensor) and weights.dtype == torch.float32 else ()
    if len(sizes) != len(shape) or any(size not in (None, own) for size, own in zip(shape, sizes)):
        wanted = ", ".join("K" if size is None else str(size) for size in shape)
        raise InvalidArgument(f"topk_weights: expected float32 [{wanted}], found {found}")


def stats_of(stats: Any, experts: int) -> None:
    """Raises InvalidArgument for what the rows of this many experts cannot be added to, before any are sent."""
    if stats is None:
        return
    if not isinstance(stats, torch.Tensor) or stats.dtype != torch.int32 or tuple(stats.shape) != (experts,):
        found = f"{stats.dtype} of shape {list(stats.shape)}" if isinstance(stats, torch.Tensor) else type(stats).__name__
        raise InvalidArgument(f"cumulative_local_expert_recv_stats: expected None or int32 [{experts}], found {found}")


def alignment(name: str, value: Any) -> None:
    """Refuses what numbers of rows cannot be rounded up to a multiple of."""
    checks.size(name, value)
    if not value:
        raise InvalidArgument(f"{name}: expected a whole number of at least 1, found 0")


def most_tokens(members: Group, tokens: int | None, device: Any) -> int:
    """The most tokens of any rank, rounded up to a power of two so that few different sizes occur. The host waits.

    tokens: None where this rank refuses the call. Then no rank makes it: the others raise InvalidArgument, and so must this one.
    """
    most = torch.tensor([_REFUSED if tokens is None else tokens], dtype=torch.int64, device=device)
    members.all_reduce_tensor(most, "max")
    found = int(most)
    if found == _REFUSED and tokens is not None:
        raise InvalidArgument("dispatch: another rank has refused this call, and says why; nothing was sent")
    return 1 << max(0, found - 1).bit_length()


def added_bias(bias: Any) -> torch.Tensor | None:
    """The bias that a combine adds. A tuple holds two that are summed; either may be None, and so may `bias`."""
    given = [t for t in (bias if isinstance(bias, tuple) else (bias,)) if t is not None]
    if len(given) < 2:
        return given[0] if given else None
    return (given[0].float() + given[1].float()).to(given[0].dtype)


def bias_of(bias: Any, rows: int, row: Any) -> None:
    """Refuses what added_bias does not take, for sums of `rows` tokens like those of `row`."""
    if isinstance(bias, tuple) and len(bias) != 2:
        raise InvalidArgument(f"bias: expected None, a tensor or two of them, found a tuple of {len(bias)}")
    for t in bias if isinstance(bias, tuple) else (bias,):
        if t is not None:
            checks.tensor("bias", t, like=row, ndim=2)
            if tuple(t.shape) != (rows, row.shape[-1]):
                raise InvalidArgument(f"bias: expected shape {[rows, row.shape[-1]]}, found {list(t.shape)}")


def column_major(scales: torch.Tensor, align: int = 1) -> torch.Tensor:
    """Memory for scales [..., rows, S] whose rows are neighbours, as TMA wants it; a column begins at a multiple of `align`."""
    *rest, rows, width = scales.shape
    padded = -(-rows // align) * align
    return scales.new_empty((*rest, width, padded)).transpose(-1, -2)[..., :rows, :]


def chunks_of(came: EPDispatched, world: int) -> int:
    """Chunks of each rank's tokens."""
    local = 0 if came.expert_rows is None else 2 * came.expert_rows.numel() + 1
    return (came.handle.told.numel() - 1 - local) // world


def power_of_two_scales(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(x [T, H] as float8_e4m3fn, float32 scales [T, H / 128]), where scales are the next power of two of amax / 448."""
    values = x.float().unflatten(1, (-1, 128))
    most = values.abs().amax(-1).clamp_min(1e-4) * (1.0 / 448.0)
    mantissa, exponent = torch.frexp(most)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)
    scales = torch.ldexp(torch.ones_like(most), exponent)
    scaled = (values / scales.unsqueeze(-1)).clamp(-448.0, 448.0)
    return scaled.to(torch.float8_e4m3fn).view(x.shape), scales


def exponents(scales: torch.Tensor) -> torch.Tensor:
    """int32 [..., S / 4]: the exponents of float32 scales that are powers of two, a byte each (UE8M0)."""
    bits = (scales.contiguous().view(torch.int32) >> 23).to(torch.uint8)
    return bits.contiguous().view(torch.int32)

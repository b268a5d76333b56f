# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The choice of experts from logits, as one kernel: torch takes ten for it, which small batches wait for."""
import torch
import triton
import triton.language as tl

from triton_dist.ops.exchange.sizes import power_of_two
from triton_dist.runtime import ambient
from triton_dist.runtime.backend import backend
from triton_dist.runtime.jit import jit
from triton_dist.runtime.state import state

_AT_ONCE = 512          # logits of a program, which has one warp
_MOST = 2048            # experts
_ALIGNMENT = 16         # bytes of addresses
_compiled: set = set()  # what the kernel has been launched for outside of graph capture, inside which none is compiled


def supports(logits: torch.Tensor, groups: int) -> bool:
    """Whether the kernel can take them: this process has what kernels run on, and nothing records what happens to them."""
    if (type(logits) is not torch.Tensor or torch.compiler.is_compiling() or state().world is None
            or ambient.is_followed((logits, )) or logits.ndim != 2):
        return False
    experts = logits.shape[1]
    fits = experts <= _MOST and (groups == 1 or power_of_two(experts) == experts and power_of_two(groups) == groups)
    return fits and logits.dtype in (torch.float16, torch.bfloat16, torch.float32) and logits.device == backend().device()


def chosen(logits: torch.Tensor, top_k: int, bias: torch.Tensor | None, *, sigmoid: bool, normalize: bool, scale: float,
           groups: int, top_groups: int, top2: bool) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(ids int32 [T, top_k], weights fp32 [T, top_k]) of logits [T, E], best first; of equal ones the lower number first.

    Without gradients. None where torch has to choose.
    """
    if not supports(logits, groups):
        return None
    tokens, experts = logits.shape
    padded = power_of_two(experts)
    rows = max(1, _AT_ONCE // padded)
    options = dict(K=top_k, CHOICES=power_of_two(top_k), EXPERTS=padded, GROUPS=groups, TOP_GROUPS=top_groups, TOP2=top2,
                   SIGMOID=sigmoid, NORMALIZE=normalize, BIASED=bias is not None, ROWS=rows, num_warps=1 if padded <= 1024 else 4)
    given, shift = logits.detach().contiguous(), None if bias is None else bias.float().resolve_neg().contiguous()
    aligned = [None if t is None else t.data_ptr() % _ALIGNMENT == 0 for t in (given, shift)]      # Triton compiles for that
    kind = (logits.dtype, experts, *aligned, *options.values())
    if kind not in _compiled and backend().is_capturing():
        return None
    ids = torch.empty((tokens, top_k), dtype=torch.int32, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    if tokens:
        choose_kernel[(triton.cdiv(tokens, rows), )](  # pyright: ignore[reportIndexIssue]
            given, weights if shift is None else shift, ids, weights, tokens, experts, float(scale), **options)
        backend().before_torch()
        _compiled.add(kind)
    return ids, weights


@jit(do_not_specialize=["m"])
def choose_kernel(logits, bias, ids, weights, m, experts, scale, K: tl.constexpr, CHOICES: tl.constexpr, EXPERTS: tl.constexpr,
                  GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, TOP2: tl.constexpr, SIGMOID: tl.constexpr,
                  NORMALIZE: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr):
    """ids, weights [m, K]: the K best of logits [m, experts] and their scores, as TopKRouter. ROWS tokens a program."""
    token, expert, choice = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, EXPERTS), tl.arange(0, CHOICES)
    there = (token < m)[:, None] & (expert < experts)[None, :]
    found = tl.load(logits + token.to(tl.int64)[:, None] * experts + expert[None, :], mask=there, other=float("-inf"))
    found = found.to(tl.float32)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-found))
    else:
        powers = tl.exp(found - tl.where(token < m, tl.max(found, 1), 0.0)[:, None])
        scores = powers / tl.sum(powers, 1)[:, None]
    by = scores
    if BIASED:
        by += tl.load(bias + expert, mask=expert < experts, other=0.0)[None, :]
    if GROUPS > 1:
        by = within_groups(by, GROUPS, TOP_GROUPS, TOP2)
    left = tl.where((expert < experts)[None, :], keys_of(by), -0x8000000000000000)
    best, of_best = tl.zeros((ROWS, CHOICES), tl.int32), tl.zeros((ROWS, CHOICES), tl.float32)
    for j in tl.static_range(K):
        number = number_of(tl.max(left, 1), EXPERTS)
        taken = expert[None, :] == number[:, None]
        left = tl.where(taken, -0x8000000000000000, left)
        best = tl.where(choice[None, :] == j, number[:, None], best)
        of_best = tl.where(choice[None, :] == j, tl.sum(tl.where(taken, scores, 0.0), 1)[:, None], of_best)
    if NORMALIZE:
        of_best = of_best / (tl.sum(of_best, 1) + 1e-20)[:, None]
    at = token.to(tl.int64)[:, None] * K + choice[None, :]
    kept = (token < m)[:, None] & (choice < K)[None, :]
    tl.store(ids + at, best, mask=kept)
    tl.store(weights + at, of_best * scale, mask=kept)


@triton.jit
def keys_of(values):
    """int64 in the order of fp32 `values` [., N], with their columns in the low bits: of equal ones the first is the greatest."""
    bits = values.to(tl.int32, bitcast=True)
    column = values.shape[1] - 1 - tl.arange(0, values.shape[1])
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) << 32) | column.to(tl.int64)[None, :]


@triton.jit
def number_of(key, N: tl.constexpr):
    """The column of a key of keys_of."""
    return N - 1 - (key & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def within_groups(by, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, TOP2: tl.constexpr):
    """`by` [ROWS, E], -inf in all groups of columns but the TOP_GROUPS best ones: by their two best values, or the best."""
    EACH: tl.constexpr = by.shape[1] // GROUPS
    grouped = tl.reshape(by, (by.shape[0], GROUPS, EACH))
    best = tl.max(grouped, 2)
    if TOP2 and EACH > 1:
        member = tl.arange(0, EACH)[None, None, :]
        first = tl.min(tl.where(grouped == best[:, :, None], member, EACH), 2)
        best += tl.max(tl.where(member == first[:, :, None], float("-inf"), grouped), 2)
    left, group = keys_of(best), tl.arange(0, GROUPS)
    kept = tl.zeros((by.shape[0], GROUPS), tl.int32)
    for _ in tl.static_range(TOP_GROUPS):
        taken = group[None, :] == number_of(tl.max(left, 1), GROUPS)[:, None]
        kept = tl.where(taken, 1, kept)
        left = tl.where(taken, -0x8000000000000000, left)
    return tl.reshape(tl.where((kept > 0)[:, :, None], grouped, float("-inf")), by.shape)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which experts a token chooses, and with which weights."""
from typing import Any

import torch
from torch import nn

from triton_dist.layers import _routing
from triton_dist.runtime.errors import InvalidArgument

SCORES = ("softmax", "sigmoid")


class TopKRouter(nn.Module):
    """Scores experts for each token, and chooses the best ones. Every rank has all of it.

    Args:
        weight: [E, H], of the linear layer that gives logits.
        top_k: experts of a token.
        score: "softmax" over all experts (Qwen3-MoE, Mixtral), or "sigmoid" (DeepSeek-V3). In fp32.
        normalize: whether a token's weights are divided by their sum.
        scale: number by which weights are multiplied.
        bias: [E] or None: added to scores where experts are chosen, not to weights (DeepSeek-V3's balance without a loss).
        groups: into how many groups of equal size experts fall, of which a token chooses `top_groups` first; 1: no groups.
        top_groups: how many groups a token may choose from.
        group_score: "top2": a group's score is the sum of its two best ones (DeepSeek-V3); "max": the best one (DeepSeek-V2).
    """
    def __init__(self,
                 weight: torch.Tensor,
                 top_k: int,
                 *,
                 score: str = "softmax",
                 normalize: bool = True,
                 scale: float = 1.0,
                 bias: torch.Tensor | None = None,
                 groups: int = 1,
                 top_groups: int = 1,
                 group_score: str = "top2"):
        super().__init__()
        experts = weight.shape[0]
        if score not in SCORES:
            raise InvalidArgument(f"score: expected one of {', '.join(SCORES)}, found {score!r}")
        if group_score not in ("top2", "max"):
            raise InvalidArgument(f"group_score: expected 'top2' or 'max', found {group_score!r}")
        if groups < 1 or experts % groups or not 1 <= top_groups <= groups:
            raise InvalidArgument(
                f"groups: expected a number that divides the {experts} experts, and at least top_groups, found "
                f"{groups} and {top_groups}")
        if not 1 <= top_k <= experts // groups * top_groups:
            raise InvalidArgument(f"top_k: expected 1 to {experts // groups * top_groups}, found {top_k}")
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight.detach(),
                                                                                   weight.requires_grad)
        self.top_k, self.score, self.normalize, self.scale = top_k, score, normalize, scale
        self.groups, self.top_groups, self.group_score = groups, top_groups, group_score
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, H] -> (ids int32 [T, top_k], weights fp32 [T, top_k])."""
        logits = nn.functional.linear(x, self.weight.to(x.dtype))
        found = _routing.chosen(logits, self.top_k, self.bias, sigmoid=self.score == "sigmoid", normalize=self.normalize,
                                scale=self.scale, groups=self.groups, top_groups=self.top_groups,
                                top2=self.group_score == "top2")
        if found is not None and not (torch.is_grad_enabled() and logits.requires_grad):
            return found
        logits = logits.float()
        scores = logits.softmax(-1) if self.score == "softmax" else logits.sigmoid()
        ids = self._ids_by_torch(scores.detach()) if found is None else found[0].to(torch.int64)
        weights = scores.gather(-1, ids)
        if self.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return ids.to(torch.int32), weights * self.scale

    def _ids_by_torch(self, scores: torch.Tensor) -> torch.Tensor:
        choice = scores if self.bias is None else scores + self.bias.float()
        if self.groups > 1:
            choice = self._within_groups(choice)
        return choice.topk(self.top_k, -1).indices

    def _within_groups(self, choice: torch.Tensor) -> torch.Tensor:
        """`choice` [T, E] with -inf for experts of groups that a token does not choose."""
        grouped = choice.unflatten(-1, (self.groups, -1))
        best = grouped.topk(min(2, grouped.shape[-1]),
                            -1).values.sum(-1) if self.group_score == "top2" else grouped.amax(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, best.topk(self.top_groups, -1).indices, True)
        return grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)

    @classmethod
    def from_transformers(cls, block: Any, config: Any) -> "TopKRouter":
        """From a mixture-of-experts block of transformers and the model's config.

        Raises InvalidArgument for one that it cannot read.
        """
        gate = getattr(block, "gate", None)
        if not isinstance(getattr(gate, "weight", None), torch.Tensor):
            raise InvalidArgument(
                f"block: expected one with gate.weight, as Qwen3-MoE, Mixtral and DeepSeek have it, found "
                f"{type(block).__name__}")
        bias = getattr(gate, "e_score_correction_bias", None)
        groups = getattr(config, "n_group", None) or 1
        kind = getattr(config, "model_type", "")
        sigmoid = bias is not None or getattr(config, "scoring_func", "softmax") == "sigmoid"
        return cls(gate.weight,
                   config.num_experts_per_tok,
                   score="sigmoid" if sigmoid else "softmax",
                   normalize=getattr(config, "norm_topk_prob", kind == "mixtral"),
                   scale=getattr(config, "routed_scaling_factor", None) or 1.0,
                   bias=bias,
                   groups=groups,
                   top_groups=(getattr(config, "topk_group", None) or 1) if groups > 1 else 1,
                   group_score="top2" if sigmoid else "max")

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which experts a token chooses, and with which weights."""
from typing import Any

import torch
from torch import nn

from triton_dist.layers import _routing
from triton_dist.runtime.errors import InvalidArgument

SCORES = ("softmax", "sigmoid")
# How models of transformers route, by model_type: (score, whether weights are divided by their sum, None: as norm_topk_prob says;
# whether logits are in fp32 in any case).
_OF_MODELS: dict[str, tuple[str, bool | None, bool]] = {
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe"), ("softmax", None, False)),
    **dict.fromkeys(("mixtral", "minimax"), ("softmax", True, False)),
    "deepseek_v2": ("softmax", False, True),
    **dict.fromkeys(("deepseek_v3", "glm4_moe", "dots1", "solar_open"), ("sigmoid", None, True)),
}
_OF_GATES = {"weight", "bias", "e_score_correction_bias"}


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
        dtype: of the product that gives logits, such as torch.float32 (DeepSeek), also under autocast. None: the wider one of x
            and `weight`, or autocast's.
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
                 group_score: str = "top2",
                 dtype: torch.dtype | None = None):
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
        self.groups, self.top_groups, self.group_score, self.dtype = groups, top_groups, group_score, dtype
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, H] -> (ids int32 [T, top_k], weights fp32 [T, top_k])."""
        logits = self._logits(x)
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

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        if self.dtype is not None and torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self._logits(x)
        dtype = self.dtype or torch.promote_types(x.dtype, self.weight.dtype)
        return nn.functional.linear(x.to(dtype), self.weight.to(dtype))

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

        Raises InvalidArgument for one that it cannot read, and for models whose routing it does not know.
        """
        gate = getattr(block, "gate", None)
        if not isinstance(getattr(gate, "weight", None), torch.Tensor):
            raise InvalidArgument(
                f"block: expected one with gate.weight, as Qwen3-MoE, Mixtral and DeepSeek have it, found "
                f"{type(block).__name__}")
        kind, held = getattr(config, "model_type", None), dict(gate.named_parameters())
        held |= dict(gate.named_buffers())
        odd = sorted(held.keys() - _OF_GATES)
        if kind not in _OF_MODELS or odd or held.get("bias") is not None:
            raise InvalidArgument(
                f"config: expected model_type to be one of {', '.join(sorted(_OF_MODELS))}, whose routing is known, and a gate "
                f"with a weight and at most e_score_correction_bias, found {kind!r} and a gate with {', '.join(sorted(held))}; "
                "make a TopKRouter, and pass it to from_full with the experts")
        if getattr(config, "router_jitter_noise", 0.0):
            raise InvalidArgument(f"config: expected a router_jitter_noise of 0, found {config.router_jitter_noise}; set it to 0")
        if getattr(config, "output_router_logits", False):
            raise InvalidArgument("config: expected output_router_logits False, found True: transformers takes the logits of its "
                                  "own routers only; add a loss of your own over router(x)")
        score, normalize, wide = _OF_MODELS[kind]
        groups = getattr(config, "n_group", None) or 1
        if getattr(config, "topk_method", None) == "greedy":  # DeepSeek-V2-Lite
            groups = 1
        return cls(gate.weight,
                   config.num_experts_per_tok,
                   score=score,
                   normalize=getattr(config, "norm_topk_prob", False) if normalize is None else normalize,
                   scale=getattr(config, "routed_scaling_factor", None) or 1.0,
                   bias=getattr(gate, "e_score_correction_bias", None),
                   groups=groups,
                   top_groups=(getattr(config, "topk_group", None) or 1) if groups > 1 else 1,
                   group_score="top2" if score == "sigmoid" else "max",
                   dtype=torch.float32 if wide else None)

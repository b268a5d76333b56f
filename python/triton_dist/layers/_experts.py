# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What layers of a mixture of experts have alike: their weights, and the block of transformers that these come from."""
from typing import Any, Self

import torch
from torch import nn

from triton_dist.layers._held import Held, parameter
from triton_dist.layers.router import TopKRouter
from triton_dist.runtime.errors import InvalidArgument


class Experts(Held):
    """A router, experts gate_up [E, 2 * I, H] and down [E, H, I] of this rank, and what all tokens pass through, or None."""

    def __init__(self, router: nn.Module, gate_up: torch.Tensor, down: torch.Tensor, group: Any, shared: Any):
        for name, t in (("gate_up", gate_up), ("down", down)):
            if not isinstance(t, torch.Tensor) or t.ndim != 3:
                raise InvalidArgument(f"{name}: expected a weight for each expert, of 3 dimensions, found "
                                      f"{list(t.shape) if isinstance(t, torch.Tensor) else type(t).__name__}")
        if gate_up.shape != (down.shape[0], 2 * down.shape[2], down.shape[1]):
            raise InvalidArgument(
                f"gate_up: expected {[down.shape[0], 2 * down.shape[2], down.shape[1]]} to match down "
                f"{list(down.shape)}, found {list(gate_up.shape)}")
        super().__init__(gate_up, None, group)
        self.down = parameter(down)
        self.router, self.shared = router, shared

    @classmethod
    def from_full(cls, router: nn.Module, gate_up: torch.Tensor, down: torch.Tensor, group: Any = None, **options: Any) -> Self:
        """From all experts, whole."""
        raise NotImplementedError

    @classmethod
    def from_transformers(cls, block: nn.Module, config: Any, group: Any = None, **options: Any) -> Self:
        """From a mixture-of-experts block of transformers, with all experts, the same on all ranks: takes this rank's, copies.

        For Qwen3-MoE, Mixtral and DeepSeek-V2/V3: `block.gate`, `block.experts` (a ModuleList or fused weights) and, where there
        is one, `block.shared_experts`, which every rank keeps whole. Returns a module that takes the block's place.

        Example:
            for layer in model.model.layers:
                layer.mlp = EPMoE.from_transformers(layer.mlp, model.config)
        """
        options.setdefault("shared", getattr(block, "shared_experts", None))
        return cls.from_full(TopKRouter.from_transformers(block, config), *experts_of(block), group, **options)


def experts_of(block: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """(gate and up [E, 2 * I, H], down [E, H, I]) of a block of transformers. Raises InvalidArgument for one it cannot read."""
    experts: Any = getattr(block, "experts", None)
    if isinstance(getattr(experts, "gate_up_proj", None), torch.Tensor):
        gate_up, down = experts.gate_up_proj, experts.down_proj
        if gate_up.shape == (down.shape[0], 2 * down.shape[2], down.shape[1]):
            return gate_up, down
    elif isinstance(experts, nn.ModuleList) and all(hasattr(e, "gate_proj") for e in experts):
        return (
            torch.stack([torch.cat([e.gate_proj.weight, e.up_proj.weight])
                         for e in experts]).detach(),  # pyright: ignore
            torch.stack([e.down_proj.weight for e in experts]).detach())  # pyright: ignore
    elif isinstance(experts, nn.ModuleList) and all(hasattr(e, "w1") for e in experts):  # Mixtral's names
        return (
            torch.stack([torch.cat([e.w1.weight, e.w3.weight]) for e in experts]).detach(),  # pyright: ignore
            torch.stack([e.w2.weight for e in experts]).detach())  # pyright: ignore
    raise InvalidArgument(
        "block: expected experts with gate_up_proj [E, 2 * I, H] and down_proj [E, H, I], or a list of modules with "
        f"gate_proj, up_proj and down_proj, found {type(experts).__name__} in {type(block).__name__}")

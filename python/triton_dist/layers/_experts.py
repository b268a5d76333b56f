# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What layers of a mixture of experts have alike: their weights, and the block of transformers that these come from."""
from typing import Any, Self

import torch
from torch import nn

from triton_dist.layers._held import Held, parameter
from triton_dist.layers.linear import plain_linear
from triton_dist.layers.router import TopKRouter
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group


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

    def full_experts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All experts, whole, on every rank: gate_up [E, 2 * I, H] and down [E, H, I], as from_full takes them. Collective.

        To save a model, or to divide it over another number of ranks. For a model of transformers see full_state_dict of
        triton_dist.integrations.transformers.
        """
        raise NotImplementedError

    @classmethod
    def from_transformers(cls, block: nn.Module, config: Any, group: Any = None, **options: Any) -> Self:
        """From a mixture-of-experts block of transformers, with all experts, the same on all ranks: takes this rank's, copies.

        For Qwen2-MoE, Qwen3-MoE, Qwen3-Next, OLMoE, Mixtral, MiniMax, DeepSeek-V2 and V3, GLM-4-MoE, dots.llm1 and Solar Open:
        `block.gate`, `block.experts` (a ModuleList or fused weights) and, where there are some, shared experts, which every rank
        keeps whole. Returns a module that takes the block's place.
        Raises InvalidArgument for other models, activations other than silu, biases, and whatever else it would lose.

        Example:
            for layer in model.model.layers:
                layer.mlp = EPMoE.from_transformers(layer.mlp, model.config)
        """
        router, experts = TopKRouter.from_transformers(block, config), experts_of(block)
        options.setdefault("shared", shared_of(block))
        return cls.from_full(router, *experts, group, **options)


class GatedShared(nn.Module):
    """sigmoid(gate(x)) * experts(x): the shared expert of Qwen2-MoE and Qwen3-Next."""

    def __init__(self, experts: nn.Module, gate: nn.Module):
        super().__init__()
        self.experts, self.gate = experts, gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H] -> [T, H]."""
        return self.gate(x).sigmoid() * self.experts(x)


def gathered(t: torch.Tensor, members: Group, dim: int) -> torch.Tensor:
    """The parts `t` that ranks have of a tensor along `dim`, of any sizes, as one. Collective."""
    whole: Any = getattr(t, "full_tensor", lambda: t)()     # of a DTensor, such as FSDP makes
    rows = whole.detach().movedim(dim, 0)
    sizes = members.all_gather_object(len(rows))
    part = rows.new_zeros((max(sizes), *rows.shape[1:]))
    part[:len(rows)] = rows
    parts = part.new_empty((members.size * len(part), *rows.shape[1:]))
    members.all_gather_tensor(parts, part)
    return torch.cat([found[:size] for found, size in zip(parts.split(max(sizes)), sizes)]).movedim(0, dim).contiguous()


def shared_of(block: nn.Module) -> nn.Module | None:
    """What all tokens of a block pass through. Raises InvalidArgument for a block that has more than is known."""
    parts = {name: part for name, part in block.named_children() if next(part.parameters(), None) is not None}
    shared, gated, gate = (parts.get(name) for name in ("shared_experts", "shared_expert", "shared_expert_gate"))
    odd = sorted(parts.keys() - {"gate", "experts", "shared_experts", "shared_expert", "shared_expert_gate"})
    if odd or (gated is None) != (gate is None) or shared is not None and gated is not None:
        raise InvalidArgument(f"block: expected gate, experts, shared_experts or shared_expert with shared_expert_gate, found "
                              f"{', '.join(sorted(parts))} in {type(block).__name__}")
    return shared if gated is None or gate is None else GatedShared(gated, gate)


def experts_of(block: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """(gate and up [E, 2 * I, H], down [E, H, I]) of a block of transformers. Raises InvalidArgument for one it cannot read."""
    experts: Any = getattr(block, "experts", None)
    _expect_silu(experts)
    if isinstance(getattr(experts, "gate_up_proj", None), torch.Tensor):
        gate_up, down = experts.gate_up_proj, experts.down_proj
        if gate_up.shape == (down.shape[0], 2 * down.shape[2], down.shape[1]):
            return gate_up, down
    elif isinstance(experts, nn.ModuleList) and all(hasattr(e, "gate_proj") for e in experts):
        return _stacked(experts, "gate_proj", "up_proj"), _stacked(experts, "down_proj")
    elif isinstance(experts, nn.ModuleList) and all(hasattr(e, "w1") for e in experts):  # Mixtral's names
        return _stacked(experts, "w1", "w3"), _stacked(experts, "w2")
    raise InvalidArgument(
        "block: expected experts with gate_up_proj [E, 2 * I, H] and down_proj [E, H, I], or a list of modules with "
        f"gate_proj, up_proj and down_proj, found {type(experts).__name__} in {type(block).__name__}")


def _stacked(experts: nn.ModuleList, *names: str) -> torch.Tensor:
    """The weights of the linear layers of these names, one under the other, of all experts. Trained if one of them is."""
    weights = [[plain_linear(getattr(expert, name)).weight for name in names] for expert in experts]
    trained = any(weight.requires_grad for each in weights for weight in each)
    return torch.stack([torch.cat(each) for each in weights]).detach().requires_grad_(trained)


def _expect_silu(experts: Any) -> None:
    """Refuses experts with biases or another activation, as far as they show them."""
    first = experts[0] if isinstance(experts, nn.ModuleList) and len(experts) else experts
    if isinstance(first, nn.Module):
        biases = [name for name, _ in first.named_parameters() if name.endswith("bias")]
        if biases:
            raise InvalidArgument(f"block: expected experts without biases, found {', '.join(biases)} in {type(first).__name__}")
    act, probe = getattr(first, "act_fn", None), torch.linspace(-3, 3, 7, device="cpu")
    if callable(act) and not torch.allclose(act(probe), nn.functional.silu(probe)):
        raise InvalidArgument(f"block: expected experts with the activation silu, found {act}; no other is in the kernels")

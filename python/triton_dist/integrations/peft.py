# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""LoRA of Hugging Face's PEFT on our layers, by PEFT's mapping for layers of others.

    config = register(LoraConfig(r=8, target_modules=["up", "down"]))
    model = peft.get_peft_model(model, config)

A column-parallel layer has all of A and its rows of B; a row-parallel one has its columns of A and all of B.
"""
import warnings
from typing import Any

import peft
import torch
from peft.tuners import lora
from torch import nn

from triton_dist.layers import AGGemm, ColumnLinear, GemmAR, GemmRS, _rows
from triton_dist.layers.replicated import replicated
from triton_dist.ops import ag_gemm, gemm_ar, gemm_rs
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve

_REFUSED = ("use_dora", "lora_bias", "fan_in_fan_out")


class _Lora(lora.Linear):
    """LoRA on a shard. whole: which of A and B every rank has; of the other it has a part along `dim`."""

    whole: str
    part: str
    dim: int

    @property
    def parts(self) -> Any:
        """Sizes of a column-parallel layer's parts of y, as TPMLP and TPAttention ask for them."""
        return getattr(self.get_base_layer(), "parts", None)

    def update_layer(self, adapter_name: str, *args: Any, **options: Any) -> None:
        """PEFT makes A and B here. All ranks take the first one's of what they have whole."""
        config, base = options["config"], self.get_base_layer()
        wrong = [name for name in _REFUSED if getattr(config, name, False)]
        if wrong or config.init_lora_weights not in (True, False, "gaussian"):
            raise InvalidArgument(f"config: expected plain LoRA, with init_lora_weights True, False or 'gaussian', found "
                                  f"{', '.join(wrong) or repr(config.init_lora_weights)}")
        if config.lora_dropout and isinstance(base, ColumnLinear):
            raise InvalidArgument("config: expected lora_dropout 0, as ranks would drop different elements of the same x")
        if getattr(base, "repeated", False):
            raise InvalidArgument("target_modules: expected layers whose rows one rank holds, found one with key and value heads "
                                  "that several ranks hold, whose adapters would be trained apart; leave it out, or use fewer "
                                  "ranks")
        super().update_layer(adapter_name, *args, **options)
        members, weight = resolve(base.group), getattr(self, self.whole)[adapter_name].weight
        first = members.all_gather_object(weight.detach().cpu() if members.rank == 0 else None)[0]
        with torch.no_grad():
            weight.copy_(first)
            if self.part == "lora_A":               # PEFT drew it for the columns of one rank
                self._draw_columns(self.lora_A[adapter_name].weight, members, config.init_lora_weights)

    @staticmethod
    def _draw_columns(a: torch.Tensor, members: Any, begin: Any) -> None:
        """This rank's columns of an A that the first rank draws as PEFT draws a whole one."""
        sizes, drawn = members.all_gather_object(a.shape[1]), None
        if members.rank == 0:
            drawn = torch.empty(a.shape[0], sum(sizes))
            nn.init.normal_(drawn, std=1 / a.shape[0]) if begin == "gaussian" else nn.init.kaiming_uniform_(drawn, a=5**0.5)
        a.copy_(members.all_gather_object(drawn)[0].split(sizes, 1)[members.rank])

    def forward(self, x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        """As the layer, plus B A x of the active adapters."""
        if options.pop("adapter_names", None) is not None:
            raise InvalidArgument("adapter_names: expected None, since our layers have one adapter for all rows of a batch")
        if self.disable_adapters or self.merged:
            if self.disable_adapters and self.merged:
                self.unmerge()
            return self.base_layer(x, *args, **options)
        result = self.base_layer(x, *args, **options)
        for name in self.active_adapters:
            if name in self.lora_A:
                a, b = self.lora_A[name].weight, self.lora_B[name].weight
                more = self.product(self.base_layer, self.lora_dropout[name](x).to(a.dtype), a, b)
                result = result + (more * self.scaling[name]).to(result.dtype)
        return result

    def product(self, base: Any, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """B A x, as the layer has x and gives y."""
        raise NotImplementedError


class _Column(_Lora):
    whole, part, dim = "lora_A", "lora_B", 0


class _Row(_Lora):
    whole, part, dim = "lora_B", "lora_A", 1


class LoraAGGemm(_Column):
    """x is a part of the sequence. Its product with A, of r columns, is what is gathered."""

    def product(self, base: Any, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h, dim = nn.functional.linear(x, replicated(a, base.group)), base.sequence_dim
        return _rows.shaped(ag_gemm(_rows.flat(h, dim), b, group=base.group), h, dim)


class LoraColumnLinear(_Column):
    """All ranks have x."""

    def product(self, base: Any, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(replicated(nn.functional.linear(x, a), base.group), b)


class LoraGemmRS(_Row):
    """y is a part of the sequence. The product with A is summed over ranks, of r columns."""

    def product(self, base: Any, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        dim = base.sequence_dim
        h = _rows.shaped(gemm_rs(_rows.flat(x, dim), a, group=base.group), x, dim)
        return nn.functional.linear(h, replicated(b, base.group))


class LoraGemmAR(_Row):
    """All ranks have y."""

    def product(self, base: Any, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h = gemm_ar(_rows.matrix(x), a, group=base.group)
        return nn.functional.linear(h.view(*x.shape[:-1], h.shape[-1]), b)


def register(config: peft.LoraConfig) -> peft.LoraConfig:
    """Makes `config` work on AGGemm, ColumnLinear, GemmRS and GemmAR; returns it.

    Call it on all ranks before peft.get_peft_model, which is collective then. Refused: DoRA, lora_bias, other ways to begin than
    True, False and "gaussian", lora_dropout on a ColumnLinear, and layers with heads that several ranks hold.
    """
    # PEFT warns of every layer that it does not know itself, of those of the mapping too.
    warnings.filterwarnings("ignore", r"Unsupported layer type '<class 'triton_dist\.layers\.", UserWarning)
    config._register_custom_module({AGGemm: LoraAGGemm, ColumnLinear: LoraColumnLinear, GemmRS: LoraGemmRS, GemmAR: LoraGemmAR})
    return config


def full_adapter(model: nn.Module, adapter_name: str = "default") -> dict[str, torch.Tensor]:
    """The adapter's state_dict with whole tensors on the host, as PEFT saves one of plain linear layers. Collective."""
    found = peft.get_peft_model_state_dict(model, adapter_name=adapter_name)
    for key, layer in _parts(model, found):
        parts = resolve(layer.get_base_layer().group).all_gather_object((found[key].detach().cpu(), _sizes(layer)))
        pieces = [t.split(sizes, layer.dim) for t, sizes in parts]
        found[key] = torch.cat([piece for column in zip(*pieces) for piece in column], layer.dim)
    return {key: t.detach().cpu() for key, t in found.items()}


def load_full_adapter(model: nn.Module, weights: dict[str, torch.Tensor], adapter_name: str = "default") -> None:
    """Loads what full_adapter gave, on any number of ranks, or an adapter of plain linear layers. Collective."""
    weights = dict(weights)
    for key, layer in _parts(model, weights):
        group = resolve(layer.get_base_layer().group)
        sizes = group.all_gather_object(_sizes(layer))
        if weights[key].shape[layer.dim] != sum(map(sum, sizes)):
            raise InvalidArgument(f"weights: expected {key} of size {sum(map(sum, sizes))} in dimension {layer.dim}, found "
                                  f"{list(weights[key].shape)}")
        pieces = weights[key].split([of[i] for i in range(len(sizes[0])) for of in sizes], layer.dim)
        weights[key] = torch.cat(pieces[group.rank::group.size], layer.dim).contiguous()
    done = peft.set_peft_model_state_dict(model, weights, adapter_name=adapter_name)
    if done.unexpected_keys:
        raise InvalidArgument(f"weights: expected those of this adapter, found {', '.join(done.unexpected_keys[:8])} too many")


def _parts(model: nn.Module, weights: dict) -> list:
    """[(key, layer)] of the weights of an adapter that ranks have parts of."""
    layers = {f"{name.removeprefix('base_model.model.')}.{layer.part}.weight": layer for name, layer in model.named_modules()
              if isinstance(layer, _Lora)}
    return [(key, layers[key.removeprefix("base_model.model.")]) for key in weights
            if key.removeprefix("base_model.model.") in layers]


def _sizes(layer: Any) -> list:
    """Sizes of what a rank's part holds, one after the other."""
    return list(layer.parts or [layer.get_base_layer().weight.shape[layer.dim]])

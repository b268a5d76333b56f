# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Decoders of Hugging Face's transformers, by tensor parallelism."""
import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from triton_dist.integrations.plans import OverlapColwise, OverlapRowwise
from triton_dist.integrations.pretrained import from_pretrained
from triton_dist.integrations.replicas import replicate_parameters
from triton_dist.layers._experts import Experts, GatedShared
from triton_dist.runtime.errors import InvalidArgument

__all__ = ["from_pretrained", "full_state_dict", "tensor_parallel"]

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")
BLOCK = {"router.weight": "gate.weight", "router.bias": "gate.e_score_correction_bias"}        # ours: a block's of experts
SHARED, GATED = {"shared.": "shared_experts."}, {"shared.experts.": "shared_expert.", "shared.gate.": "shared_expert_gate."}
COUNTS = {"num_heads", "num_attention_heads", "num_key_value_heads", "hidden_size"}      # of all ranks together
HEAD_NORMS = tuple(f"self_attn.{name}" for name in ("q_norm", "k_norm", "query_layernorm", "key_layernorm"))   # of a head


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Divides the layers of a decoder over the ranks of `mesh`, in place. Collective.

    For Llama, Qwen2, Qwen3, Mistral and other models of transformers whose decoder layers have the same module names. Every rank
    has the whole sequence between layers (gemm_ar). Embedding, head and norms are whole on every rank.

    Args:
        model: the whole model, the same on all ranks (rank 0's weights are taken), on `triton_dist.device()`.
        mesh: DeviceMesh of one dimension. Its size divides the numbers of query heads and of key heads.

    Returns model, whose parameters are DTensors, which any optimizer takes; `generate` works as before. Save it by
    `model.save_pretrained(path, state_dict=full_state_dict(model))`, called on all ranks.
    Raises InvalidArgument, with what is missing, for a model that it cannot divide.

    Example:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16).to(triton_dist.device())
        tensor_parallel(model, init_device_mesh(triton_dist.device().type, (world,)))
    """
    layers = _layers(model)
    config, size = model.config.get_text_config(), mesh.size()
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if heads is None or heads % size:
            raise InvalidArgument(f"model: expected {name} divisible by the {size} ranks, found {heads}; use fewer ranks")
    for layer in layers:
        columns, rows = {name: OverlapColwise() for name in COLUMNS}, {name: OverlapRowwise() for name in ROWS}
        parallelize_module(layer, mesh, columns | rows)
    heads = [norm for layer in layers for name in HEAD_NORMS if (norm := _at(layer, name)) is not None]
    return replicate_parameters(model, mesh, heads)


def full_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state_dict with whole tensors on the host, as a model of one rank has it. Collective: all ranks call it.

    `EPMoE` and `TPMoE` become the blocks of transformers 5 that from_transformers made them of: all experts, under their names.
    """
    found = {name: (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu() for name, t in model.state_dict().items()}
    for path, module in model.named_modules():
        if isinstance(module, Experts):
            _name_as_block(found, f"{path}." if path else "", module)
    return found


def _name_as_block(found: dict[str, torch.Tensor], start: str, module: Experts) -> None:
    """Puts all experts in place of this rank's part, and gives a layer's tensors, which begin with `start`, a block's names."""
    names = BLOCK | (GATED if isinstance(module.shared, GatedShared) else SHARED)
    for name in [name for name in found if name.startswith(start)]:
        t, own = found.pop(name), name.removeprefix(start)
        if own not in ("weight", "down"):
            ours = next((ours for ours in names if own.startswith(ours)), "")
            found[start + names.get(ours, "") + own.removeprefix(ours)] = t
    for name, t in zip(("gate_up_proj", "down_proj"), module.full_experts()):
        found[f"{start}experts.{name}"] = t.cpu()


def _layers(model: nn.Module) -> Any:
    """The decoder layers of a model. Raises InvalidArgument unless all have the modules that are to be divided."""
    layers = getattr(getattr(model, "model", model), "layers", None)
    if layers is None or not hasattr(model, "config"):
        raise InvalidArgument(f"model: expected a decoder of transformers with model.layers, found {type(model).__name__}; use "
                              "triton_dist.integrations.plans with a plan of your own")
    wrong = [f"layers.{i}.{name}" for i, layer in enumerate(layers) for name in (*COLUMNS, *ROWS)
             if type(_at(layer, name)) is not nn.Linear]
    if wrong:
        raise InvalidArgument(f"model: expected an nn.Linear at each of {', '.join((*COLUMNS, *ROWS))}, found none at "
                              f"{', '.join(wrong[:8])}{' and others' * (len(wrong) > 8)} of {type(model).__name__}; use "
                              "triton_dist.integrations.plans with a plan of your own")
    _expect_heads_apart(model, layers)
    return layers


def _expect_heads_apart(model: nn.Module, layers: Any) -> None:
    """Raises InvalidArgument where a rank could not compute its heads by itself.

    Parameters, transformers' plan and the numbers that the attention's forward reads show it.
    """
    config = model.config.get_text_config()         # pyright: ignore
    plan, found = getattr(config, "base_model_tp_plan", None) or {}, []
    for names, style in ((COLUMNS, "colwise"), (ROWS, "rowwise")):
        found += [f"{name} as {plan[key]}" for name in names if plan.get(key := f"layers.*.{name}", style) != style]
    own = {f"{name}.{kind}" for name in (*COLUMNS, *ROWS) for kind in ("weight", "bias")}
    for attention in {type(layer.self_attn) for layer in layers}:
        names = inspect.unwrap(attention.forward).__code__.co_names
        found += [f"a forward of {attention.__name__} that reads {name}" for name in names if name in COUNTS]
    for i, layer in enumerate(layers):
        features = layer.self_attn.q_proj.out_features // config.num_attention_heads
        for block in ("self_attn", "mlp"):
            for name, p in getattr(layer, block).named_parameters():
                path = f"{block}.{name}"
                if path.rpartition(".")[0] in HEAD_NORMS and tuple(p.shape) == (features,):
                    continue
                if path not in own:
                    found.append(f"layers.{i}.{path} of shape {list(p.shape)}")
    if found:
        raise InvalidArgument(f"model: expected heads that do not depend on each other, and no parameters but those of the "
                              f"projections and of norms of a head's features, found {', '.join(found[:8])}"
                              f"{' and others' * (len(found) > 8)} in {type(model).__name__}; use triton_dist.integrations.plans "
                              "with a plan of your own")


def _at(module: nn.Module, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""tensor_parallel refuses decoders of which a rank could not compute its heads by itself, before it changes anything."""
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from triton_dist.integrations.transformers import tensor_parallel
from triton_dist.runtime.errors import InvalidArgument

HEADS, SIZE, H = 4, 8, 32


class Decoder(nn.Module):
    """One layer with the names of Llama's, with more in its attention and its MLP."""

    def __init__(self, plan=None, attention=(), mlp=(), kind=nn.Module):
        super().__init__()
        config = SimpleNamespace(num_attention_heads=HEADS, num_key_value_heads=HEADS, base_model_tp_plan=plan)
        config.get_text_config = lambda: config
        self.config, layer = config, nn.Module()
        layer.self_attn, layer.mlp = kind(), nn.Module()
        for names, part in ((("q_proj", "k_proj", "v_proj", "o_proj"), layer.self_attn),
                            (("gate_proj", "up_proj", "down_proj"), layer.mlp)):
            for name in names:
                setattr(part, name, nn.Linear(H, H))
        for more, part in ((attention, layer.self_attn), (mlp, layer.mlp)):
            for name, module in dict(more).items():
                setattr(part, name, module)
        self.layers = nn.ModuleList([layer])


class CountsHeads(nn.Module):
    """As in StableLM."""

    def forward(self, x):
        return self.q_proj(x).view(*x.shape[:-1], self.num_heads, -1)


REFUSED = {
    "a norm over all heads, by transformers' plan": (dict(plan={"layers.*.self_attn.q_proj": "colwise_gather_output"}),
                                                     "self_attn.q_proj as colwise_gather_output"),
    "a norm over all heads, by its size": (dict(attention=dict(q_norm=nn.RMSNorm(H))), r"q_norm.weight of shape \[32\]"),
    "a norm with a weight for each head": (dict(attention=dict(k_norm=nn.RMSNorm((HEADS, SIZE)))), r"k_norm.weight of shape \[4"),
    "a norm before the output": (dict(attention=dict(attn_sub_norm=nn.RMSNorm(H))), "self_attn.attn_sub_norm.weight"),
    "a parameter": (dict(attention=dict(sinks=nn.Parameter(torch.zeros(HEADS)))), r"self_attn.sinks of shape \[4\]"),
    "an attention that counts all heads": (dict(kind=CountsHeads), "a forward of CountsHeads that reads num_heads"),
    "a norm in the MLP": (dict(mlp=dict(ffn_sub_norm=nn.RMSNorm(H))), "mlp.ffn_sub_norm.weight"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_divided_is_refused(what):
    more, said = REFUSED[what]
    model = Decoder(**more)
    before = {name: (type(part), [*part.parameters(recurse=False)]) for name, part in model.named_modules()}
    with pytest.raises(InvalidArgument, match=f"heads that do not depend on each other.*found .*{said}"):
        tensor_parallel(model, SimpleNamespace(size=lambda: 2))
    assert all(type(part) is before[name][0] and [*part.parameters(recurse=False)] == before[name][1]
               for name, part in model.named_modules())

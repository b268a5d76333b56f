# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""LoRA of PEFT on our layers, against PEFT on plain linear layers of one rank."""
import importlib.util
import warnings

import pytest
import torch
from torch import nn

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.layers import TPMLP, ColumnLinear
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve

pytestmark = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
WIDTH, INNER, ROWS = 8, 12, 12


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        gate, up = self.up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * up)


def config(**options):
    import peft
    return peft.LoraConfig(r=4, lora_alpha=6, target_modules=["up", "down"], **options)


def plain():
    """A model of one rank, and its adapter with weights that are not zero."""
    import peft
    torch.manual_seed(3)
    base = Plain()
    alone = peft.get_peft_model(Plain(), config(init_lora_weights=False))
    alone.base_model.model.up.base_layer.load_state_dict(base.up.state_dict())
    alone.base_model.model.down.base_layer.load_state_dict(base.down.state_dict())
    return base, alone


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_adapters_of_shards_are_those_of_one_rank(world, sequence_parallel):
    """Outputs, gradients, merging, saving and loading."""
    import peft

    from triton_dist.integrations.peft import full_adapter, load_full_adapter, register
    base, alone = plain()
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(4))
    to = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(5))
    leaf = x.clone().requires_grad_()
    wanted = alone(leaf)
    (wanted * to).sum().backward()
    weights = peft.get_peft_model_state_dict(alone)
    grads = {key.replace(".default", ""): p.grad for key, p in alone.named_parameters() if "lora" in key}

    def script():
        group = resolve()
        mine = (lambda t: t.chunk(group.size)[group.rank]) if sequence_parallel else (lambda t: t)
        mlp = TPMLP.from_full(base.up, base.down, gated=True, sequence_parallel=sequence_parallel)
        model = peft.get_peft_model(mlp, register(config(init_lora_weights=False)))
        before = full_adapter(model)
        for key, t in before.items():           # what all ranks have whole is equal
            assert all(torch.equal(t, other) for other in group.all_gather_object(t)), key
            assert t.shape == weights[key].shape, key
        columns = next(t for key, t in before.items() if "down.lora_A" in key)     # drawn as a whole A is, by one rank
        assert columns.abs().max() <= INNER**-0.5 and len(columns[0].unique()) == INNER
        load_full_adapter(model, weights)
        for key, t in full_adapter(model).items():
            assert torch.equal(t, weights[key]), key
        own = mine(x).clone().requires_grad_()
        y = model(own)
        torch.testing.assert_close(y, mine(wanted.detach()), rtol=1e-4, atol=1e-4)
        (y * mine(to)).sum().backward()
        torch.testing.assert_close(own.grad, mine(leaf.grad), rtol=1e-4, atol=1e-4)
        with torch.no_grad():                   # gradients in place of weights, to compare them whole
            for key, p in model.named_parameters():
                assert ("lora" in key) == p.requires_grad and (p.grad is not None) == p.requires_grad, key
                if p.requires_grad:
                    p.copy_(p.grad)
        for key, t in full_adapter(model).items():
            torch.testing.assert_close(t, grads[key], rtol=1e-4, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")
        load_full_adapter(model, weights)
        with torch.no_grad():
            held = mlp.up.base_layer.weight.clone()
            model.merge_adapter()
            assert not torch.equal(held, mlp.up.base_layer.weight)
            torch.testing.assert_close(model(mine(x)), mine(wanted.detach()), rtol=1e-4, atol=1e-4)
            model.unmerge_adapter()
            torch.testing.assert_close(mlp.up.base_layer.weight, held)
            torch.testing.assert_close(model(mine(x)), mine(wanted.detach()), rtol=1e-4, atol=1e-4)
            with model.disable_adapter():
                torch.testing.assert_close(model(mine(x)), mine(base(x).detach()), rtol=1e-4, atol=1e-4)
        triton_dist.synchronize()
    run_ranks(script, world)


def test_no_warning_that_our_layers_are_unsupported():
    import peft

    from triton_dist.integrations.peft import register
    base, _ = plain()

    def script():
        mlp = TPMLP.from_full(base.up, base.down, gated=True)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            peft.get_peft_model(mlp, register(config()))
        assert not [one for one in said if "Unsupported" in str(one.message)]
    run_ranks(script, 1)


def test_what_shards_cannot_have_is_refused_on_all_ranks():
    import peft

    from triton_dist.integrations.peft import load_full_adapter, register
    base, alone = plain()

    def script():
        for options, said in ((dict(use_dora=True), "found use_dora"), (dict(init_lora_weights="pissa"), "found 'pissa'"),
                              (dict(lora_dropout=0.1), "expected lora_dropout 0")):
            mlp = TPMLP.from_full(base.up, base.down, gated=True, sequence_parallel=False)
            with pytest.raises(InvalidArgument, match=said):
                peft.get_peft_model(mlp, register(config(**options)))
        mlp = TPMLP.from_full(base.up, base.down, gated=True, sequence_parallel=False)
        model = peft.get_peft_model(mlp, register(config()))
        shared = nn.ModuleDict({"up": ColumnLinear.from_full(nn.Linear(WIDTH, 16), parts=[8, 4, 4], unit=4)})
        with pytest.raises(InvalidArgument, match="found one with key and value heads that several ranks hold"):
            peft.get_peft_model(shared, register(config()))
        weights = peft.get_peft_model_state_dict(alone)
        key = next(key for key in weights if "up.lora_B" in key)
        with pytest.raises(InvalidArgument, match="of size 24 in dimension 0, found"):
            load_full_adapter(model, weights | {key: weights[key][:-2]})
    run_ranks(script, 2)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What layers take of a full weight, that models of them are right, and how they are copied, saved and converted."""
import copy
import os
import pickle
from pathlib import Path

import pytest
import torch
from launched import launch_sh
from torch import nn

from triton_dist.backends.emulator import run_ranks
from triton_dist.layers import AGGemm, AllReduceRMSNorm, GemmAR, GemmRS
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve

ROOT = Path(__file__).resolve().parents[2]
SIZE, INNER, K, ROWS = 4, 10, 24, 6


def linear(n, k, seed, bias=True):
    made = nn.Linear(k, n, bias=bias)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 4)
    return made


def activations(seed=5):
    return torch.randn(ROWS, K, generator=torch.Generator().manual_seed(seed))


def attention(q, k, v, heads, kv_heads):
    """Of each token over the heads of its own features only: enough to mix q, k and v of equal heads."""
    q, k, v = q.view(len(q), heads, SIZE), k.view(len(k), kv_heads, SIZE), v.view(len(v), kv_heads, SIZE)
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    return ((q * k).sum(-1, keepdim=True).tanh() * v).flatten(1)


@pytest.mark.parametrize("world, heads, kv_heads", [(2, 4, 4), (2, 4, 2), (4, 8, 2), (4, 4, 1), (3, 4, 4), (1, 4, 2)])
def test_a_fused_qkv_is_divided_by_heads(world, heads, kv_heads):
    """Also where ranks share a key head, and where heads are not divisible by the ranks."""
    parts = [heads * SIZE, kv_heads * SIZE, kv_heads * SIZE]
    full, out = linear(sum(parts), K, 1), linear(K, heads * SIZE, 2)
    x = activations()
    with torch.no_grad():
        expected = out(attention(*full(x).split(parts, -1), heads, kv_heads))

    def script():
        group = resolve()
        qkv, down = AGGemm.from_full(full, parts=parts, unit=SIZE), GemmAR.from_full(out, unit=SIZE)
        mine = torch.nn.functional.pad(x, (0, 0, 0, -ROWS % group.size)).tensor_split(group.size)[group.rank].contiguous()
        q, k, v = qkv(mine).split(qkv.parts, -1)
        assert all(size % SIZE == 0 for size in qkv.parts)
        own_kv = k.shape[1] // SIZE
        y = down(attention(q.contiguous(), k.contiguous(), v.contiguous(), q.shape[1] // SIZE, own_kv))
        torch.testing.assert_close(y[:ROWS], expected, rtol=1e-4, atol=1e-4)
    run_ranks(script, world)


@pytest.mark.parametrize("world", [2, 3])
def test_a_fused_gate_and_up_is_divided_part_by_part(world):
    full, out = linear(2 * INNER, K, 3, bias=False), linear(K, INNER, 4)
    x = activations()
    with torch.no_grad():
        gate, up = full(x).split(INNER, -1)
        expected = out(torch.nn.functional.silu(gate) * up)

    def script():
        group = resolve()
        both, down = AGGemm.from_full(full, parts=[INNER, INNER]), GemmRS.from_full(out)
        gate, up = both(x.tensor_split(group.size)[group.rank].contiguous()).split(both.parts, -1)
        y = down(torch.nn.functional.silu(gate) * up)
        torch.testing.assert_close(y, expected.tensor_split(group.size)[group.rank], rtol=1e-4, atol=1e-4)
    run_ranks(script, world)


@pytest.mark.parametrize("cls, options, words", [
    (AGGemm, dict(parts=[16, 16]), r"parts: expected sizes that add up to 48, .* found \[16, 16\]"),
    (AGGemm, dict(parts=[24, "k", 12]), "parts: expected a list of sizes above 0"),
    (AGGemm, dict(parts=48), "parts: expected a list of sizes above 0, found 48"),
    (AGGemm, dict(unit=5), "unit: expected a size that divides each part, found 5 for a part of 48"),
    (AGGemm, dict(unit=[4, 4]), r"unit: expected a size above 0, or a list of 1, found \[4, 4\]"),
    (AGGemm, dict(unit=0), "unit: expected a size above 0"),
    (AGGemm, dict(parts=[24, 12, 12], unit=4), "a part of 3 units cannot be divided over 2 ranks .* use another number of ranks"),
    (AGGemm, dict(parts=[45, 3]), "a part of 45 units cannot be divided over 2 ranks"),
    (GemmRS, dict(parts=[40, 8], unit=8), "a part of 5 units cannot be divided over 2 ranks"),
    (GemmAR, dict(unit=7), "unit: expected a size that divides each part, found 7 for a part of 48")])
def test_what_cannot_be_divided_is_refused(cls, options, words):
    def script():
        with pytest.raises(InvalidArgument, match=words):
            cls.from_full(nn.Linear(48, 48), **options)
    run_ranks(script, 2)


def test_a_key_head_that_columns_would_count_twice_is_refused():
    def script():
        with pytest.raises(InvalidArgument, match="a part of 1 units cannot be divided over 2 ranks"):
            GemmRS.from_full(nn.Linear(48, 48), parts=[40, 8], unit=[4, 8])
    run_ranks(script, 2)


def test_a_bias_may_be_left_out():
    assert AGGemm(torch.ones(2, 3)).bias is None and GemmRS(torch.ones(2, 3)).bias is None


@pytest.mark.parametrize("convert", [lambda m: m.half(), lambda m: m.to(torch.bfloat16), lambda m: copy.deepcopy(m).half()],
                         ids=["half", "to", "deepcopy"])
def test_tied_weights_stay_tied(convert):
    """An embedding and the last layer of a model, and two layers of one weight."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(16, 8)
            self.head = AGGemm(self.embedding.weight)
            self.again = AGGemm.from_shard(nn.Linear(8, 16))
            self.same = GemmRS(self.again.weight)
            self.norm = nn.RMSNorm(8)
            self.fused = AllReduceRMSNorm.from_norm(self.norm)
    model = convert(Model())
    for one, other in ((model.embedding, model.head), (model.again, model.same), (model.norm, model.fused)):
        assert one.weight is other.weight and one.weight.dtype in (torch.float16, torch.bfloat16)
    assert all(p.requires_grad for p in model.parameters())


def test_copies_and_saved_layers_of_a_virtual_world():
    def script():
        group = resolve()
        model = nn.Sequential(AGGemm(torch.eye(4), group=group), AGGemm(torch.eye(4)))
        same = copy.deepcopy(model)
        assert same[0].group is group and same[0].weight is not model[0].weight
        loaded = pickle.loads(pickle.dumps(model))
        assert loaded[0].group is None, "the world, wherever it is loaded"
        x = torch.full((1, 4), float(group.rank))
        assert torch.equal(same(x)[:, :1], loaded(x)[:, :1])
        pair = AGGemm(torch.eye(4), group=group.new_group([0, 1]))
        assert copy.deepcopy(pair).group is pair.group
        with pytest.raises(InvalidArgument, match="cannot be pickled; save the state_dict"):
            pickle.dumps(pair)
    run_ranks(script, 2)


PROCESSES = """
import copy, io, torch, torch.distributed as dist, triton_dist
from torch.distributed.device_mesh import init_device_mesh
from triton_dist.layers import AGGemm, GemmRS
given = triton_dist.initialize_distributed()
pair, x = dist.new_group([0, 1]), torch.full((2, 4), 1.0 + dist.get_rank())
groups = {"none": None, "mesh": init_device_mesh("cpu", (2,)), "world": dist.group.WORLD, "given": given, "pair": pair}
for name, group in groups.items():
    layer = torch.nn.Sequential(AGGemm(torch.eye(4), group=group))
    expected, file = layer(x), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert torch.equal(other(x), expected) and other[0].weight is not layer[0].weight, name
layer, file = GemmRS(torch.eye(4), group=pair), io.BytesIO()
torch.save(layer, file)
file.seek(0)
dist.destroy_process_group(pair)
try:
    torch.load(file, weights_only=False)(x)
except triton_dist.runtime.errors.NotInitialized as error:
    assert "which there is none of here; make it first, or set layer.group" in str(error)
    print("named", flush=True)
triton_dist.finalize_distributed()
"""


def test_copies_and_saved_layers_of_process_groups(tmp_path):
    (tmp_path / "save.py").write_text(PROCESSES)
    done = launch_sh("--nproc_per_node", "2", str(tmp_path / "save.py"), environment=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["named"] * 2

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Adapters for serving engines: FlashInfer's all-reduce fusion, SGLang's fused norm, vLLM's CustomAllreduce."""
import inspect
import sys
import types

import pytest
import torch
from scenarios import BF16, F32, captures_by_rank, capturing

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.integrations import engines, flashinfer, sglang, vllm
from triton_dist.integrations.flashinfer import (AllReduceFusionPattern, QuantizationSFLayout, allreduce_fusion,
                                                 create_allreduce_fusion_workspace)
from triton_dist.ops import all_reduce, all_reduce_rmsnorm, all_reduce_rmsnorm_quant
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.testing import all_reduce_rmsnorm_float64, assert_matches, random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
P, F8, NONE = AllReduceFusionPattern, torch.float8_e4m3fn, inspect.Parameter.empty

# What each package has: name -> [(parameter, default)]; those after None are by keyword only.
FLASHINFER = {      # flashinfer-python 0.7.4, flashinfer/comm/allreduce.py
    allreduce_fusion: [
        ("input", NONE), ("workspace", NONE), ("pattern", NONE), ("launch_with_pdl", False), ("trigger_completion_at_end", True),
        ("output", None), ("residual_out", None), ("norm_out", None), ("quant_out", None), ("scale_out", None),
        ("residual_in", None), ("rms_gamma", None), ("rms_eps", 1e-6), ("scale_factor", None), ("layout_code", None),
        ("use_oneshot", None), ("fp32_acc", False), ("moe_reduction_device_num_experts", None),
        ("moe_reduction_scale_input", None), ("moe_reduction_active_experts_token_input", None),
        ("moe_reduction_token_input", None), ("expanded_idx_to_permuted_idx", None), ("expert_scale_factor", None),
        ("shared_expert_output", None), ("block_quant_group_size", None), ("weight_bias", 0.0), None,
        ("moe_finalize_backend", "trtllm")],
    create_allreduce_fusion_workspace: [
        ("backend", "auto"), ("world_size", None), ("rank", None), ("max_token_num", None), ("hidden_dim", None),
        ("dtype", None), ("gpus_per_node", None), ("comm_backend", None), ("force_oneshot_support", False), ("group", None), None,
        ("top_k", None), ("rms_eps", None), ("weight_bias", None), ("routed_scaling_factor", None),
        ("include_shared_expert", None), ("add_residual", None), ("write_residual_output", None), ("apply_rms_norm", None),
        ("output_dtype", None), ("dynamic_fp8", None), ("write_norm_output", None), ("config", None)],
    flashinfer.AllReduceFusionWorkspace.is_buffer_size_sufficient: [
        ("self", NONE), ("tp_size", NONE), ("num_tokens", NONE), ("hidden_dim", NONE), ("dtype", NONE), ("use_oneshot", None)],
    flashinfer.AllReduceFusionWorkspace.destroy: [("self", NONE)],
}
SGLANG = {          # sglang 0.5.23, sglang/srt/layers/flashinfer_comm_fusion.py
    sglang.flashinfer_allreduce_residual_rmsnorm: [
        ("input_tensor", NONE), ("residual", NONE), ("weight", NONE), ("eps", 1e-6), ("max_token_num", 2048),
        ("use_oneshot", None), ("trigger_completion_at_end", False), ("fp32_acc", True), ("use_attn_tp_group", True)],
}
VLLM = {            # vllm at commit 00d618aab604, vllm/distributed/device_communicators/custom_all_reduce.py
    vllm.CustomAllreduce.__init__: [
        ("self", NONE), ("group", NONE), ("device", NONE), ("max_size", 8192 * 1024), ("symm_mem_enabled", False)],
    vllm.CustomAllreduce.finalize_p2p: [("self", NONE)],
    vllm.CustomAllreduce.capture: [("self", NONE)],
    vllm.CustomAllreduce.register_graph_buffers: [("self", NONE)],
    vllm.CustomAllreduce.should_custom_ar: [("self", NONE), ("inp", NONE)],
    vllm.CustomAllreduce.all_reduce: [("self", NONE), ("inp", NONE), None, ("out", None), ("registered", False)],
    vllm.CustomAllreduce.custom_all_reduce: [("self", NONE), ("input", NONE)],
    vllm.CustomAllreduce.close: [("self", NONE)],
    vllm.CustomAllreduce.create_shared_buffer: [("size_in_bytes", NONE), ("group", None), ("uncached", False)],
    vllm.CustomAllreduce.free_shared_buffer: [("pointers", NONE), ("group", None), ("rank", None)],
}
PATTERNS = [        # flashinfer-python 0.7.4, flashinfer/comm/trtllm_ar.py, by number
    "kAllReduce", "kARResidualRMSNorm", "kARResidualRMSNormFP8Quant", "kARResidualRMSNormFP4Quant",
    "kARResidualRMSNormOutFP8Quant", "kARResidualRMSNormOutFP4Quant", "kMoEReductionARResidualRMSNorm",
    "kMoEFinalizeARResidualRMSNorm", "kARResidualRMSNormPerTokenGroupFP8PackedQuant",
    "kARResidualRMSNormOutPerTokenGroupFP8PackedQuant", "kARResidualRMSNormDynamicFP8Quant",
    "kARResidualRMSNormOutDynamicFP8Quant", "kMoEFinalizeARResidualRMSNormFP8Quant", "kARResidualRMSNormMXFP8Quant",
    "kARResidualRMSNormOutMXFP8Quant"]


@pytest.mark.parametrize("theirs", [FLASHINFER, SGLANG, VLLM], ids=["flashinfer", "sglang", "vllm"])
def test_signatures_are_those_of_the_packages(theirs):
    """The same names in the same order with the same defaults, so that a call by position is the same call."""
    for function, expected in theirs.items():
        by_keyword = expected.index(None) if None in expected else len(expected)
        found = list(inspect.signature(function).parameters.values())
        assert [(p.name, p.default) for p in found] == [p for p in expected if p is not None], function
        assert [p.kind is p.KEYWORD_ONLY for p in found] == [i >= by_keyword for i in range(len(found))], function


def test_pattern_codes_are_flashinfers():
    assert {name: value for name, value in vars(P).items() if name.startswith("k")} == {
        name: code for code, name in enumerate(PATTERNS)}
    assert (QuantizationSFLayout.SWIZZLED_128x4, QuantizationSFLayout.SWIZZLED_8x4, QuantizationSFLayout.LINEAR) == (0, 1, 2)


def inputs(dtype=BF16, rows=5, columns=256):
    x = random_tensor(rows, columns, dtype=dtype, seed=resolve().rank)
    return x, random_tensor(rows, columns, dtype=dtype, seed=8), random_tensor(columns, dtype=dtype, seed=9)


def workspace(rows=8, columns=256, dtype=BF16, **more):
    return create_allreduce_fusion_workspace("trtllm", max_token_num=rows, hidden_dim=columns, dtype=dtype, **more)


# -- FlashInfer --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("use_oneshot", [None, True, False])
def test_flashinfers_patterns_give_what_the_ops_give(use_oneshot):
    def script():
        space, method = workspace(), {None: "auto", True: "one_shot", False: "two_shot"}[use_oneshot]
        x, residual, gamma = inputs()
        before, common = residual.clone(), dict(residual_in=residual, rms_gamma=gamma, rms_eps=1e-5, use_oneshot=use_oneshot)
        out = torch.empty_like(x)
        assert allreduce_fusion(x, space, P.kAllReduce, output=out, use_oneshot=use_oneshot) is out
        norm, total = torch.empty_like(x), torch.empty_like(x)
        assert allreduce_fusion(x, space, P.kARResidualRMSNorm, launch_with_pdl=True, residual_out=total, norm_out=norm,
                                **common) is norm
        given = dict(residual=before, eps=1e-5, method=method)
        triton_dist.synchronize()
        assert torch.equal(out, all_reduce(x, method=method)) and torch.equal(residual, before)
        expected, summed = all_reduce_rmsnorm(x, gamma, **given)
        triton_dist.synchronize()
        assert torch.equal(norm, expected) and torch.equal(total, summed)
        reference = all_reduce_rmsnorm_float64(x, gamma, resolve(), residual=before, eps=1e-5)
        assert_matches(total, reference[1], k=3)
        assert_matches(norm, reference[0], k=256, roundings=4)
        for scale in (0.25, torch.tensor([0.25])):
            for pattern, kept in ((P.kARResidualRMSNormFP8Quant, None), (P.kARResidualRMSNormOutFP8Quant, torch.empty_like(x))):
                q = torch.empty(5, 256, dtype=F8)
                assert allreduce_fusion(x, space, pattern, quant_out=q, norm_out=kept, scale_factor=scale, **common) is q
                triton_dist.synchronize()
                assert torch.equal(q.view(torch.uint8), (expected.float() * 4).clamp(-448, 448).to(F8).view(torch.uint8))
                assert kept is None or torch.equal(kept, expected)
        for pattern, kept in ((P.kARResidualRMSNormDynamicFP8Quant, None),
                              (P.kARResidualRMSNormOutDynamicFP8Quant, torch.empty_like(x))):
            q, scales = torch.empty(5, 256, dtype=F8), torch.empty(5, 1)
            allreduce_fusion(x, space, pattern, quant_out=q, scale_out=scales, residual_out=total, norm_out=kept, **common)
            own = all_reduce_rmsnorm_quant(x, gamma, quant="fp8_row", **given)
            triton_dist.synchronize()
            assert torch.equal(q.view(torch.uint8), own.out.view(torch.uint8)) and torch.equal(scales, own.scales)
            assert torch.equal(total, summed) and (kept is None or torch.equal(kept, expected))
        one_more = allreduce_fusion(x, space, P.kARResidualRMSNorm, weight_bias=1.0, **common)
        triton_dist.synchronize()
        reference = all_reduce_rmsnorm_float64(x, gamma, resolve(), residual=before, eps=1e-5, weight_bias=1.0)[0]
        assert_matches(one_more, reference, k=256, roundings=4)
        in_place = residual.clone()
        allreduce_fusion(x, space, P.kARResidualRMSNorm, residual_out=in_place, **dict(common, residual_in=in_place))
        triton_dist.synchronize()
        assert torch.equal(in_place, summed)
    run_ranks(script, 2)


def test_calls_as_vllms_fusion_makes_them():
    """The norm goes over the input and the sum over the residual; or the sum goes over the input, with a residual of zeros."""
    def script():
        space, (x, residual, gamma) = workspace(), inputs()
        expected, total = all_reduce_rmsnorm(x, gamma, residual=residual)
        bare, summed = all_reduce_rmsnorm(x, gamma)
        triton_dist.synchronize()
        for scale in (None, 0.25):
            pattern = P.kARResidualRMSNorm if scale is None else P.kARResidualRMSNormFP8Quant
            for nothing, norm, sums in ((False, expected, total), (True, bare, summed)):
                into, before = x.clone(), torch.zeros_like(residual) if nothing else residual.clone()
                normed = torch.empty_like(x) if nothing else into
                q = None if scale is None else torch.empty(x.shape, dtype=F8)
                allreduce_fusion(into, space, pattern, norm_out=normed, residual_out=into if nothing else before, quant_out=q,
                                 residual_in=before, rms_gamma=gamma, scale_factor=scale)
                triton_dist.synchronize()
                assert torch.equal(into if nothing else before, sums)
                if scale is None:
                    assert torch.equal(normed, norm)
                else:
                    assert torch.equal(q.view(torch.uint8), (norm.float() * 4).clamp(-448, 448).to(F8).view(torch.uint8))
        both = x.clone()
        allreduce_fusion(both, space, P.kARResidualRMSNormOutFP8Quant, norm_out=both, residual_out=residual, scale_factor=1.0,
                         residual_in=residual, rms_gamma=gamma)
        triton_dist.synchronize()
        assert torch.equal(both, expected) and torch.equal(residual, total)
    run_ranks(script, 2)


REFUSED = [
    *[(dict(pattern=code), UnsupportedFeature, f"pattern: {name} is not here; those that are: kAllReduce, .*fp8_1x128")
      for code, name in enumerate(PATTERNS) if any(word in name for word in ("FP4", "MoE", "Packed", "MXFP8"))],
    (dict(pattern=99), InvalidArgument, "pattern: expected a number of AllReduceFusionPattern, found 99"),
    (dict(pattern="kAllReduce"), InvalidArgument, "pattern: .*found 'kAllReduce'"),
    (dict(workspace=None), InvalidArgument, "workspace: expected one of create_allreduce_fusion_workspace .* NoneType"),
    (dict(residual_in=None), InvalidArgument, "residual_in: expected a tensor for kARResidualRMSNorm, found None"),
    (dict(rms_gamma=None), InvalidArgument, "rms_gamma: expected a tensor"),
    (dict(pattern=P.kARResidualRMSNormFP8Quant), InvalidArgument, "scale_factor: expected a tensor"),
    (dict(pattern=P.kARResidualRMSNormFP8Quant, scale_factor=-1.0), InvalidArgument, "scale_factor: .*above 0, found -1.0"),
    (dict(pattern=P.kARResidualRMSNormFP8Quant, scale_factor=torch.ones(2)), InvalidArgument, "scale: .*one element"),
    (dict(pattern=P.kARResidualRMSNormDynamicFP8Quant), InvalidArgument, "scale_out: expected a tensor"),
    (dict(weight_bias="1"), InvalidArgument, "weight_bias: expected a number, found '1'"),
    (dict(input=torch.ones(9, 256, dtype=BF16)), InvalidArgument, "input: expected at most 8 x 256 .*larger workspace"),
    (dict(input=torch.ones(256, dtype=BF16)), InvalidArgument, r"input: expected a tensor \[tokens, hidden\]"),
]


def test_what_flashinfers_calls_cannot_have_is_refused_and_the_world_goes_on():
    def script():
        space = workspace()
        x, residual, gamma = inputs()
        good = dict(input=x, workspace=space, pattern=P.kARResidualRMSNorm, residual_in=residual, rms_gamma=gamma)
        for change, kind, said in REFUSED:
            with pytest.raises(kind, match=said):
                allreduce_fusion(**dict(good, **change))
        allreduce_fusion(**good)
        space.destroy()
        with pytest.raises(InvalidArgument, match="workspace: .* after destroy"):
            allreduce_fusion(**good)
        for change, said in ((dict(rows=0), "max_token_num: expected a whole number of at least 1, found 0"),
                             (dict(dtype=F8), "dtype: expected torch.float16"), (dict(rank=5), "rank: expected None or "),
                             (dict(world_size=3), "world_size: expected None or 2")):
            with pytest.raises(InvalidArgument, match=said):
                workspace(**change)
        with pytest.raises(UnsupportedFeature, match="top_k: expected None"):
            workspace(top_k=8)
        triton_dist.synchronize()
    run_ranks(script, 2)


def test_a_workspace_says_what_it_is_for():
    def script():
        group = torch.distributed.group.WORLD if torch.distributed.is_initialized() else None
        space = workspace(group=group, world_size=2, rank=resolve().rank)
        assert (space.world_size, space.rank, space.backend) == (2, resolve().rank, "triton_dist")
        assert space.is_buffer_size_sufficient(2, 8, 256, BF16) and space.is_buffer_size_sufficient(2, 16, 128, BF16, True)
        assert not space.is_buffer_size_sufficient(2, 9, 256, BF16) and not space.is_buffer_size_sufficient(2, 8, 256, F32)
        assert not space.is_buffer_size_sufficient(4, 8, 256, BF16)
        x, residual, gamma = inputs(rows=8)
        spaces = dict(state().workspaces)
        generations = {key: space.generation for key, space in spaces.items()}
        allreduce_fusion(x, space, P.kARResidualRMSNorm, residual_in=residual, rms_gamma=gamma)
        allreduce_fusion(x, space, P.kAllReduce)
        triton_dist.synchronize()
        assert {key: space.generation for key, space in state().workspaces.items()} == generations, "no buffer moved"
        assert engines.most_bytes("all_reduce_rmsnorm", resolve()) == 16 << 20
    run_ranks(script, 2)


def test_flashinfers_functions_take_the_place_of_the_packages_own(monkeypatch):
    for name in ("flashinfer", "flashinfer.comm", "flashinfer.comm.allreduce"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    flashinfer.install()
    for name in ("flashinfer.comm", "flashinfer.comm.allreduce"):
        assert sys.modules[name].allreduce_fusion is allreduce_fusion
        assert sys.modules[name].create_allreduce_fusion_workspace is create_allreduce_fusion_workspace


# -- SGLang ------------------------------------------------------------------------------------------------------------
def test_sglangs_function_gives_the_norm_and_the_sum_or_leaves_the_call(monkeypatch):
    """Left to SGLang: tensors that are not contiguous, more tokens than it says, and sizes that are faster in parts."""
    monkeypatch.setattr(sglang, "_group_of", lambda use_attn_tp_group: None)

    def script():
        x, residual, gamma = inputs()
        for use_oneshot, method in ((None, "auto"), (True, "one_shot"), (False, "two_shot")):
            norm, total = sglang.flashinfer_allreduce_residual_rmsnorm(x, residual, gamma, 1e-5, use_oneshot=use_oneshot)
            expected = all_reduce_rmsnorm(x, gamma, residual=residual, eps=1e-5, method=method)
            triton_dist.synchronize()
            assert torch.equal(norm, expected[0]) and torch.equal(total, expected[1])
        compiled = torch.compile(lambda *t: sglang.flashinfer_allreduce_residual_rmsnorm(*t, 1e-5), backend="aot_eager",
                                 fullgraph=True)
        found = compiled(x, residual, gamma)
        expected = all_reduce_rmsnorm(x, gamma, residual=residual, eps=1e-5)
        triton_dist.synchronize()
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        left = [sglang.flashinfer_allreduce_residual_rmsnorm(*call, **more) for call, more in (
            ((x[:, ::2], residual[:, ::2], gamma[::2].contiguous()), {}), ((x, residual, gamma), dict(max_token_num=4)),
            ((torch.empty(0, 256), torch.empty(0, 256), torch.ones(256)), {}))]
        large = torch.empty(1, dtype=BF16).expand(4096, 4096)
        assert not engines.is_fused("all_reduce_rmsnorm", large, resolve())
        assert left == [(None, None)] * 3
    run_ranks(script, 2)
    run_ranks(lambda: sglang.flashinfer_allreduce_residual_rmsnorm(*inputs()) == (None, None) or pytest.fail("one rank"), 1)


def test_sglangs_groups_are_asked_for(monkeypatch):
    module = types.ModuleType("sglang.srt.layers.flashinfer_comm_fusion")
    asked = []

    def resolve_fusion_group(*, use_attn_tp_group):
        asked.append(use_attn_tp_group)
        return 2, 0, types.SimpleNamespace(device_group=None)
    module.flashinfer_allreduce_residual_rmsnorm = None
    for name in ("sglang", "sglang.srt", "sglang.srt.layers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sglang, "_group_of", None)
    with pytest.raises(UnsupportedFeature, match="resolve_fusion_group, found an older one"):
        sglang.install()
    assert module.flashinfer_allreduce_residual_rmsnorm is None
    module.resolve_fusion_group = resolve_fusion_group
    sglang.install()
    x = inputs
    run_ranks(lambda: module.flashinfer_allreduce_residual_rmsnorm(*x(), use_attn_tp_group=False), 2)
    assert asked and not any(asked)


# -- vLLM --------------------------------------------------------------------------------------------------------------
def test_vllms_communicator_sums_what_it_says_that_it_will_and_gives_none_for_the_rest():
    def script():
        communicator = vllm.CustomAllreduce(None, triton_dist.device(), max_size=1 << 14)
        assert not communicator.disabled and (communicator.world_size, communicator.rank) == (2, resolve().rank)
        communicator.finalize_p2p()
        x = random_tensor(7, 64, dtype=BF16, seed=resolve().rank)
        parts = [random_tensor(7, 64, dtype=BF16, seed=rank) for rank in range(2)]
        for t, expected in ((x, sum(p.double() for p in parts)), (x.t(), sum(p.double() for p in parts).t())):
            assert communicator.should_custom_ar(t)
            out = communicator.custom_all_reduce(t)
            triton_dist.synchronize()
            assert out is not t and out.stride() == t.stride()
            assert_matches(out, expected, k=2)
        into = torch.empty_like(x)
        assert communicator.all_reduce(x, out=into, registered=True) is into
        left = (x[:, ::2], torch.ones(7, dtype=BF16), torch.ones(1 << 13, dtype=BF16), torch.ones(16, dtype=torch.int64),
                torch.ones(0, 8))
        assert [communicator.custom_all_reduce(t) for t in left] == [None] * 5
        with pytest.raises(InvalidArgument, match=f"device: expected {triton_dist.device()}"):
            vllm.CustomAllreduce(None, "meta")
        with pytest.raises(UnsupportedFeature, match="create_symm_tensor"):
            vllm.CustomAllreduce.create_shared_buffer(64)
        communicator.close()
        assert communicator.custom_all_reduce(x) is None
    run_ranks(script, 2)
    run_ranks(lambda: vllm.CustomAllreduce(None, "cpu").disabled or pytest.fail("one rank"), 1)


def test_vllms_communicator_is_captured_after_a_call_in_its_context():
    def script():
        communicator = vllm.CustomAllreduce(None, triton_dist.device(), max_size=1 << 14)
        x = random_tensor(3, 64, dtype=F32, seed=resolve().rank)
        with communicator.capture():
            warm = communicator.custom_all_reduce(x)
            with capturing():
                captured = communicator.custom_all_reduce(x)
        triton_dist.synchronize()
        expected = sum(random_tensor(3, 64, dtype=F32, seed=rank).double() for rank in range(2))
        for out in (warm, captured):
            assert_matches(out, expected, k=2)
    run_ranks(script, 2)


def test_vllms_class_takes_the_place_of_the_packages_own(monkeypatch):
    name = "vllm.distributed.device_communicators.custom_all_reduce"
    for part in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators", name):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    vllm.install()
    assert sys.modules[name].CustomAllreduce is vllm.CustomAllreduce

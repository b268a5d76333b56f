# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""FlashInfer's unified all-reduce fusion (flashinfer.comm) over this package: the same arguments, workspace and pattern codes.

    from triton_dist.integrations import flashinfer
    flashinfer.install()                        # flashinfer.comm then gives these functions, to engines that call it as well

or, without FlashInfer, in the place of flashinfer.comm:

    from triton_dist.integrations.flashinfer import AllReduceFusionPattern, allreduce_fusion, create_allreduce_fusion_workspace

The patterns without quantisation, with static fp8 (one scale) and with dynamic fp8 (a scale of each row) are here, each also with
the norm beside the quantised output. NVFP4, MXFP8 and packed group scales are not, nor are those of mixtures of experts.
"""
import importlib
from typing import Any

import torch

from triton_dist.integrations import engines, refusals
from triton_dist.ops import all_reduce, all_reduce_rmsnorm, all_reduce_rmsnorm_quant
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.streams import device

_NAMES = ("allreduce_fusion", "create_allreduce_fusion_workspace")
_MODULES = ("flashinfer.comm", "flashinfer.comm.allreduce")
_MOST_SCALES = 4096
_scales: dict = {}                              # numbers that were given as scales, as tensors


class AllReduceFusionPattern:
    """What is done with the sum over ranks, by FlashInfer's numbers."""
    kAllReduce = 0
    kARResidualRMSNorm = 1
    kARResidualRMSNormFP8Quant = 2
    kARResidualRMSNormFP4Quant = 3
    kARResidualRMSNormOutFP8Quant = 4
    kARResidualRMSNormOutFP4Quant = 5
    kMoEReductionARResidualRMSNorm = 6
    kMoEFinalizeARResidualRMSNorm = 7
    kARResidualRMSNormPerTokenGroupFP8PackedQuant = 8
    kARResidualRMSNormOutPerTokenGroupFP8PackedQuant = 9
    kARResidualRMSNormDynamicFP8Quant = 10
    kARResidualRMSNormOutDynamicFP8Quant = 11
    kMoEFinalizeARResidualRMSNormFP8Quant = 12
    kARResidualRMSNormMXFP8Quant = 13
    kARResidualRMSNormOutMXFP8Quant = 14


class QuantizationSFLayout:
    """Orders of scales of NVFP4 and MXFP8, by FlashInfer's numbers. No pattern that is here has such scales."""
    SWIZZLED_128x4 = 0
    SWIZZLED_8x4 = 1
    LINEAR = 2


_P = AllReduceFusionPattern
_NUMBERS = {value: name for name, value in vars(_P).items() if name.startswith("k")}
_STATIC, _DYNAMIC = (_P.kARResidualRMSNormFP8Quant, _P.kARResidualRMSNormOutFP8Quant), (
    _P.kARResidualRMSNormDynamicFP8Quant, _P.kARResidualRMSNormOutDynamicFP8Quant)
_WITH_NORM = (_STATIC[1], _DYNAMIC[1])
_HERE = (_P.kAllReduce, _P.kARResidualRMSNorm, *_STATIC, *_DYNAMIC)


class AllReduceFusionWorkspace:
    """What calls of allreduce_fusion take: a group, and the size that they may have.

    Memory belongs to the group, and all of its workspaces share it.

    Attributes:
        world_size, rank: of the group.
        max_token_num, hidden_dim, dtype: of the largest call.
    """

    def __init__(self, group: Any, max_token_num: int, hidden_dim: int, dtype: torch.dtype):
        self.group, self.members = group, engines.members(group)
        self.world_size, self.rank = self.members.size, self.members.rank
        self.max_token_num, self.hidden_dim, self.dtype = max_token_num, hidden_dim, dtype
        self._destroyed = False
        self._make_room()

    @property
    def backend(self) -> str:
        """Names what serves the calls."""
        return "triton_dist"

    def is_buffer_size_sufficient(self, tp_size: int, num_tokens: int, hidden_dim: int, dtype: torch.dtype,
                                  use_oneshot: Any = None) -> bool:
        """Whether a call of this size may be made."""
        return (tp_size == self.world_size
                and num_tokens * hidden_dim * dtype.itemsize <= self.max_token_num * self.hidden_dim * self.dtype.itemsize)

    def destroy(self) -> None:
        """Ends the use of this object. Room in the symmetric heap stays with the group: see triton_dist.reset."""
        self._destroyed = True

    def usable(self) -> None:
        """Raises after destroy()."""
        if self._destroyed:
            raise InvalidArgument("workspace: expected one that is in use, found one after destroy(); make another")

    def _make_room(self) -> None:
        """So that buffers do not move at a first call. Collective."""
        def norm(x: torch.Tensor) -> None:
            all_reduce_rmsnorm(x, x.new_ones(self.hidden_dim), group=self.members)
        size = self.hidden_dim, self.max_token_num * self.hidden_dim * self.dtype.itemsize, self.dtype, self.members
        engines.make_room("all_reduce_rmsnorm", *size, norm)
        engines.make_room("all_reduce", *size, lambda x: all_reduce(x, group=self.members))


def create_allreduce_fusion_workspace(backend: str = "auto", world_size: int | None = None, rank: int | None = None,
                                      max_token_num: int | None = None, hidden_dim: int | None = None,
                                      dtype: torch.dtype | None = None, gpus_per_node: int | None = None,
                                      comm_backend: Any = None, force_oneshot_support: bool = False, group: Any = None, *,
                                      top_k: Any = None, rms_eps: Any = None, weight_bias: Any = None,
                                      routed_scaling_factor: Any = None, include_shared_expert: Any = None,
                                      add_residual: Any = None, write_residual_output: Any = None, apply_rms_norm: Any = None,
                                      output_dtype: Any = None, dynamic_fp8: Any = None, write_norm_output: Any = None,
                                      config: Any = None) -> AllReduceFusionWorkspace:
    """The workspace of calls of allreduce_fusion on `group`. Collective over it, and over all ranks if there is no world yet.

    Args:
        backend: has no meaning here.
        world_size, rank: None, or those of the group.
        max_token_num, hidden_dim, dtype: of the largest call.
        gpus_per_node, force_oneshot_support: have no meaning here.
        comm_backend: None, or an object of FlashInfer's that holds a process group, which is taken if `group` is None.
        group: ProcessGroup, or None for the world.
        Others belong to FlashInfer's CuTe DSL backend, and must be None.

    Raises InvalidArgument for sizes that are missing or do not suit the group.
    """
    options = dict(top_k=top_k, rms_eps=rms_eps, weight_bias=weight_bias, routed_scaling_factor=routed_scaling_factor,
                   include_shared_expert=include_shared_expert, add_residual=add_residual, apply_rms_norm=apply_rms_norm,
                   write_residual_output=write_residual_output, output_dtype=output_dtype, dynamic_fp8=dynamic_fp8,
                   write_norm_output=write_norm_output, config=config)
    for name, value in options.items():
        if value is not None:
            raise UnsupportedFeature(f"{name}: expected None, since it is an option of FlashInfer's own kernels, found {value!r}")
    for name, value in (("max_token_num", max_token_num), ("hidden_dim", hidden_dim)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidArgument(f"{name}: expected a whole number of at least 1, found {value!r}")
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise InvalidArgument(f"dtype: expected torch.float16, torch.bfloat16 or torch.float32, found {dtype!r}")
    group = getattr(comm_backend, "_group", None) if group is None else group
    found = engines.members(group)
    for name, value, own in (("world_size", world_size, found.size), ("rank", rank, found.rank)):
        if value is not None and value != own:
            raise InvalidArgument(f"{name}: expected None or {own}, that of the group, found {value!r}; pass the group of the "
                                  "ranks that call")
    return AllReduceFusionWorkspace(group, max_token_num, hidden_dim, dtype)


def allreduce_fusion(input: torch.Tensor, workspace: AllReduceFusionWorkspace, pattern: int, launch_with_pdl: bool = False,
                     trigger_completion_at_end: bool = True, output: torch.Tensor | None = None,
                     residual_out: torch.Tensor | None = None, norm_out: torch.Tensor | None = None,
                     quant_out: torch.Tensor | None = None, scale_out: torch.Tensor | None = None,
                     residual_in: torch.Tensor | None = None, rms_gamma: torch.Tensor | None = None, rms_eps: float = 1e-6,
                     scale_factor: Any = None, layout_code: int | None = None, use_oneshot: bool | None = None,
                     fp32_acc: bool = False, moe_reduction_device_num_experts: int | None = None,
                     moe_reduction_scale_input: torch.Tensor | None = None,
                     moe_reduction_active_experts_token_input: torch.Tensor | None = None,
                     moe_reduction_token_input: torch.Tensor | None = None,
                     expanded_idx_to_permuted_idx: torch.Tensor | None = None,
                     expert_scale_factor: torch.Tensor | None = None, shared_expert_output: torch.Tensor | None = None,
                     block_quant_group_size: int | None = None, weight_bias: float = 0.0, *,
                     moe_finalize_backend: str = "trtllm") -> torch.Tensor:
    """all_reduce(input), and for a pattern with a norm residual_in, RMSNorm and fp8. Collective over the workspace's group.

    Args:
        input: fp16, bf16 or fp32 [tokens, hidden]: this rank's partial sums.
        workspace: of create_allreduce_fusion_workspace.
        pattern: a number of AllReduceFusionPattern.
        launch_with_pdl, trigger_completion_at_end: have no meaning: kernels always overlap where the device can.
        output: of kAllReduce: where the sum goes, or None to allocate. Other patterns do not write it.
        residual_out, norm_out: where the sum with the residual, and the norm, go; None to allocate what the pattern gives. Either
            may be input, and residual_out may be residual_in.
        quant_out: float8_e4m3fn [tokens, hidden], or None to allocate.
        scale_out: fp32 [tokens, 1], of dynamic fp8: where the scales go.
        residual_in, rms_gamma, rms_eps: of the norm. All patterns but kAllReduce need the first two.
        scale_factor: of static fp8, a float32 tensor of one element, or a number: quant_out = norm / scale_factor.
        layout_code: has no meaning here.
        use_oneshot: True for one hop, False for two, None for the faster one.
        fp32_acc: has no meaning: sums are always in fp32.
        weight_bias: is added to rms_gamma in fp32: 1 for models whose norm multiplies by 1 + weight.
        Others belong to patterns that are not here.

    Returns:
        quant_out for patterns with fp8, norm_out for kARResidualRMSNorm, output for kAllReduce.

    Raises UnsupportedFeature for patterns that are not here, and InvalidArgument, a ValueError, for arguments that a pattern
    lacks. Both are raised before anything is sent.
    """
    if not isinstance(workspace, AllReduceFusionWorkspace):
        raise InvalidArgument(f"workspace: expected one of create_allreduce_fusion_workspace of this module, found "
                              f"{type(workspace).__name__}")
    with refusals.told(workspace.members, "allreduce_fusion"):
        _checked(input, workspace, pattern, residual_in, rms_gamma, scale_out, scale_factor)
        scale = _as_tensor(scale_factor) if pattern in _STATIC else None
    method = "auto" if use_oneshot is None else "one_shot" if use_oneshot else "two_shot"
    if pattern == _P.kAllReduce:
        return all_reduce(input, group=workspace.members, out=output, method=method)
    asked = dict(residual=residual_in, eps=rms_eps, weight_bias=weight_bias, group=workspace.members, method=method,
                 residual_out=residual_out)
    if pattern == _P.kARResidualRMSNorm:
        return all_reduce_rmsnorm(input, rms_gamma, out=norm_out, **asked)[0]
    if pattern in _STATIC:
        asked.update(quant="fp8_tensor", scale=scale)
    else:
        asked.update(quant="fp8_row", scales_out=scale_out)
    return all_reduce_rmsnorm_quant(input, rms_gamma, out=quant_out, norm_out=norm_out if pattern in _WITH_NORM else None,
                                    **asked).out


def _checked(input: Any, workspace: Any, pattern: Any, residual_in: Any, rms_gamma: Any, scale_out: Any,
             scale_factor: Any) -> None:
    """What the ops themselves do not see."""
    workspace.usable()
    name = _NUMBERS.get(pattern) if isinstance(pattern, int) else None
    if name is None:
        raise InvalidArgument(f"pattern: expected a number of AllReduceFusionPattern, found {pattern!r}")
    if pattern not in _HERE:
        here = ", ".join(_NUMBERS[code] for code in _HERE)
        raise UnsupportedFeature(f"pattern: {name} is not here; those that are: {here}. Scales of 128 columns: "
                                 "triton_dist.ops.all_reduce_rmsnorm_quant with quant='fp8_1x128'")
    if not isinstance(input, torch.Tensor) or input.ndim != 2:
        raise InvalidArgument(f"input: expected a tensor [tokens, hidden], found {list(getattr(input, 'shape', ()))}")
    if not workspace.is_buffer_size_sufficient(workspace.world_size, *input.shape, input.dtype):
        raise InvalidArgument(f"input: expected at most {workspace.max_token_num} x {workspace.hidden_dim} of "
                              f"{workspace.dtype}, that of the workspace, found {list(input.shape)} of {input.dtype}; make a "
                              "larger workspace")
    if pattern == _P.kAllReduce:
        return
    lacking = {"residual_in": residual_in is None, "rms_gamma": rms_gamma is None,
               "scale_factor": pattern in _STATIC and scale_factor is None,
               "scale_out": pattern in _DYNAMIC and scale_out is None}
    for argument, missing in lacking.items():
        if missing:
            raise InvalidArgument(f"{argument}: expected a tensor for {name}, found None")


def _as_tensor(scale: Any) -> torch.Tensor:
    """A scale as a float32 tensor on the device. One that was given as a number is made once."""
    if isinstance(scale, torch.Tensor):
        return scale.to(device=device(), dtype=torch.float32)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not scale > 0:
        raise InvalidArgument(f"scale_factor: expected a tensor of one element, or a number above 0, found {scale!r}")
    key = scale, device()
    found = _scales.get(key)
    if found is None and backend().is_capturing():          # memory of a graph is not kept
        return torch.full((1,), float(scale), dtype=torch.float32, device=device())
    if found is None:                                       # by a copy, for which the host waits: calls on any stream may read it
        found = backend().outside_pools(lambda: torch.tensor([float(scale)], dtype=torch.float32, device=device()))
        if len(_scales) < _MOST_SCALES:
            _scales[key] = found
    return found


def install() -> None:
    """Puts the two functions in place of those of flashinfer.comm, which has to be installed."""
    for name in _MODULES:
        module = importlib.import_module(name)
        for function in _NAMES:
            setattr(module, function, globals()[function])

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""SGLang's fused all-reduce, residual and RMSNorm (flashinfer_allreduce_residual_rmsnorm) over this package.

    from triton_dist.integrations import sglang
    sglang.install()                            # in each worker, before the model runs; SGLang starts with its fusion enabled

SGLang's layers call the function on the group of attention or of experts. `install` asks SGLang which ranks these are.
"""
import importlib
from typing import Any, Callable

import torch

from triton_dist.integrations import engines
from triton_dist.ops import all_reduce_rmsnorm
from triton_dist.runtime.errors import UnsupportedFeature

_MODULE = "sglang.srt.layers.flashinfer_comm_fusion"
_group_of: Callable[[bool], Any] = lambda use_attn_tp_group: None


def use_groups(group_of: Callable[[bool], Any]) -> None:
    """Says on which ranks calls are made.

    Args:
        group_of: use_attn_tp_group -> ProcessGroup, or None for the world.
    """
    global _group_of
    _group_of = group_of


def flashinfer_allreduce_residual_rmsnorm(input_tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor,
                                          eps: float = 1e-6, max_token_num: int = 2048, use_oneshot: bool | None = None,
                                          trigger_completion_at_end: bool = False, fp32_acc: bool = True,
                                          use_attn_tp_group: bool = True) -> tuple:
    """total = all_reduce(input_tensor) + residual, and its RMSNorm. Collective over the group that `use_groups` gives.

    Args:
        input_tensor: fp16, bf16 or fp32 [tokens, hidden]: this rank's partial sums.
        residual: of the same shape and dtype.
        weight: [hidden], same dtype: of the norm.
        eps: added to the mean of the squares.
        max_token_num: calls with more tokens are left to SGLang.
        use_oneshot: True for one hop, False for two, None for the faster one.
        trigger_completion_at_end, fp32_acc: have no meaning: kernels overlap where the device can, and sums are in fp32.
        use_attn_tp_group: whether the ranks are those of attention, or those of experts.

    Returns:
        (norm, total), or (None, None) if SGLang is to use its own kernels. This is so on one rank, for tensors that are not
        contiguous, and for sizes at which an all-reduce and a norm of their own are faster. All ranks decide alike. A graph
        of torch.compile always holds the call.
    """
    method = "auto" if use_oneshot is None else "one_shot" if use_oneshot else "two_shot"
    if torch.compiler.is_compiling():           # a graph holds the call; it may not depend on sizes
        return all_reduce_rmsnorm(input_tensor, weight, residual=residual, eps=eps, group=_group_of(use_attn_tp_group),
                                  method=method)
    group = engines.members(_group_of(use_attn_tp_group))
    contiguous = input_tensor.is_contiguous() and residual.is_contiguous() and weight.is_contiguous()
    if not contiguous or input_tensor.shape[0] > max_token_num or engines.why_not(group) is not None or (
            not engines.is_fused("all_reduce_rmsnorm", input_tensor, group)):
        return None, None
    return all_reduce_rmsnorm(input_tensor, weight, residual=residual, eps=eps, group=group, method=method)


def install() -> None:
    """Puts the function in place of SGLang's, which has to be installed, and takes SGLang's groups."""
    module = importlib.import_module(_MODULE)
    theirs = getattr(module, "resolve_fusion_group", None)
    if theirs is None:
        raise UnsupportedFeature(f"install: expected an SGLang whose {_MODULE} has resolve_fusion_group, found an older one; put "
                                 "the function in its place yourself, and say by use_groups on which ranks calls are made")
    use_groups(lambda use_attn_tp_group: theirs(use_attn_tp_group=use_attn_tp_group)[-1].device_group)
    module.flashinfer_allreduce_residual_rmsnorm = flashinfer_allreduce_residual_rmsnorm

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Operators of ag_gemm, gemm_rs and gemm_ar."""
from typing import Any

import torch

from triton_dist.ops.ag_gemm.op import ag_gemm
from triton_dist.ops.autograd import gemms as gradients
from triton_dist.ops.gemm_ar.op import gemm_ar
from triton_dist.ops.gemm_rs.op import gemm_rs
from triton_dist.ops.operators._shapes import cast, require, written, world_of
from triton_dist.ops.registry import Gradient, records, register
from triton_dist.runtime.groups import name_of


def _fake_ag_gemm(x, weight, bias, group, method, comm_sms):
    require(weight.shape[1] == x.shape[1], "weight: expected [N_local, K] with the K of x [M / W, K]")
    return x.new_empty((x.shape[0] * world_of(group), weight.shape[0]))


def _fake_ag_gemm_gathered(x, weight, bias, group, method, comm_sms):
    return (_fake_ag_gemm(x, weight, bias, group, method, comm_sms), x.new_empty((x.shape[0] * world_of(group), x.shape[1])))


def _fake_gemm_rs(x, weight, bias, group, hop_dtype, method):
    require(weight.shape[1] == x.shape[1], "weight: expected [N, K_local] with the K of x [M, K_local]")
    world = world_of(group)
    require(x.shape[0] % world == 0, "x: expected a number of rows that divides by the group size; pad the rows")
    return x.new_empty((x.shape[0] // world, weight.shape[0]))


def _fake_gemm_ar(x, weight, bias, residual, group, method):
    require(weight.shape[1] == x.shape[1], "weight: expected [N, K_local] with the K of x [M, K_local]")
    return x.new_empty((x.shape[0], weight.shape[0]))


AG_GEMM = register(
    "ag_gemm", "(Tensor x, Tensor weight, Tensor? bias, str group, str method, int? comm_sms) -> Tensor", ag_gemm,
    lambda x, weight, bias, group, method, comm_sms: ag_gemm(
        x, weight, group=group, bias=bias, method=method, comm_sms=comm_sms),
    _fake_ag_gemm, Gradient(gradients.keep_ag_gemm, gradients.ag_gemm_backward))

AG_GEMM_GATHERED = register(
    "ag_gemm_gathered", "(Tensor x, Tensor weight, Tensor? bias, str group, str method, int? comm_sms) -> (Tensor, Tensor)",
    ag_gemm, lambda x, weight, bias, group, method, comm_sms: ag_gemm(
        x, weight, group=group, bias=bias, method=method, comm_sms=comm_sms, return_gathered=True),
    _fake_ag_gemm_gathered, Gradient(gradients.keep_ag_gemm_gathered, gradients.ag_gemm_backward))

GEMM_RS = register(
    "gemm_rs", "(Tensor x, Tensor weight, Tensor? bias, str group, ScalarType? hop_dtype, str method) -> Tensor", gemm_rs,
    lambda x, weight, bias, group, hop_dtype, method: gemm_rs(
        x, weight, group=group, bias=bias, hop_dtype=hop_dtype, method=method),
    _fake_gemm_rs, Gradient(gradients.keep_gemm_rs, gradients.gemm_rs_backward))

GEMM_AR = register(
    "gemm_ar", "(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, str group, str method) -> Tensor", gemm_ar,
    lambda x, weight, bias, residual, group, method: gemm_ar(
        x, weight, bias=bias, residual=residual, group=group, method=method),
    _fake_gemm_ar, Gradient(gradients.keep_gemm_ar, gradients.gemm_ar_backward))


@records(ag_gemm)
def _(x: torch.Tensor, weight: torch.Tensor, *, group: Any = None, bias: torch.Tensor | None = None,
      out: torch.Tensor | None = None, return_gathered: bool = False, method: str = "auto", comm_sms: int | None = None,
      save_gathered: bool = False) -> Any:
    x, weight, bias = cast(x, weight, bias)
    asked = (x, weight, bias, name_of(group), method, comm_sms)
    if not return_gathered and not (save_gathered and weight.requires_grad):
        return written(AG_GEMM(*asked), out)
    result, gathered = AG_GEMM_GATHERED(*asked)
    result = written(result, out)
    return (result, gathered) if return_gathered else result


@records(gemm_rs)
def _(x: torch.Tensor, weight: torch.Tensor, *, group: Any = None, bias: torch.Tensor | None = None,
      out: torch.Tensor | None = None, hop_dtype: torch.dtype | None = None, method: str = "auto") -> torch.Tensor:
    x, weight, bias = cast(x, weight, bias)
    return written(GEMM_RS(x, weight, bias, name_of(group), hop_dtype, method), out)


@records(gemm_ar)
def _(x: torch.Tensor, weight: torch.Tensor, *, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None,
      group: Any = None, out: torch.Tensor | None = None, method: str = "auto") -> torch.Tensor:
    x, weight, bias, residual = cast(x, weight, bias, residual)
    return written(GEMM_AR(x, weight, bias, residual, name_of(group), method), out)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gradient of a weight, and where it goes."""
from typing import Any

import torch


def keep(ctx: Any, weight: torch.Tensor) -> None:
    """Notes the parameter whose `main_grad` its gradient is added to, if it has one."""
    ctx.parameter = weight if getattr(weight, "main_grad", None) is not None else None


def gradient(ctx: Any, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
    """That of weight [N, K] in x [M, K] @ weight^T, of which `grad` [M, N] is the gradient.

    Where the parameter has a `main_grad`, as Megatron gives it, the gradient is added to that in its dtype. Then what autograd
    gets is None, or zeros for a parameter that says by `grad_added_to_main_grad` that its hooks wait for something.
    """
    parameter = ctx.parameter
    if parameter is None:
        return grad.t() @ x
    main = parameter.main_grad
    main.add_(_product(grad, x, main.dtype))
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    parameter.grad_added_to_main_grad = True
    return torch.zeros_like(parameter)


def _product(grad: torch.Tensor, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """grad^T @ x in `dtype`, without a rounding to that of the operands where torch has such a product."""
    if dtype == x.dtype:
        return grad.t() @ x
    if x.device.type == "cpu":
        return grad.t().to(dtype) @ x.to(dtype)
    return torch.mm(grad.t(), x, out_dtype=dtype)

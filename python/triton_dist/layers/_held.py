# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What layers have in common."""
from typing import Any

import torch
from torch import nn

from triton_dist.runtime.errors import InvalidArgument


class Held(nn.Module):
    """Holds a weight and maybe a bias, frozen. The group is kept, not saved with the state."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, group: Any = None):
        super().__init__()
        for name, t in (("weight", weight), ("bias", bias)):
            if not isinstance(t, torch.Tensor) and (name == "weight" or t is not None):
                raise InvalidArgument(f"{name}: expected {'None or ' * (name == 'bias')}a torch.Tensor, found {type(t).__name__}")
        self.group = group
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def extra_repr(self) -> str:
        return f"weight={list(self.weight.shape)}, bias={self.bias is not None}"

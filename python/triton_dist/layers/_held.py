# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What layers have in common."""
import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from triton_dist.compat.torch import hooks_on_all_modules
from triton_dist.runtime.errors import InvalidArgument, NotInitialized
from triton_dist.runtime.groups import Group, TorchGroup
from triton_dist.runtime.state import state


class Held(nn.Module):
    """Holds a weight and maybe a bias, and the group that it works on.

    An nn.Parameter is held itself, so that weights that are tied stay tied through .half() and .to(), and is trained if it
    requires gradients. Of another tensor the memory is shared, and it is trained if that tensor requires gradients.
    A copy.deepcopy has the same group. Pickled (torch.save of the whole module) a ProcessGroup is kept by its name, and found
    again where it is first used: a program that loads the module makes its groups in the same order, or sets `layer.group`.
    The state_dict has no group.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, group: Any = None):
        super().__init__()
        for name, t in (("weight", weight), ("bias", bias)):
            if not isinstance(t, torch.Tensor) and (name == "weight" or t is not None):
                raise InvalidArgument(f"{name}: expected {'None or ' * (name == 'bias')}a torch.Tensor, found {type(t).__name__}")
        self._group = group
        self.weight = parameter(weight)
        self.bias = None if bias is None else parameter(bias)

    @property
    def group(self) -> Any:
        """What was given as `group`: a ProcessGroup, a DeviceMesh of one dimension, or None for the world."""
        if isinstance(self._group, _Name):
            self._group = self._group.find()
        return self._group

    @group.setter
    def group(self, group: Any) -> None:
        self._group = group

    def __deepcopy__(self, memo: dict) -> Self:
        made = type(self).__new__(type(self))
        memo[id(self)], memo[id(self._group)] = made, self._group
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    def __getstate__(self) -> dict:
        return dict(vars(self), _group=_portable(self._group))

    def extra_repr(self) -> str:
        return f"weight={list(self.weight.shape)}, bias={self.bias is not None}"


@dataclass(frozen=True)
class _Name:
    """A ProcessGroup that is to be found again by its name."""
    name: str

    def find(self) -> Any:
        """The group. Raises NotInitialized where there is none of this name."""
        from triton_dist.compat.distributed import resolve_process_group
        try:
            return resolve_process_group(self.name)         # pyright: ignore[reportArgumentType]
        except (RuntimeError, ValueError, KeyError) as error:
            raise NotInitialized(f"group: the layer was saved with the process group {self.name!r}, which there is none of here; "
                                 "make it first, or set layer.group") from error


def _portable(group: Any) -> Any:
    """`group` as it can be pickled."""
    if isinstance(group, Group):
        if group is state().world:
            return None                         # the world, also where it is loaded
        if not isinstance(group, TorchGroup):
            raise InvalidArgument(f"group: {group} cannot be pickled; save the state_dict, or set layer.group to None before")
        group = group.process_group
    name = getattr(group, "group_name", None)
    return _Name(name) if isinstance(group, torch.distributed.ProcessGroup) and name else group


def is_plain(module: nn.Module, kind: type) -> bool:
    """Whether a call of `module` is one of kind.forward and no more: nothing wraps or replaces it, or listens to its output."""
    own = module.__dict__
    hooked = own["_forward_pre_hooks"] or own["_forward_hooks"] or hooks_on_all_modules()
    return type(module) is kind and "forward" not in own and not hooked


def parameter(t: torch.Tensor) -> nn.Parameter:
    if isinstance(t, nn.Parameter):
        return t
    return nn.Parameter(t.detach(), requires_grad=t.requires_grad)

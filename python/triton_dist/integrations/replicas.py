# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Parameters that every rank holds whole, as DTensors beside those that ranks hold in parts.

torch's optimizers and `clip_grad_norm_` take parameters in lists (`foreach`, the default on GPUs), and a list may not mix
DTensors with other tensors.
"""
from functools import cache, wraps
from typing import Any, Callable, Collection

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from triton_dist.layers.replicated import replicated
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import name_of

_CALLS = "_triton_dist_calls"           # attribute of modules: the _Calls of their model


def replicate_parameters(model: nn.Module, mesh: DeviceMesh, parts: Collection[nn.Module] = ()) -> nn.Module:
    """Makes DTensors of those parameters that are none yet, whole on every rank of `mesh`, in place. Collective.

    After parallelize_module, so that any optimizer and `clip_grad_norm_` take all parameters together, and before fully_shard
    over another dimension of the mesh. Modules compute as before: while `forward` of one of them runs, a parameter reads as the
    plain tensor that the DTensor holds.

    Args:
        model: its plain parameters get rank 0's values. Parameters that several modules share remain shared.
        mesh: DeviceMesh of one dimension, such as mesh["tp"].
        parts: modules of the model that work on this rank's part of the features or of the sequence only, such as norms of
            heads. Their gradients are summed over the ranks.

    Returns model. Raises InvalidArgument for a mesh of several dimensions.

    Example:
        parallelize_module(model, mesh["tp"], plan)
        replicate_parameters(model, mesh["tp"])
        optimizer = torch.optim.AdamW(model.parameters())
    """
    if mesh.ndim != 1:
        raise InvalidArgument(f"mesh: expected one of one dimension, found {mesh.ndim}; pass mesh['tp']")
    known: dict[int, nn.Parameter] = {}
    of_parts, calls = {id(module) for module in parts}, _Calls()
    for module in list(model.modules()):
        plain = {name: p for name, p in module._parameters.items() if p is not None and not isinstance(p, DTensor)}
        for name, p in plain.items():
            if id(p) not in known:
                everywhere = distribute_tensor(p.detach(), mesh, [Replicate()])
                known[id(p)] = nn.Parameter(everywhere, requires_grad=p.requires_grad)
            module._parameters[name] = known[id(p)]
        if plain:
            group = name_of(mesh) if id(module) in of_parts else None
            module.__class__ = _of_plain_tensors(type(module), tuple(plain), group)
            vars(module)[_CALLS] = calls
    for module in model.modules():              # those that may use parameters of the ones inside of them
        inside = [each for each in module.modules() if _CALLS in vars(each)]
        if inside and _CALLS not in vars(module):
            module.__class__ = _of_plain_tensors(type(module), (), None)
        if inside:
            vars(module)[_CALLS] = calls
    return model


class _Calls:
    """How many calls of `forward` of a model's modules are going on."""
    number = 0


@cache
def _of_plain_tensors(kind: type, names: tuple[str, ...], group: str | None) -> type:
    """A class like `kind`, whose parameters of these names read as plain tensors in `forward`.

    group: what sums their gradients, or None.
    """
    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls = vars(self)[_CALLS]
        calls.number += 1
        try:
            return kind.forward(self, *args, **kwargs)
        finally:
            calls.number -= 1
    readers = {name: property(_reader(name, group), _writer(name), _deleter(name)) for name in names}
    return type(kind.__name__, (kind, ), {"__module__": kind.__module__, "forward": forward, **readers})


def _reader(name: str, group: str | None) -> Callable[[Any], Any]:
    def read(module: Any) -> Any:
        own = vars(module)
        where = own["_parameters"] if name in own["_parameters"] else own
        if name not in where:
            raise AttributeError(name)              # nn.Module looks elsewhere then
        found = where[name]
        if not own[_CALLS].number or not isinstance(found, torch.Tensor):
            return found
        local = found.to_local() if isinstance(found, DTensor) else found
        return local if group is None else replicated(local, group)
    return read


def _writer(name: str) -> Callable[[Any, Any], None]:
    """Sets what is no parameter: nn.Module sets those itself."""
    def write(module: Any, value: Any) -> None:
        vars(module)[name] = value
    return write


def _deleter(name: str) -> Callable[[Any], None]:
    def delete(module: Any) -> None:
        if name not in vars(module):
            raise AttributeError(name)
        del vars(module)[name]
    return delete

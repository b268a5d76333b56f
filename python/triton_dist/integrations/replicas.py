# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Parameters that every rank holds whole, as DTensors beside those that ranks hold in parts.

torch's optimizers and `clip_grad_norm_` take parameters in lists (`foreach`, the default on GPUs), and a list may not mix
DTensors with other tensors.
"""
from functools import cache
from typing import Any, Callable, Collection

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from triton_dist.layers.replicated import replicated
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import name_of


def replicate_parameters(model: nn.Module, mesh: DeviceMesh, parts: Collection[nn.Module] = ()) -> nn.Module:
    """Makes DTensors of those parameters that are none yet, whole on every rank of `mesh`, in place. Collective.

    After parallelize_module, so that any optimizer and `clip_grad_norm_` take all parameters together. Modules compute as before:
    to their code a parameter is the plain tensor that the DTensor holds.

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
    of_parts = {id(module) for module in parts}
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
    return model


@cache
def _of_plain_tensors(kind: type, names: tuple[str, ...], group: str | None) -> type:
    """A class like `kind`, whose parameters of these names read as plain tensors. group: what sums their gradients, or None."""
    readers = {name: property(_reader(name, group)) for name in names}
    return type(kind.__name__, (kind, ), {"__module__": kind.__module__, **readers})


def _reader(name: str, group: str | None) -> Callable[[Any], Any]:
    def read(module: Any) -> Any:
        p = module._parameters[name]
        local = p.to_local() if isinstance(p, DTensor) else p
        return local if group is None else replicated(local, group)
    return read

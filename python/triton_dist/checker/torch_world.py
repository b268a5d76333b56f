# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""torch.distributed and torchrun's environment as a virtual rank sees them.

While a script is checked, the functions of torch.distributed act on the virtual world of the rank that calls them; those that
have no counterpart there say so. RANK, LOCAL_RANK and WORLD_SIZE in os.environ are the calling rank's.
"""
import os
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Callable, Iterator, Optional

import torch
import torch.distributed as dist

from triton_dist.runtime.errors import UnsupportedFeature
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.state import state

_SUMS = {"SUM": torch.sum, "AVG": torch.mean, "MAX": torch.amax, "MIN": torch.amin, "PRODUCT": torch.prod}


def _group(group: Any) -> Group:
    return state().world if group is None else resolve(group)


def _index(group: Group, rank: Optional[int], group_rank: Optional[int]) -> int:
    """A member's place in the group, from its world rank or as given."""
    return group_rank if rank is None and group_rank is not None else group.world_ranks.index(rank or 0)


class _Done:
    """What an asynchronous collective returns: it is over."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _result(async_op: bool) -> Any:
    return _Done() if async_op else None


def _gathered(name: str, tensor: torch.Tensor, group: Group) -> list:
    group.finish_stream()
    return group.share(name, tensor.detach().clone())


def _reduced(parts: list, op: Any) -> torch.Tensor:
    name = str(op).rsplit(".", maxsplit=1)[-1]
    if name not in _SUMS:
        raise UnsupportedFeature(f"reduce op {op} under check: expected one of {', '.join(_SUMS)}")
    stacked = torch.stack(parts)
    wide = stacked.float() if stacked.dtype in (torch.bfloat16, torch.float16) else stacked
    return _SUMS[name](wide, 0).to(stacked.dtype)


def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    tensor.copy_(_reduced(_gathered("all_reduce", tensor, _group(group)), op))
    return _result(async_op)


def broadcast(tensor: torch.Tensor, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None) -> Any:
    members = _group(group)
    tensor.copy_(_gathered("broadcast", tensor, members)[_index(members, src, group_src)])
    return _result(async_op)


def all_gather(tensor_list: list, tensor: torch.Tensor, group: Any = None, async_op: bool = False) -> Any:
    for out, part in zip(tensor_list, _gathered("all_gather", tensor, _group(group))):
        out.copy_(part)
    return _result(async_op)


def all_gather_into_tensor(output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any = None,
                           async_op: bool = False) -> Any:
    parts = _gathered("all_gather_into_tensor", input_tensor, _group(group))
    output_tensor.copy_(torch.cat([part.reshape(-1) for part in parts]).view(output_tensor.shape))
    return _result(async_op)


def reduce_scatter_tensor(output: torch.Tensor, input: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None,
                          async_op: bool = False) -> Any:
    members = _group(group)
    total = _reduced(_gathered("reduce_scatter_tensor", input, members), op).reshape(members.size, -1)
    output.copy_(total[members.rank].view(output.shape))
    return _result(async_op)


def all_to_all_single(output: torch.Tensor, input: torch.Tensor, output_split_sizes: Any = None, input_split_sizes: Any = None,
                      group: Any = None, async_op: bool = False) -> Any:
    members = _group(group)
    sizes = list(input_split_sizes or [input.shape[0] // members.size] * members.size)
    members.finish_stream()
    everything = members.share("all_to_all_single", (input.detach().clone(), sizes))
    output.copy_(torch.cat([part.split(split)[members.rank] for part, split in everything]))
    return _result(async_op)


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    _group(group).barrier()
    return _result(async_op)


def all_gather_object(object_list: list, obj: Any, group: Any = None) -> None:
    object_list[:] = _group(group).all_gather_object(obj)


def broadcast_object_list(object_list: list, src: Any = None, group: Any = None, device: Any = None,
                          group_src: Any = None) -> None:
    members = _group(group)
    object_list[:] = members.broadcast_object(object_list, _index(members, src, group_src))


def new_group(ranks: Any = None, *_: Any, **__: Any) -> Any:
    world = state().world
    made = world.new_group(range(world.size) if ranks is None else ranks)
    return dist.GroupMember.NON_GROUP_MEMBER if made is None else made.held


_VIRTUAL: dict[str, Callable] = {
    "init_process_group": lambda *_, **__: None, "destroy_process_group": lambda *_, **__: None,
    "is_initialized": lambda: True, "is_available": lambda: True, "is_torchelastic_launched": lambda: True,
    "get_rank": lambda group=None: _group(group).rank, "get_world_size": lambda group=None: _group(group).size,
    "get_backend": lambda group=None: "gloo", "get_node_local_rank": lambda fallback_rank=None: state().world.rank,
    "get_process_group_ranks": lambda group=None: list(_group(group).world_ranks),
    **{fn.__name__: fn for fn in (all_reduce, broadcast, all_gather, all_gather_into_tensor, reduce_scatter_tensor,
                                  all_to_all_single, barrier, all_gather_object, broadcast_object_list, new_group)},
    "all_gather_single": all_gather_into_tensor, "reduce_scatter_single": reduce_scatter_tensor,
}
_REFUSED = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "scatter", "gather", "reduce", "all_to_all", "reduce_scatter",
            "monitored_barrier", "gather_object", "scatter_object_list", "new_subgroups", "split_group", "init_device_mesh",
            "all_reduce_coalesced", "all_gather_coalesced")


def _refuse(name: str) -> Callable:
    def refused(*_: Any, **__: Any) -> None:
        raise UnsupportedFeature(f"torch.distributed.{name} under check: virtual ranks have {', '.join(sorted(_VIRTUAL))}; use "
                                 "one of these, or run the script without --check")
    return refused


class _Environment(dict):
    """os.environ's data, with torchrun's variables as the calling rank's."""

    def __getitem__(self, key: Any) -> Any:
        world = state().world
        if key in (b"RANK", b"LOCAL_RANK") and world is not None:
            return str(world.world_ranks[world.rank]).encode()
        if key in (b"WORLD_SIZE", b"LOCAL_WORLD_SIZE") and world is not None:
            return str(world.size).encode()
        return super().__getitem__(key)


@contextmanager
def virtual_torch() -> Iterator[None]:
    """Inside the block torch.distributed and os.environ speak of virtual ranks."""
    replaced = {**{name: _refuse(name) for name in _REFUSED}, **_VIRTUAL}
    replaced = {name: fn for name, fn in replaced.items() if hasattr(dist, name)}
    before = {name: getattr(dist, name) for name in replaced}
    group, data = dist.group, os.environ._data
    for name, fn in replaced.items():
        setattr(dist, name, fn)
    dist.group = _Groups()
    os.environ._data = _Environment(data)
    try:
        yield
    finally:
        os.environ._data = data
        dist.group = group
        for name, fn in before.items():
            setattr(dist, name, fn)


class _Groups(SimpleNamespace):
    """torch.distributed.group."""

    @property
    def WORLD(self) -> Any:
        return None if state().world is None else state().world.held

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Groups of ranks, seen the same way whether torch.distributed, an emulated world or a lone process is behind them."""
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Callable

import torch

from triton_dist.compat.torch import mark_constant
from triton_dist.runtime import ambient, threads
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument, NotInitialized
from triton_dist.runtime.state import state


class Group(ABC):
    """An ordered set of world ranks that this rank belongs to. Its methods are collective over the set."""

    rank: int                       # this rank's index within the group
    size: int
    world_ranks: tuple              # world rank of every member, by index
    name: str = ""                  # by which `resolve` finds it; "": the world

    @property
    def key(self) -> tuple:
        """Identity of the group, equal on all members. Groups of the same ranks share workspaces."""
        return self.world_ranks

    @cached_property
    def held(self) -> "HeldGroup":
        """What users hold of it where it is none of torch's."""
        return HeldGroup(self)

    @cached_property
    def alone(self) -> "Group":
        """This rank as a group of its own, for what each rank does for itself: nothing is sent in it."""
        return self if self.size == 1 else AloneGroup(self)

    @property
    def nodes(self) -> tuple:
        """Indices of the members on each node, nodes by their first member: ((0, 1), (2, 3)) for two nodes of two.

        A node is a set of ranks that reach each other's memory by loads and stores; only SHMEM calls pass between nodes.
        Raises NotInitialized before there is a symmetric heap.
        """
        if not state().nodes:
            raise NotInitialized("nodes are known once there is a symmetric heap: call triton_dist.initialize_distributed()")
        found: dict = {}
        for index, rank in enumerate(self.world_ranks):
            found.setdefault(state().nodes[rank], []).append(index)
        return tuple(map(tuple, found.values()))

    @property
    def node(self) -> int:
        """Which of `nodes` this rank is on."""
        return next(i for i, members in enumerate(self.nodes) if self.rank in members)

    @property
    def local_rank(self) -> int:
        """This rank's place among the members on its node."""
        return self.nodes[self.node].index(self.rank)

    @property
    def ranks_per_node(self) -> int | None:
        """Members on each node; None where nodes have different numbers, or their members are not neighbours in the group."""
        nodes, each = self.nodes, len(self.nodes[0])
        regular = tuple(tuple(range(i * each, (i + 1) * each)) for i in range(len(nodes)))
        return each if nodes == regular else None

    def usable_in(self, world: "Group") -> bool:
        """Whether it is a part of `world`, the present one, and has not been destroyed."""
        return set(self.world_ranks) <= set(world.world_ranks)

    @abstractmethod
    def barrier(self) -> None:
        """Returns once every member has called it."""

    @abstractmethod
    def all_gather_object(self, obj: Any) -> list:
        """Picklable object of every member, by index."""

    @abstractmethod
    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """The object of member `root`."""

    @abstractmethod
    def all_gather_tensor(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """out [size * rows, ...] receives x [rows, ...] of every member, by index."""

    @abstractmethod
    def reduce_scatter_tensor(self, out: torch.Tensor, x: torch.Tensor, op: str = "sum") -> None:
        """out [rows, ...] receives the reduction over members of their x [size * rows, ...], rows of this member's index.

        op: "sum", "max" or "min".
        """

    @abstractmethod
    def all_reduce_tensor(self, x: torch.Tensor, op: str = "sum") -> None:
        """x, of any shape, becomes the "sum", "max" or "min" over members of their x."""

    @abstractmethod
    def all_to_all_tensor(self, out: torch.Tensor, x: torch.Tensor, out_splits: list | None = None,
                          in_splits: list | None = None) -> None:
        """out receives every member's rows of x for this member, by index: equally many, or as many as the splits say."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank} of {self.size}, world ranks {list(self.world_ranks)})"


class HeldGroup:
    """What users hold of a group where torch.distributed has none: in a world of one, and in emulated ones of one process.

    It has those methods of torch's ProcessGroup that ask for no communication, and works as `group=` of every op.
    """

    def __init__(self, members: Group):
        self.members, self.group_name = members, members.name

    def rank(self) -> int:
        """This rank's index within the group."""
        return self.members.rank

    def size(self) -> int:
        """Number of members."""
        return self.members.size

    def name(self) -> str:
        """What ProcessGroup.name() gives for another backend."""
        return "triton_dist"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank()} of {self.size()}, world ranks {list(self.members.world_ranks)})"


class SoloGroup(Group):
    """A world of one: no launcher, no torch.distributed."""

    rank, size, world_ranks = 0, 1, (0,)

    def barrier(self) -> None:
        pass

    def all_gather_object(self, obj: Any) -> list:
        return [obj]

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        return obj

    def all_gather_tensor(self, out: torch.Tensor, x: torch.Tensor) -> None:
        out.copy_(x)

    def reduce_scatter_tensor(self, out: torch.Tensor, x: torch.Tensor, op: str = "sum") -> None:
        out.copy_(x)

    def all_reduce_tensor(self, x: torch.Tensor, op: str = "sum") -> None:
        pass

    def all_to_all_tensor(self, out: torch.Tensor, x: torch.Tensor, out_splits: list | None = None,
                          in_splits: list | None = None) -> None:
        out.copy_(x)


class AloneGroup(SoloGroup):
    """One rank of a larger group, alone."""

    def __init__(self, of: Group):
        self._of, self.world_ranks = of, (of.world_ranks[of.rank],)

    def usable_in(self, world: Group) -> bool:
        return self._of is world or self._of.usable_in(world)


class TorchGroup(Group):
    """A torch.distributed.ProcessGroup."""

    def __init__(self, process_group: Any):
        import torch.distributed as dist
        self._dist, self._pg, self.name = dist, process_group, process_group.group_name
        self.rank = dist.get_rank(process_group)
        self.world_ranks = tuple(dist.get_process_group_ranks(process_group))
        self.size = len(self.world_ranks)

    @property
    def process_group(self) -> Any:
        """The ProcessGroup itself."""
        return self._pg

    def usable_in(self, world: Group) -> bool:
        try:
            return self._dist.get_rank(self._pg) >= 0
        except ValueError:                      # destroyed
            return False

    def barrier(self) -> None:
        _blocking(lambda: self._dist.barrier(self._pg))

    def all_gather_object(self, obj: Any) -> list:
        box = [None] * self.size
        _blocking(lambda: self._dist.all_gather_object(box, obj, group=self._pg))
        return box

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        box = [obj]
        _blocking(lambda: self._dist.broadcast_object_list(box, src=self.world_ranks[root], group=self._pg))
        return box[0]

    def all_gather_tensor(self, out: torch.Tensor, x: torch.Tensor) -> None:
        gather = getattr(self._dist, "all_gather_single", None) or self._dist.all_gather_into_tensor     # torch 2.13's name
        backend().blocking(lambda: gather(out, x, group=self._pg))

    def reduce_scatter_tensor(self, out: torch.Tensor, x: torch.Tensor, op: str = "sum") -> None:
        scatter = getattr(self._dist, "reduce_scatter_single", None) or self._dist.reduce_scatter_tensor
        backend().blocking(lambda: scatter(out, x, self._reduce_op(op), group=self._pg))

    def all_reduce_tensor(self, x: torch.Tensor, op: str = "sum") -> None:
        backend().blocking(lambda: self._dist.all_reduce(x, self._reduce_op(op), group=self._pg))

    def _reduce_op(self, op: str) -> Any:
        return getattr(self._dist.ReduceOp, op.upper())

    def all_to_all_tensor(self, out: torch.Tensor, x: torch.Tensor, out_splits: list | None = None,
                          in_splits: list | None = None) -> None:
        backend().blocking(lambda: self._dist.all_to_all_single(out, x, out_splits, in_splits, group=self._pg))


def of_torch(process_group: Any) -> Group:
    """The Group of a torch ProcessGroup: of virtual ranks its own. Raises KeyError or ValueError for one that is destroyed."""
    return getattr(process_group, "virtual", None) or TorchGroup(process_group)


def resolve(group: Any = None) -> Group:
    """The Group behind what a user passes as `group=`.

    Accepts None (the world), a Group or what users hold of it, a torch ProcessGroup or its name, or a one-dimensional
    DeviceMesh.
    Raises InvalidArgument for anything else and for a group that this rank is not in.
    """
    me = state()
    world = me.world
    if world is None:
        raise NotInitialized(me.forked or "no world yet: call triton_dist.initialize_distributed() first")
    if me.turn != threads.this.number:
        threads.take_turn()
    if isinstance(group, str):
        group = _of_name(group)
    if group is None:
        return world
    if isinstance(group, HeldGroup):
        group = group.members
    if isinstance(group, Group):
        return _present(group, world)
    import torch.distributed as dist
    process_group = group
    if hasattr(group, "get_group") and hasattr(group, "mesh"):
        if group.mesh.ndim != 1:
            raise InvalidArgument(f"group: expected a one-dimensional DeviceMesh, found {group.mesh.ndim} dimensions; "
                                  "pass mesh['name'] of the dimension to communicate over")
        process_group = group.get_group()
    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgument("group: this rank is not a member of the group it was given; only members may call")
    if not isinstance(process_group, dist.ProcessGroup):
        raise InvalidArgument(f"group: expected None, a ProcessGroup or a DeviceMesh, found {type(group).__name__}")
    known = state().groups.get(id(process_group))
    if known is not None:
        return _present(known[1], world)
    _sweep()
    try:
        resolved = of_torch(process_group)
    except (KeyError, ValueError) as error:
        raise InvalidArgument(f"group: found a ProcessGroup that torch.distributed does not know ({error}), maybe one that has "
                              "been destroyed; make it again") from error
    if resolved.world_ranks == world.world_ranks:
        resolved = world
    state().groups[id(process_group)] = (process_group, resolved)     # keeps it alive, so its id stays its own
    return resolved


def name_of(group: Any) -> str:
    """The name by which `resolve` finds what a user passes as `group=`, and its size: "name@2", "@2" for a world of two.

    torch.compile traces this, and compilers keep graphs on disk: shapes in a graph depend on the size, so it must be in it.
    """
    if group is None:
        return f"@{_size_of('')}"
    if isinstance(group, str):
        return group if "@" in group else f"{group}@{_size_of(group)}"
    if isinstance(group, Group):
        return f"{group.name}@{group.size}"
    if isinstance(group, HeldGroup):
        return f"{group.group_name}@{group.size()}"
    import torch.distributed as dist
    if not isinstance(group, dist.ProcessGroup):
        if not hasattr(group, "get_group"):
            raise InvalidArgument(f"group: expected None, a ProcessGroup or a DeviceMesh, found {type(group).__name__}")
        group = group.get_group()
    return f"{group.group_name}@{group.size()}"


def size_of(group: Any) -> int:
    """Number of ranks of what a user passes as `group=`. torch.compile traces this."""
    return int(name_of(group).rpartition("@")[2])


def _size_of(name: str) -> int:
    """Number of ranks of the group of this name, now: torch.compile asks once."""
    return resolve(name).size


mark_constant(_size_of)


def _of_name(name: str) -> Any:
    """The group of this name, None for the world. Raises InvalidArgument where there is none, or one of another size."""
    name, _, size = name.partition("@")
    me = state()
    if not name:
        group = None
    elif name in me.named:
        group = me.named[name]
    else:
        from triton_dist.compat.distributed import resolve_process_group
        try:
            group = resolve_process_group(name)         # pyright: ignore[reportArgumentType]
        except (RuntimeError, ValueError, KeyError) as error:
            raise InvalidArgument(f"group: found the name {name!r}, which no process group has here; make the group "
                                  "first") from error
    found = resolve(group).size
    if size and int(size) != found:
        raise InvalidArgument(f"group: found a graph that was made for {size} ranks, and now there are {found}; compile it again "
                              "(torch._dynamo.reset())")
    return group


def _sweep() -> None:
    """Forgets groups that have been destroyed. All members do so before they use another group of the same ranks."""
    me = state()
    for key, (_, group) in list(me.groups.items()):
        if group is not me.world and not group.usable_in(me.world):
            del me.groups[key]
            me.forget_records(lambda record, group=group: record.group is group)
            if all(other.key != group.key for _, other in me.groups.values()) and group.key != me.world.key:
                forget(group.key)


def forget(key: tuple) -> None:
    """Drops what calls on groups of these ranks have left. Their buffers are free once all members have dropped them."""
    me = state()
    me.forget_records(lambda record: record.group.key == key)
    me.workspaces = {where: space for where, space in me.workspaces.items() if where[0] != key}
    me.teams.pop(key, None)


def _blocking(call: Callable[[], Any]) -> None:
    """A collective of objects, whose tensors torch makes by whatever default device there is, and keeps for a while."""
    with ambient.clean():
        backend().blocking(lambda: backend().outside_pools(call))


def _present(group: Group, world: Group) -> Group:
    if group is not world and not group.usable_in(world):
        raise InvalidArgument(f"group: found one of ranks {list(group.world_ranks)} that belongs to another world or has been "
                              "destroyed; make it again in this world")
    return group


def nodes_by_reach(reach: list) -> tuple:
    """Node of each rank, from the lists of whom each rank reaches by loads and stores: one node where these are equal."""
    rows = [tuple(row) for row in reach]
    firsts = list(dict.fromkeys(rows))
    return tuple(firsts.index(row) for row in rows)


def require_agreement(group: Group, what: str, value: Any) -> None:
    """Collective: raises CollectiveMismatch on every member when `value` differs between members. Also a barrier."""
    expect_equal(group, what, group.all_gather_object(value))


def expect_equal(group: Group, what: str, values: list) -> None:
    """Raises CollectiveMismatch where the values that members have told, by index, differ."""
    for index, other in enumerate(values):
        if other != values[0]:
            raise CollectiveMismatch(
                f"{what}: ranks disagree: rank {group.world_ranks[0]} has "
                f"{values[0]}, rank {group.world_ranks[index]} has {other}; every rank of the group must pass the same")

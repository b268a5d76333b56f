# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""torch.distributed on virtual ranks: the backend "emulator", and each rank's own table of process groups.

torch keeps the groups of a process in one table, `distributed_c10d._world`, which it names as the point to override. Virtual
ranks are threads of one process, so while a virtual world runs each of them sees a table of its own there. Everything else
goes through torch's public interface: collectives, new_group, DeviceMesh, functional collectives and DTensor work unchanged.
"""
import functools
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Callable, Iterator, Optional

import torch
import torch.distributed as dist
import torch.distributed.nn  # noqa: F401    its functions' defaults are the world of the moment in which it is imported

from triton_dist.backends.emulator.worlds.meeting import VirtualGroup
from triton_dist.compat import distributed as private
from triton_dist.runtime.errors import CollectiveMismatch, UnsupportedFeature
from triton_dist.runtime.state import state

NAME = "emulator"


class _Work(dist.Work):
    """A collective under way. It is completed by the rank that waits for it."""

    def __init__(self, finish: Callable[[], Any], outputs: list):
        super().__init__()
        self._finish: Optional[Callable] = finish
        self._outputs, self._source = outputs, -1

    def wait(self, timeout: Any = None) -> bool:
        if self._finish is not None:
            finish, self._finish = self._finish, None
            with torch.no_grad():
                self._source = finish()
        return True

    def is_completed(self) -> bool:
        return self.wait()

    def is_success(self) -> bool:
        return self._finish is None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list:
        return self._outputs

    def get_future(self) -> torch.futures.Future:
        self.wait()
        future = torch.futures.Future()
        future.set_result(self.result())
        return future

    def _source_rank(self) -> Any:
        return self._source


class EmulatorProcessGroup(dist.ProcessGroup):
    """A process group of virtual ranks. `virtual` is the same group as triton_dist sees it."""

    def __init__(self, virtual: VirtualGroup):
        super().__init__(virtual.rank, virtual.size)
        self.virtual, self._description = virtual, ""
        state().groups[id(self)] = self, virtual

    @property
    def group_name(self) -> str:
        """The name by which torch finds the group."""
        return self.virtual.name

    def _set_group_name(self, name: str) -> None:
        self.virtual.name = name

    @property
    def group_desc(self) -> str:
        """What the group is for, in words."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def name(self) -> str:
        """Name of the backend."""
        return NAME

    @property
    def _device_types(self) -> list[torch.device]:
        """Devices that torch's own code may take for the group's tensors."""
        return [torch.device("cpu")]

    def new_group(self, ranks: list, timeout: Any = None, pg_options: Any = None, group_name: str = "",
                  group_desc: Any = None) -> Optional["EmulatorProcessGroup"]:
        """torch.distributed.new_group comes here, whichever backend it is asked for. None where this rank is no member."""
        virtual = self.virtual.new_group(ranks)
        if virtual is None:
            return None
        made = EmulatorProcessGroup(virtual)
        made._set_group_name(group_name)
        made._set_group_desc(group_desc or "undefined")
        return made

    def shutdown(self) -> None:
        """The group is being destroyed: calls that name it are refused from now on."""
        self.virtual.destroyed = True

    def abort(self) -> None:
        """As shutdown."""
        self.shutdown()

    # -- how collectives are made ----------------------------------------------------------------------------
    def _start(self, what: str, given: Any, finish: Callable[[list], Any], outputs: list, root: Optional[int] = None,
               learns: bool = True) -> _Work:
        """A collective: `given` goes to the members now; when all have come, `finish` takes what each of them gave."""
        self.virtual.finish_stream()
        meeting = self.virtual.arrive(what, given, root)
        return _Work(lambda: finish(self.virtual.await_all(meeting, learns)), outputs)

    def _start_equal(self, what: str, tensors: list, finish: Callable[[list], Any], outputs: list) -> _Work:
        """The same, where all members must give tensors of equal shapes and types."""
        def compared(parts: list) -> None:
            for index, part in enumerate(parts):
                if _shapes(part) != _shapes(parts[0]):
                    first, other = self.virtual.world_ranks[0], self.virtual.world_ranks[index]
                    raise CollectiveMismatch(f"{what}: rank {first} has {_shapes(parts[0])}, rank {other} has {_shapes(part)}; "
                                             "all members must pass tensors of the same shapes and types")
            finish(parts)
        return self._start(what, [t.detach().clone() for t in tensors], compared, outputs)

    # -- collectives -----------------------------------------------------------------------------------------
    def barrier(self, opts: Any = None) -> _Work:
        return self._start("barrier", None, lambda _: None, [])

    def allreduce(self, tensors: list, opts: Any = None) -> _Work:
        def finish(parts: list) -> None:
            for i, tensor in enumerate(tensors):
                tensor.detach().copy_(_reduced([part[i] for part in parts], opts))
        return self._start_equal("all_reduce", tensors, finish, tensors)

    def allreduce_coalesced(self, tensors: list, opts: Any = None) -> _Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list, opts: Any) -> _Work:
        root = opts.rootRank
        given = [t.detach().clone() for t in tensors] if root == self.virtual.rank else None

        def finish(parts: list) -> None:
            if given is None:
                _fill(tensors, parts[root])
        return self._start(f"broadcast from {root}", given, finish, tensors, root)

    def reduce(self, tensors: list, opts: Any) -> _Work:
        root = opts.rootRank == self.virtual.rank

        def finish(parts: list) -> None:
            if root:
                for i, tensor in enumerate(tensors):
                    tensor.detach().copy_(_reduced([part[i] for part in parts], opts))
        return self._start(f"reduce to {opts.rootRank}", [t.detach().clone() for t in tensors], finish, tensors, learns=root)

    def gather(self, outputs: list, inputs: list, opts: Any) -> _Work:
        root = opts.rootRank == self.virtual.rank
        return self._start(f"gather to {opts.rootRank}", inputs[0].detach().clone(),
                           lambda parts: _fill(outputs[0], parts) if root else None, outputs, learns=root)

    def scatter(self, outputs: list, inputs: list, opts: Any) -> _Work:
        root = opts.rootRank
        given = [t.detach().clone() for t in inputs[0]] if root == self.virtual.rank else None
        return self._start(f"scatter from {root}", given,
                           lambda parts: _fill(outputs, [parts[root][self.virtual.rank]]), outputs, root)

    def allgather(self, outputs: list, inputs: list, opts: Any = None) -> _Work:
        return self._start("all_gather", [t.detach().clone() for t in inputs],
                           lambda parts: [_fill(outs, [part[i] for part in parts]) for i, outs in enumerate(outputs)], outputs)

    def allgather_coalesced(self, outputs: list, inputs: list, opts: Any = None) -> _Work:
        return self._start("all_gather", [t.detach().clone() for t in inputs],
                           lambda parts: [_fill(outs, part) for outs, part in zip(outputs, parts)], outputs)

    def all_gather_single_coalesced(self, outputs: list, inputs: list, opts: Any = None) -> _Work:
        def finish(parts: list) -> None:
            for i, out in enumerate(outputs):
                out.detach().copy_(torch.cat([part[i].reshape(-1) for part in parts]).view(out.shape))
        return self._start_equal("all_gather_single", inputs, finish, outputs)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def reduce_scatter(self, outputs: list, inputs: list, opts: Any = None) -> _Work:
        me = self.virtual.rank

        def finish(parts: list) -> None:
            for i, out in enumerate(outputs):
                out.detach().copy_(_reduced([part[i][me] for part in parts], opts))
        return self._start("reduce_scatter", [[t.detach().clone() for t in group] for group in inputs], finish, outputs)

    def reduce_scatter_single_coalesced(self, outputs: list, inputs: list, opts: Any = None) -> _Work:
        me, size = self.virtual.rank, self.virtual.size

        def finish(parts: list) -> None:
            for i, out in enumerate(outputs):
                mine = [part[i].reshape(size, -1)[me] for part in parts]
                out.detach().copy_(_reduced(mine, opts).view(out.shape))
        return self._start_equal("reduce_scatter_single", inputs, finish, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def alltoall(self, outputs: list, inputs: list, opts: Any = None) -> _Work:
        me = self.virtual.rank
        return self._start("all_to_all", [t.detach().clone() for t in inputs],
                           lambda parts: _fill(outputs, [part[me] for part in parts]), outputs)

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor, output_sizes: Any = None, input_sizes: Any = None,
                          opts: Any = None) -> _Work:
        me, size = self.virtual.rank, self.virtual.size
        rows = input.detach().clone().split(list(input_sizes or [input.shape[0] // size] * size))
        return self._start("all_to_all_single", rows,
                           lambda parts: output.detach().copy_(torch.cat([part[me] for part in parts])), [output])

    # -- between two ranks -----------------------------------------------------------------------------------
    def send(self, tensors: list, dst: int, tag: int = 0) -> _Work:
        """Never waits for the receiver: what is sent is kept until it is taken."""
        self.virtual.finish_stream()
        self.virtual.post([t.detach().clone() for t in tensors], dst, tag)
        return _Work(lambda: dst, tensors)

    def recv(self, tensors: list, src: int, tag: int = 0) -> _Work:
        ticket = self.virtual.ticket(src, tag)

        def finish() -> int:
            _fill(tensors, self.virtual.take(src, tag, ticket))
            return src
        return _Work(finish, tensors)

    def recv_anysource(self, tensors: list, tag: int = 0) -> _Work:
        def finish() -> int:
            src, parts = self.virtual.take_any(tag)
            _fill(tensors, parts)
            return src
        return _Work(finish, tensors)

    # Names of torch before 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _shapes(tensors: list) -> list:
    return [(list(t.shape), t.dtype) for t in tensors]


def _fill(outputs: list, values: list) -> None:
    for out, value in zip(outputs, values, strict=True):
        out.detach().copy_(value.view(out.shape))


_REDUCED = {
    dist.ReduceOp.SUM: lambda t: t.sum(0),
    dist.ReduceOp.AVG: lambda t: t.mean(0),
    dist.ReduceOp.PRODUCT: lambda t: t.prod(0),
    dist.ReduceOp.MIN: lambda t: t.amin(0),
    dist.ReduceOp.MAX: lambda t: t.amax(0),
    dist.ReduceOp.BAND: lambda t: functools.reduce(torch.bitwise_and, t),
    dist.ReduceOp.BOR: lambda t: functools.reduce(torch.bitwise_or, t),
    dist.ReduceOp.BXOR: lambda t: functools.reduce(torch.bitwise_xor, t),
}


def _reduced(parts: list, opts: Any) -> torch.Tensor:
    """The reduction that a collective's options name, in the order of ranks; 2-byte types in fp32."""
    op = dist.ReduceOp.SUM if opts is None else getattr(opts.reduceOp, "op", opts.reduceOp)
    if op not in _REDUCED:
        raise UnsupportedFeature(f"reduce op {op} on virtual ranks: expected one of "
                                 f"{', '.join(known.name for known in _REDUCED)}")
    stacked = torch.stack(parts)
    wide = stacked.float() if stacked.dtype in (torch.bfloat16, torch.float16) else stacked
    return _REDUCED[op](wide).to(stacked.dtype)


# -- each rank's own table of groups -------------------------------------------------------------------------
class RankTorch(private.World):
    """What torch.distributed knows on a virtual rank."""

    default_pg: Any = None
    pg_map: Any = None
    pg_names: Any = None
    pg_group_ranks: Any = None
    pg_backend_config: Any = None
    tags_to_pg: Any = None
    pg_to_tag: Any = None
    pg_coalesce_state: Any = None
    comms: Any = None
    group_count = 0

    def __init__(self, virtual: VirtualGroup, store: Any):
        self.virtual, self.store = virtual, store
        for name in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag", "pg_coalesce_state"):
            setattr(self, name, {})
        self.comms = []

    def join(self) -> None:
        """Makes the default process group of this rank, unless there is one."""
        if self.default_pg is None:
            dist.init_process_group()
            state().owns_process_group = True

    def leave(self) -> None:
        """Destroys all of this rank's groups. To be called on the rank's own thread, whose names torch keeps apart."""
        if self.default_pg is not None:
            dist.destroy_process_group()


_mine: ContextVar[Optional[RankTorch]] = ContextVar("triton_dist_rank_torch", default=None)


def here() -> Optional[RankTorch]:
    """What torch.distributed knows on the calling virtual rank; None elsewhere."""
    return _mine.get()


def become(rank: RankTorch) -> None:
    """The calling context is that of a virtual rank from now on."""
    _mine.set(rank)


class _Tables:
    """Stands where torch keeps its table of groups: the calling rank's table, or torch's own."""

    def __init__(self, own: Any):
        object.__setattr__(self, "_own", own)

    def __getattr__(self, name: str) -> Any:
        return getattr(_mine.get() or self._own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_mine.get() or self._own, name, value)


def _create(options: Any, _: Any) -> EmulatorProcessGroup:
    """Makes a process group, for torch."""
    rank = _mine.get()
    if rank is None:
        raise UnsupportedFeature(f"process groups of the backend {NAME!r} are those of virtual ranks (run_ranks, or "
                                 "`triton-dist check`); ranks that are processes take gloo")
    ranks = options.global_ranks_in_group
    virtual = rank.virtual.new_group(ranks) if ranks else rank.virtual
    virtual.destroyed = False
    return EmulatorProcessGroup(virtual)


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
_init_process_group = dist.init_process_group
_installed: list = []


@functools.wraps(_init_process_group)
def _init_here(*args: Any, **options: Any) -> None:
    """On a virtual rank any backend and any rendezvous mean the world that the rank is in."""
    rank = _mine.get()
    if rank is None:
        _init_process_group(*args, **options)
        return
    hook = sys.excepthook                       # torch adds a hook for each world, and there may be thousands
    _init_process_group(NAME, store=rank.store, rank=rank.virtual.rank, world_size=rank.virtual.size)
    sys.excepthook = hook


@contextmanager
def installed() -> Iterator[None]:
    """Inside the block virtual ranks have torch.distributed to themselves."""
    if _installed:                              # a world inside of a world
        yield
        return
    own = private.c10d._world
    _installed.append(own)
    private.c10d._world = _Tables(own)
    private.isolate_threads(True)
    dist.init_process_group = private.c10d.init_process_group = _init_here
    try:
        yield
    finally:
        dist.init_process_group = private.c10d.init_process_group = _init_process_group
        private.isolate_threads(False)
        private.c10d._world = own
        _installed.clear()

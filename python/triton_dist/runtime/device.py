# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The contract of a device: streams, memory, the copy engine, launches and capture.

`runtime` builds the heap, groups and workspaces on it. It knows nothing about ops: what ops ask a device for is in
`runtime/capabilities.py`.
"""
import functools
import logging
from abc import ABC, abstractmethod
from typing import Any, Callable, Container, NamedTuple, Protocol, Sequence

from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.state import state


class Transfer(NamedTuple):
    """A copy-engine put with a signal: `nbytes` from `offset` of the source to address `to`, then a value to address `flag`."""
    to: int
    offset: int
    nbytes: int
    flag: int


class Stream(Protocol):
    """An in-order queue of device work. torch.cuda.Stream satisfies it."""

    def wait_stream(self, other: "Stream") -> None:
        """Work put on this stream from now on starts after all that is on `other` now."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has passed once all that is on this stream now has run."""

    def wait_event(self, event: Any) -> None:
        """Work put on this stream from now on starts after `event`."""

    def synchronize(self) -> None:
        """Returns once all that is on this stream has run."""


class Arena(ABC):
    """One symmetric slab a rank, mapped by all ranks that can reach it."""

    nbytes: int
    local: Any                 # torch.uint8 tensor [nbytes] on this rank's device
    bases: Sequence[int]       # address of each world rank's slab as mapped here; 0 = not reachable
    gap = 0                    # bytes to leave free between two objects while there is room; a multiple of the heap's alignment

    @abstractmethod
    def view(self, rank: int) -> Any:
        """torch.uint8 tensor [nbytes] over the slab of world rank `rank`; error where base is 0."""

    def own(self, rank: int, offset: int, nbytes: int, gone: Callable[[], None]) -> Any:
        """torch.uint8 tensor over `nbytes` at `offset` of the own slab, that of world rank `rank`.

        Where the tensor has a storage of its own, `gone` is called once no tensor refers to it any more, from any thread. An
        arena that cannot tell never calls it.
        """
        return self.view(rank)[offset:offset + nbytes]

    def cut(self, ranks: Container[int]) -> None:
        """Loads and stores reach the slabs of these world ranks only, from now on."""
        self.bases = [base if rank in ranks else 0 for rank, base in enumerate(self.bases)]

    def allocated(self, offset: int, nbytes: int, name: str, ranks: Sequence[int]) -> None:
        """The slabs of `ranks` hold an object of `nbytes` at `offset` from now on."""

    def freed(self, offset: int, ranks: Sequence[int]) -> None:
        """The object at `offset` is gone."""

    def team(self, ranks: Sequence[int], pad: int) -> int:
        """Collective over the world: makes the SHMEM team of these world ranks; what kernels call it here.

        pad: offset of SHMEM_PAD_BYTES zeroed bytes that it may keep flags in.
        """
        raise UnsupportedFeature("this heap has no SHMEM teams: kernels cannot call libshmem_device in this world")

    def part(self) -> None:
        """Collective: gives up what only all ranks together can. Called before `close` where they leave together."""

    @abstractmethod
    def close(self) -> None:
        """Unmap. Silent, idempotent."""


class Device(ABC):
    """What the runtime needs of a device. Methods act for the calling rank."""

    name: str                  # "nvidia", "amd" or "emulator"
    warp_size = 32             # threads that run in lockstep
    compares_calls = False     # whether `note_call` does something
    default_heap_size: int     # bytes of symmetric heap a rank, without TRITON_DIST_HEAP_SIZE

    # -- devices -------------------------------------------------------------------------------------------
    @abstractmethod
    def device(self) -> Any:
        """torch.device of the calling rank."""

    def device_name(self) -> str:
        """What kind of device the calling rank has, as its driver names it."""
        return self.name

    def check_join(self) -> None:
        """Raises where the calling rank cannot join a world now."""

    @abstractmethod
    def set_device(self, local_rank: int | None) -> None:
        """Binds this process to a device (no-op in the emulator). None: to the one that is current."""

    def enter_thread(self) -> None:
        """The calling thread uses the device from now on, maybe for the first time; no other does at the same time."""

    @abstractmethod
    def num_sms(self) -> int:
        """How many programs of a one-per-SM kernel can be resident."""

    @abstractmethod
    def torch_backend(self) -> str:
        """The torch.distributed backend string for init_process_group."""

    def maker(self, shape: tuple, dtype: Any) -> Callable[[], Any]:
        """A function that makes contiguous tensors of the calling rank's device, their elements unset."""
        import torch
        return functools.partial(torch.empty, shape, dtype=dtype, device=self.device())

    def outside_pools(self, call: Callable[[], Any]) -> Any:
        """Returns what call() returns. Device memory that it takes is of no memory pool, since it outlives the call of an op.

        CUDA graphs of torch.compile have a pool, which is also set for the call before a capture; nothing else may live on in it.
        The memory of a user's pool (torch.cuda.use_mem_pool) may be given back while tensors live in it.
        """
        return call()

    def end_graphs(self) -> bool:
        """Ends the graphs of compiled functions, which would be replayed in another world. Returns whether there are others."""
        return False

    # -- streams -------------------------------------------------------------------------------------------
    @abstractmethod
    def new_stream(self, priority: int = 0) -> Stream:
        """A new stream of this rank's device; a negative priority is a higher one."""

    def side_stream(self) -> Stream:
        """A stream of high priority that ops run beside the current one. Only its `wait_stream`, and others' for it, are used."""
        return self.new_stream(priority=-1)

    @abstractmethod
    def current_stream(self) -> Stream:
        """The stream that launches go to."""

    def eager_stream(self) -> Stream | None:
        """The current stream; None inside graph capture."""
        return None if self.is_capturing() else self.current_stream()

    @abstractmethod
    def use_stream(self, stream: Stream) -> Any:
        """Context manager that makes `stream` current."""

    def note_use(self, tensor: Any, stream: Stream) -> None:
        """`tensor`, made on another stream, is used on `stream`: its memory is not given away before that has run."""

    def named_range(self, name: str) -> Any:
        """Context manager: profilers show what the host does inside as a range of this name. By default torch's profiler does."""
        from torch.profiler import record_function
        return record_function(name)

    def warms_up(self) -> bool:
        """Whether a call now may be the warm-up before a capture: torch makes it on another stream than the default one."""
        return False

    def before_torch(self) -> None:
        """Called before torch operations that must follow what is on the current stream. A GPU's streams see to it."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for all streams of this rank's device."""

    @abstractmethod
    def is_capturing(self) -> bool:
        """True inside graph capture."""

    def capturing_graph(self) -> Any:
        """The graph that is being captured, as an object that lives as long as the graph; None where it cannot be told."""

    def no_shmem(self) -> str | None:
        """Why kernels cannot call libshmem_device in the present world, in words; None where they can."""
        return f"{self.name} has no SHMEM library"

    # -- copy engine (protocol rules 15, 16) ---------------------------------------------------------------
    @abstractmethod
    def has_stream_memory_ops(self) -> bool:
        """Whether streams of this rank's device can write flags: `push` and `write_value32` work."""

    @abstractmethod
    def push(self, source: Any, transfers: Sequence[Transfer], value: int, stream: Stream) -> None:
        """On `stream`, for each transfer: its bytes of the contiguous `source` to a peer, then int32 `value` to its flag."""

    def captures_pushes(self) -> bool:
        """Whether a graph can hold `push`. Inside graph capture, if nobody has asked before: True."""
        return False

    @abstractmethod
    def copy(self, dst: Any, src: Any, stream: Stream) -> None:
        """Contiguous copy of equal bytes on `stream`, by a copy engine, peers included."""

    @abstractmethod
    def write_value32(self, flags: Any, index: int, value: int, stream: Stream) -> None:
        """Stores int32 `value` to `flags[index]` (maybe a peer's) on `stream`, after everything before it, system scope."""

    # -- kernels -------------------------------------------------------------------------------------------
    def prepare(self, kernel: Any, grid: tuple, args: tuple, kwargs: dict, varying: int | tuple | None = None) -> Any:
        """Compiles `kernel` for positional arguments `args` and returns a launcher.

        Args:
            varying: which of `args` a call gives: the first ones, as many, or those at these positions; None: all.

        A call passes what it gives in its places; what it passes in others is not looked at, and may be None. It may give other
        tensors of the same dtype and alignment, descriptors of the same kind or the tensors that they would be over, and other
        integers for parameters that the kernel does not specialise. Nothing is looked up again.
        """
        note_variant(kernel, kwargs)
        self.compile(kernel, grid, args, kwargs)
        return Prepared(self, kernel, grid, Arguments(args, places(varying, args)), kwargs)

    @abstractmethod
    def launch(self, kernel: Any, grid: Any, args: tuple, kwargs: dict) -> Any:
        """Runs `kernel` (a DistJITFunction) on the current stream."""

    def compile(self, kernel: Any, grid: Any, args: tuple, kwargs: dict) -> Any:
        """Compiles `kernel` for these arguments without running it; None where there is nothing to compile."""

    def use_prebuilt(self, folder: str | None, tells: bool) -> None:
        """Kernels come from the library in `folder`, "" for its usual place, where it has them; None: they are compiled.

        A device that runs kernels from their source says so in one line, and goes on. tells: whether to write to the log.
        """
        if tells and folder is not None:
            logging.getLogger("triton_dist").warning("triton_dist: USE_TRITON_DISTRIBUTED_AOT: the %s runs kernels from their "
                                                     "source, so it has no use for a library of compiled ones", self.name)

    @abstractmethod
    def set_context(self, context: Any) -> None:
        """Makes `context` (runtime.context.Context) visible to every module loaded so far and from now on."""

    # -- collectives of torch.distributed --------------------------------------------------------------------
    def blocking(self, call: Callable[[], Any]) -> None:
        """Runs a collective that may block the host until peers take part."""
        call()

    def is_in_collective(self) -> bool:
        """Whether a collective of this rank may be under way to which peers never come: ending its group would block."""
        return True

    def note_call(self, group: Any, number: int, what: Any, refused: bool) -> bool:
        """Compares op call `number` on `group` with those of its other members, where that can be done without waiting.

        `what` must be equal on all of them; `refused`: this rank refuses its arguments, for the reason in `what`. Raises
        CollectiveMismatch on every member that did not refuse where they differ. Returns whether calls are compared.
        """
        return False

    def note_withdrawn(self, group: Any, number: int, what: str) -> bool:
        """Takes back what was noted of call `number` on `group`, which has sent nothing: peers that wait can know, and why.

        Returns whether calls are compared.
        """
        return False

    # -- symmetric memory ----------------------------------------------------------------------------------
    @abstractmethod
    def reserve_arena(self, nbytes: int, world: Any) -> Arena:
        """Collective over `world` (runtime.groups.Group): reserves and maps every rank's slab, zeroed."""

    def close_arena(self, arena: Arena) -> bool:
        """Closes the arena of a world that is left.

        False: it stays until the process ends, since the device still waits for a peer or has failed. Then nothing that waits for
        the device may be called.
        """
        arena.close()
        return True

    # -- failure -------------------------------------------------------------------------------------------
    def left_world(self, error: str | None = None) -> None:
        """The calling rank leaves its world, maybe by an error: what watches over it may stop. Silent, idempotent."""


class Prepared:
    """A launch of a kernel with its grid and the arguments that stay. A call takes those that vary."""

    def __init__(self, device: Device, kernel: Any, grid: tuple, whole: "Arguments", options: dict):
        self._device, self._kernel, self._grid, self._whole, self._options = device, kernel, grid, whole, options

    def __call__(self, *values: Any) -> None:
        self._device.launch(self._kernel, self._grid, self._whole(values), self._options)

    def on(self, grid: tuple, changed: dict) -> "Prepared | None":
        """The same on another grid and with other arguments: {position: argument}. None where they may need another binary.

        Tensors must have the same dtype and alignment, and descriptors must be of the same kind, as in calls.
        """
        return Prepared(self._device, self._kernel, grid, self._whole.on(changed), self._options)


def note_variant(kernel: Any, options: dict) -> None:
    """A launch of `kernel` is prepared with these constexprs and launch options, each combination of which is compiled."""
    found = state().variants
    if found is not None:
        found.append((kernel, options))


def places(varying: int | tuple | None, args: tuple) -> tuple:
    """Positions of the arguments that a call gives of a launch that was prepared with `args`; see Device.prepare."""
    return varying if isinstance(varying, tuple) else tuple(range(len(args) if varying is None else varying))


class Arguments:
    """All arguments of a prepared launch, from those that a call gives at `positions`. It keeps no tensor alive that varies."""

    def __init__(self, args: Sequence, positions: tuple):
        self._whole, self._positions = list(args), positions        # what varies: None, or type and fields of a descriptor
        for position in positions:
            self._whole[position] = _without_tensor(args[position])

    def on(self, changed: dict) -> "Arguments":
        """The same with other arguments, {position: argument}."""
        found = object.__new__(Arguments)
        found._whole, found._positions = list(self._whole), self._positions
        for position, arg in changed.items():
            found._whole[position] = _without_tensor(arg) if position in self._positions else arg
        return found

    def __call__(self, values: tuple) -> tuple:
        whole = list(self._whole)
        for position in self._positions:
            value, descriptor = values[position], whole[position]
            if descriptor is not None and not hasattr(value, "base"):
                kind, fields = descriptor
                tensor, value = value, object.__new__(kind)
                vars(value).update(fields, base=tensor)
            whole[position] = value
        return tuple(whole)


def _without_tensor(arg: Any) -> tuple | None:
    return (type(arg), {**vars(arg), "base": None}) if hasattr(arg, "base") else None


def contiguous_strides(shape: Sequence[int]) -> tuple:
    """Strides of a contiguous tensor of this shape, as torch has them."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= max(size, 1)
    return tuple(reversed(found))


def fits_descriptor(t: Any) -> bool:
    """Whether a tensor descriptor can be made of a matrix: it has an element, its base is at a multiple of 16 bytes, and its rows
    are whole 16 bytes apart and do not overlap. Drivers need not take others, such as an expanded tensor, whose stride is 0.
    """
    return (t.numel() > 0 and t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0
            and t.stride(0) >= t.shape[1])


def absent(like: Any) -> Any:
    """Stands for a tensor that a call lacks, of the dtype of `like`: a kernel gets it, and does not look at it."""
    return _absent(like.dtype, like.device)


@functools.cache
def _absent(dtype: Any, device: Any) -> Any:
    import torch
    from triton_dist.runtime.backend import backend
    return backend().outside_pools(functools.partial(torch.empty, 1, dtype=dtype, device=device))


def copy_bytes(dst: Any, src: Any) -> int:
    """Bytes of a copy between two tensors. Raises InvalidArgument where they have gaps or differ in size."""
    nbytes = dst.numel() * dst.element_size()
    if not (dst.is_contiguous() and src.is_contiguous()) or nbytes != src.numel() * src.element_size():
        raise InvalidArgument("copy: expected two contiguous tensors of equal bytes, found "
                              f"{tuple(dst.shape)} {dst.dtype} strides {dst.stride()} and "
                              f"{tuple(src.shape)} {src.dtype} strides {src.stride()}")
    return nbytes


def flag_address(flags: Any, index: int) -> int:
    """Address of `flags[index]`. Raises InvalidArgument for what are no 32-bit words, and for an index outside."""
    if flags.element_size() != 4 or not flags.is_contiguous() or not 0 <= index < flags.numel():
        raise InvalidArgument("write_value32: expected a contiguous tensor of 4-byte flags that has index "
                              f"{index}, found {tuple(flags.shape)} {flags.dtype}")
    return flags.data_ptr() + 4 * index

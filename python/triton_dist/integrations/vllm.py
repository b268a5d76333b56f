# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""vLLM's CustomAllreduce over this package: what its communicator asks before it calls NCCL, in eager calls and in graphs.

    from triton_dist.integrations import vllm
    vllm.install()                              # in each worker, before vLLM makes its groups
"""
import importlib
from contextlib import contextmanager
from typing import Any, Iterator

import torch

from triton_dist.integrations import engines
from triton_dist.ops import all_reduce
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.streams import device as own_device

_MODULES = ("vllm.distributed.device_communicators.custom_all_reduce",)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MULTIPLE = 16                                  # bytes that vLLM's kernels need; engines rely on the answer


class CustomAllreduce:
    """vLLM's CustomAllreduce. Nothing is registered for graphs: a captured call uses the buffers that eager calls use.

    Args:
        group: ProcessGroup of the ranks, of any backend, or None for the world. Making the object is collective over it, and
            over all ranks if there is no world yet.
        device: this rank's device, by number, name or torch.device.
        max_size: bytes from which on calls are left to vLLM.
        symm_mem_enabled: has no meaning here.

    Attributes:
        disabled: whether all calls are left to vLLM: on one rank, and where ranks cannot reach each other's memory.
        rank, world_size, max_size: as in vLLM.
    """

    _SUPPORTED_WORLD_SIZES = list(range(2, 65))

    def __init__(self, group: Any, device: Any, max_size: int = 8192 * 1024, symm_mem_enabled: bool = False) -> None:
        self.group, self._members = group, engines.members(group)
        self.rank, self.world_size = self._members.rank, self._members.size
        kind = own_device().type
        self.device = torch.device(f"{kind}:{device}") if isinstance(device, int) else torch.device(device)
        wrong = self.device.type != kind or None not in (self.device.index, own_device().index) and (
            self.device.index != own_device().index)
        if wrong:
            raise InvalidArgument(f"device: expected {own_device()}, that of this rank, found {device!r}")
        self.disabled = engines.why_not(self._members) is not None
        self.max_size = max_size
        self._IS_CAPTURING = False
        engines.make_room("all_reduce", 1, max_size, torch.bfloat16, self._members, lambda x: all_reduce(x, group=self._members))

    def finalize_p2p(self) -> None:
        """Does nothing: whether ranks reach each other's memory was known before."""

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Around captures of graphs. Calls on the way, which are no captures, prepare them, so they are made as always."""
        self._IS_CAPTURING = True
        try:
            yield
        finally:
            self._IS_CAPTURING = False
            if not self.disabled:
                self.register_graph_buffers()

    def register_graph_buffers(self) -> None:
        """Does nothing: a graph keeps the buffers that its calls use."""

    def should_custom_ar(self, inp: torch.Tensor) -> bool:
        """Whether a call with this tensor is made here. Equal on all ranks for tensors of equal shape, strides and dtype."""
        nbytes = inp.numel() * inp.element_size()
        return not self.disabled and nbytes % _MULTIPLE == 0 and 0 < nbytes < self.max_size and inp.dtype in _DTYPES and (
            _is_dense(inp))

    def all_reduce(self, inp: torch.Tensor, *, out: torch.Tensor | None = None, registered: bool = False) -> torch.Tensor:
        """The sum over ranks of `inp`. registered has no meaning here."""
        if out is None:
            out = torch.empty_like(inp)
        if not inp.is_contiguous():             # dense in another order: that of memory is as good, if both have it
            if out.stride() != inp.stride():
                raise InvalidArgument(f"out: expected strides {list(inp.stride())} as of the input, found {list(out.stride())}")
            all_reduce(_in_memory(inp), group=self._members, out=_in_memory(out))
            return out
        return all_reduce(inp, group=self._members, out=out)

    def custom_all_reduce(self, input: torch.Tensor) -> torch.Tensor | None:
        """The sum over ranks of `input`, or None where the call is left to vLLM."""
        return self.all_reduce(input) if self.should_custom_ar(input) else None

    def close(self) -> None:
        """Ends the use of this object. Room in the symmetric heap stays with the group: see triton_dist.reset."""
        self.disabled = True

    @staticmethod
    def create_shared_buffer(size_in_bytes: int, group: Any = None, uncached: bool | None = False) -> list:
        """Not here: memory that ranks share is made by triton_dist.create_symm_tensor."""
        raise UnsupportedFeature("create_shared_buffer: is not here, since kernels of this package use a symmetric heap; use "
                                 "triton_dist.create_symm_tensor")

    @staticmethod
    def free_shared_buffer(pointers: list, group: Any = None, rank: int | None = None) -> None:
        """Not here, as create_shared_buffer."""
        raise UnsupportedFeature("free_shared_buffer: is not here; use triton_dist.free_symm_tensor")


def _is_dense(t: torch.Tensor) -> bool:
    """Whether the elements of `t` lie side by side in memory, in whatever order of dimensions."""
    expected = 1
    for size, stride in sorted(((size, stride) for size, stride in zip(t.shape, t.stride()) if size != 1), key=lambda d: d[1]):
        if stride != expected:
            return False
        expected *= size
    return True


def _in_memory(t: torch.Tensor) -> torch.Tensor:
    """A dense tensor as the vector of its elements, in the order of memory."""
    return t.as_strided((t.numel(),), (1,))


def install() -> None:
    """Puts CustomAllreduce in place of vLLM's, which has to be installed."""
    for name in _MODULES:
        importlib.import_module(name).CustomAllreduce = CustomAllreduce

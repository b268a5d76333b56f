# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What host scripts do with tensors that kernels use: torch operations are accesses of the host; unwritten memory is noted.

On a GPU a torch operation runs on the current stream; here it runs at once, on the host. So it may rely on all that the
current stream has done, while what it writes counts as written by the host.
"""
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from triton_dist.checker import sites
from triton_dist.checker.computed import Found, Trial, follows
from triton_dist.checker.global_memory import CheckedMemory
from triton_dist.compat.torch import FakeTensor, schema_of

_EMPTY = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted")
_READ_NOTHING = ("_like", "detach", "alias")
_MADE_BEFORE = "lift_fresh"         # all that is seen of torch.tensor(numbers)
_READ_BACK = ("_local_scalar_dense", "equal", "is_nonzero", "item")      # on a GPU the host waits for the stream


class HostOperations(TorchDispatchMode):
    """Entered on the thread of one host script."""

    only_watches = True                      # ambient.is_only_watched

    def __init__(self, memory: CheckedMemory):
        super().__init__()
        self.memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not all(map(_has_memory, types)):
            if any(issubclass(kind, FakeTensor) for kind in types):
                return func(*args, **kwargs)                     # shapes are worked out, without memory
            return NotImplemented            # a DTensor and the like: what it does with the tensors inside comes here again
        name, arguments, makes = _known.get(func) or _read_schema(func)
        found: list[Found] = []
        written: list[torch.Tensor] = []
        for place, argument, write in arguments:
            value = args[place] if place < len(args) else kwargs.get(argument)
            for tensor in _tensors(value):
                unwritten = self._access(tensor, write)
                if write:
                    written.append(tensor)
                elif unwritten is not None:
                    found.append(unwritten)
        trial = None
        if found and name not in _READ_BACK and follows(func, found):
            trial = Trial(func, args, kwargs, found, written)
        elif found:
            self.memory.detector.report("uninitialized-read", found[0].where, found[0].text)
        out = func(*args, **kwargs)
        if makes or name == _MADE_BEFORE:
            for tensor in _tensors(out):
                storage = tensor.untyped_storage()
                self.memory.drafts.pop(storage.data_ptr())
                self.memory.unwritten.pop(storage.data_ptr())
                if name in _EMPTY:
                    self.memory.unwritten.keep(storage, True)
        if trial is not None:
            differing = trial.differing(out)
            if differing is None:
                self.memory.detector.report("uninitialized-read", found[0].where, found[0].text)
            for tensor, mask in differing or ():
                self.memory.keep_unwritten(tensor, mask, found[0])
        if name in _READ_BACK:
            self.memory.detector.follow_current_stream()
        return out

    def _access(self, tensor: torch.Tensor, write: bool) -> Optional[Found]:
        """Notes an access. Returns the unwritten elements that it reads, or None."""
        memory = self.memory
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
            return None
        base = tensor.untyped_storage().data_ptr()
        if write:
            memory.unwritten.pop(base)
        segment = memory.at(tensor.data_ptr())
        if segment is None:
            return memory.draft_access(tensor, write) if memory.drafts else None
        size = tensor.element_size()
        steps = tuple(step * size for step in tensor.stride())
        last = tensor.data_ptr() + sum((n - 1) * step for n, step in zip(tensor.shape, steps)) + size
        if last > segment.end:
            return None
        told = memory.host_access(segment, tensor.data_ptr(), tuple(tensor.shape), steps, size, write, sites.host_stack())
        return None if told is None else Found(tensor, *told)


_known: dict = {}        # operation -> what _read_schema says of it


def _read_schema(func: Any) -> tuple:
    """(name, [(place, name, is written) of the arguments whose data it touches], whether the result is new memory)."""
    schema = schema_of(func)
    name, arguments = schema.name.split("::")[-1], []
    for place, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if "Tensor" not in str(argument.type):
            continue
        if alias is not None and alias.is_write:
            arguments.append((place, argument.name, True))
        elif alias is None and not name.startswith("new_") and not name.endswith(_READ_NOTHING):
            arguments.append((place, argument.name, False))
    found = _known[func] = name, arguments, all(result.alias_info is None for result in schema.returns)
    return found


def _has_memory(kind: type) -> bool:
    """Whether tensors of this type are memory. DTensor and the like have other tensors inside, to which they dispatch."""
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _tensors(value: Any) -> list:
    """The tensors with memory of their own that an argument or a result is or holds."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [t for t in values if isinstance(t, torch.Tensor) and _has_memory(type(t))]

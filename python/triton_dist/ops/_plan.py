# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Choosing a method, and the first use of a kernel, the same on every rank (protocol rules 13 and 17)."""
import warnings
from typing import Any, Callable

import torch

from triton_dist.runtime import heap as heap_module
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group, require_agreement
from triton_dist.runtime.state import state

_MAX_PLANS = 4096

METHODS = ("auto", "portable", "ws", "unfused")


def signature(*tensors: Any) -> tuple:
    """What decides whether a call with these tensors is valid and which code serves it. None and non-tensors included."""
    return (backend().allow_tf32(), *((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16, t.is_neg())
                                      if isinstance(t, torch.Tensor) else type(t) for t in tensors))


def planned(op: str, group: Group, key: tuple, make: Callable[[], Any]) -> Any:
    """The plan of a call: made once for `key`, and again when the buffers it points into have moved."""
    plans = state().plans
    plan = plans.get((op, group.key, key))
    if plan is None or not plan.valid():
        plan = make()
        if len(plans) >= _MAX_PLANS:
            plans.clear()
        plans[(op, group.key, key)] = plan
    return plan


def choose(op: str, method: str, group: Group, core_serves: bool, bytes_in: int, needs_stream_memory_ops: bool = False) -> str:
    """The method of a call: "ws" (the device's warp-specialised core), "portable" or "unfused".

    Every argument is equal on all ranks, so the answer is. `bytes_in`: what the collective brings to each rank. Warns once
    where auto has to be unfused.
    """
    if method not in METHODS:
        raise InvalidArgument(f"method: expected one of {', '.join(METHODS)}, found {method!r}")
    if method == "unfused":
        return method
    reason = obstacle(group, needs_stream_memory_ops)
    if reason is not None and method != "auto":
        raise InvalidArgument(f"method: {method!r} is not possible here: {reason}; use 'auto' or 'unfused'")
    if reason is not None:
        if (op, reason) not in state().warned:
            state().warned.add((op, reason))
            warnings.warn(f"triton_dist.{op} runs unfused: {reason}", RuntimeWarning, stacklevel=5)
        return "unfused"
    if method == "ws" and not core_serves:
        raise InvalidArgument(f"method: 'ws' needs a device with a warp-specialised core for {op}, 2-byte operands and rows of "
                              "a multiple of 16 bytes; use 'auto' or 'portable'")
    if method != "auto":
        return method
    if not pays(op, group.size, bytes_in):
        return "unfused"
    return "ws" if core_serves and backend().core(op).preferred else "portable"


def pays(op: str, world: int, bytes_in: int) -> bool:
    """Whether hiding a collective of `bytes_in` bytes a rank has been measured to pay for the fused op's longer host path.

    Only what all ranks agree on enters: the size of the other operand may differ between them.
    """
    machine = backend().machine_model()
    return machine is None or world == 1 or bytes_in >= machine.fuse_bytes[op]


def obstacle(group: Group, needs_stream_memory_ops: bool) -> str | None:
    """Why no fused kernel can run here; None where one can."""
    if backend().is_capturing():
        return "graph capture is not supported by the fused kernel yet"
    if group.size > 1 and not heap_module.heap().reachable(group):
        return f"not all of ranks {list(group.world_ranks)} can load and store each other's memory"
    if needs_stream_memory_ops and group.size > 1 and not backend().has_stream_memory_ops():
        return "this device has no stream memory operations"
    return None


def agree_once(op: str, group: Group, shape: dict) -> Callable[[], None]:
    """Collective at the first use of a shape: all ranks must pass the same `shape`, or all raise.

    Called before anything else that is collective. Returns what to call once compiled, before the launch: at a first use the
    ranks meet there, so that one rank's compilation does not look like a hang to the others.
    """
    key = (op, group.key, tuple(sorted(shape.items())))
    if key in state().first_uses:
        return lambda: None
    require_agreement(group, op, {k: str(v) for k, v in shape.items()})
    state().first_uses.add(key)
    return group.barrier


def precision(dtype: torch.dtype) -> str:
    """tl.dot's input_precision: fp32 follows torch's allow_tf32."""
    return "tf32" if dtype == torch.float32 and backend().allow_tf32() else "ieee"

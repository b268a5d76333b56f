# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce: plan and dispatch."""
from typing import Any, Callable

import torch

from triton_dist.ops import _check, _collective, _plan
from triton_dist.ops.all_reduce.kernels import one_shot_kernel, push_kernel, two_shot_kernel
from triton_dist.ops.all_reduce.reference import all_reduce_reference
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.workspace import MAX_PROGRAMS, CountedWorkspace, team

METHODS = ("one_shot", "two_shot", "push", "nccl")
_BLOCK_BYTES, _PUSH_WARPS = 8192, 16                    # 16 bytes a thread
_PUSH_PROGRAMS = 2                                      # for each SM: one stores while another waits


def all_reduce(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None, method: str = "auto") -> torch.Tensor:
    """Sum over ranks of x, on every rank. Collective over `group`.

    Args:
        x: fp16, bf16 or fp32 of any shape on `triton_dist.device()`. Equal shape and dtype on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous, of x's shape and dtype, or None to allocate. `out=x` sums in place; else they must not overlap.
        method: "one_shot" (packets that carry their own flag, everything to everyone: the lowest latency), "two_shot"
            (packets: each rank sums a part and sends the sum), "push" (the same with plain stores and flags, for large
            tensors), "nccl" (the group's own collective) or "auto" (by size, from measurements). The same on all ranks.

    Returns out. Sums are in fp32 in an order that depends on the number of ranks and the method only, with one rounding to the
    dtype: the same inputs give the same bits, the same on every rank. That does not hold for "nccl".
    In CUDA graphs: run the same call once before capture, else auto captures "nccl" and the other methods refuse. Replays and
    eager calls may follow each other in any order, all on one stream or on streams that wait for each other.
    Raises InvalidArgument before anything is sent.
    """
    members = resolve(group)
    in_place = isinstance(x, torch.Tensor) and isinstance(out, torch.Tensor) and _check.same_memory(out, x)
    key = (_plan.signature(x, None, None, out), in_place, str(method))
    plan = _plan.planned("all_reduce", members, key, lambda: _checked(x, members, out, in_place, method),
                         lambda agreed: _make_plan(x, members, out, agreed))
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    plan.run(members, x, out)
    return out


def _checked(x: torch.Tensor, group: Group, out: torch.Tensor | None, in_place: bool, method: str) -> dict:
    """Refuses bad arguments; of good ones, what all ranks must agree on."""
    _check.tensor("x", x)
    if x.numel() >= 2**31:
        raise InvalidArgument(f"x: expected fewer than 2^31 elements, found shape {list(x.shape)}; split the call")
    _check.output("out", out, tuple(x.shape), like=x)
    if not in_place:
        _check.no_overlap("out", out, x=x)
    _check.no_grad(x=x)
    chosen = _collective.choose("all_reduce", method, METHODS, group, x.numel() * x.element_size())
    return dict(op="all_reduce", n=x.numel(), dtype=x.dtype, method=chosen)


def _make_plan(x: torch.Tensor, group: Group, out: torch.Tensor | None, agreed: dict) -> Any:
    """Decides how calls like this one run. Collective at the first use of a shape."""
    meet = _plan.agree_once(group, agreed)
    if group.size == 1 or agreed["n"] == 0:
        return _Alone()
    if agreed["method"] == "nccl":
        return _Library()
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    make = _Push if agreed["method"] == "push" else _Packets
    return make(x.contiguous(), out, group, agreed["method"], meet)


class _Alone:
    """One rank, or nothing to sum."""

    def valid(self) -> bool:
        return True

    def run(self, group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
        backend().before_torch()
        if out is not x:
            out.copy_(x)


class _Library:
    """The group's own collective."""

    def __init__(self):
        self.capturing = backend().is_capturing()

    def valid(self) -> bool:
        return self.capturing == backend().is_capturing()        # capture may be why it was chosen

    def run(self, group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
        backend().before_torch()
        all_reduce_reference(x, group, out)


class _Kernel:
    """One kernel on a workspace. Holds all that does not change from call to call."""

    def __init__(self, space: CountedWorkspace, kernel: Any, programs: int, x: torch.Tensor, out: torch.Tensor, rest: tuple,
                 options: dict, meet: Callable[[], None]):
        self.space, self.generation, self.rest = space, space.generation, rest
        self.launch = backend().prepare(kernel, (programs,), (x, out, *rest), options)
        meet()

    def valid(self) -> bool:
        return self.generation == self.space.generation

    def run(self, group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
        with self.space.call(backend().current_stream()):
            self.launch(x.contiguous(), out, *self.rest)


class _Packets(_Kernel):
    """One or two hops of packets."""

    def __init__(self, x: torch.Tensor, out: torch.Tensor, group: Group, method: str, meet: Callable[[], None]):
        words = -(-x.numel() * x.element_size() // _collective.WORD)
        hops = 1 if method == "one_shot" else 2
        part = words if hops == 1 else -(-words // group.size)
        ranks = _collective.power_of_two(group.size)
        programs, warps = _collective.grid_of_packets(part, ranks)
        space = _collective.packets(group)
        space.reserve(_collective.power_of_two(hops * group.size * part * 2 * _collective.WORD))     # few sizes, few moves
        slots = space.data.view(torch.int64)
        super().__init__(space, one_shot_kernel if hops == 1 else two_shot_kernel, programs, x, out,
                         (slots, slots.numel() // 2, space.control, team(group), x.numel(), part),
                         dict(WORLD=group.size, RANKS=ranks, THREADS=warps * backend().warp_size,
                              WHOLE=_collective.whole_words(x, out), num_warps=warps, num_stages=1), meet)


class _Push(_Kernel):
    """Two hops of plain stores."""

    def __init__(self, x: torch.Tensor, out: torch.Tensor, group: Group, method: str, meet: Callable[[], None]):
        part = -(-x.numel() // group.size)
        block = min(_BLOCK_BYTES // x.element_size(), _collective.power_of_two(part))
        blocks = -(-part // block)
        programs = min(blocks, _PUSH_PROGRAMS * backend().num_sms(), MAX_PROGRAMS)
        rounds = -(-blocks // programs)
        space = _collective.pushes(group)
        space.reserve(group.size * blocks * block * x.element_size(), 2 * rounds * programs * group.size,
                      writer=lambda flag: flag % (space.flags.numel() // 2) % group.size)
        data = space.data.view(x.dtype)
        super().__init__(space, push_kernel, programs, x, out,
                         (data, data.numel() // 2, space.flags, space.flags.numel() // 2, space.control, team(group), x.numel(),
                          blocks, rounds),
                         dict(WORLD=group.size, RANKS=_collective.power_of_two(group.size), BLOCK=block,
                              num_warps=_PUSH_WARPS, num_stages=1), meet)

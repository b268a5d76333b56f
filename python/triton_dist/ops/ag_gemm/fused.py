# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The fused plan of ag_gemm: a gather beside one GEMM."""
from typing import Any

import torch

from triton_dist.ops.ag_gemm import by_sms, gather, in_graphs
from triton_dist.ops.ag_gemm.nodes import GatherOverNodes
from triton_dist.ops.calls import aligned, possible
from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import side_streams


class Fused(gather.OnGather):
    """A gather beside one kernel. Holds all that does not change from call to call.

    asked: whether the caller named the core's method. m, k, n: sizes of x [m, k] and out [world * m, n]. gated: whether weight
    has 2 * n rows, gate's and up's.
    reader: the core, where it reads the caller's weight itself. columns: whether that has contiguous columns.
    A chunk of the gather buffer has `tiles` tiles of rows; pitch: its rows.
    """

    def __init__(self, op: Any, choice: Choice, agreed: Any, group: Group, x: torch.Tensor, weight: torch.Tensor, *_: Any):
        self.group, self.dtype, self.choice, self.asked = group, x.dtype, choice, agreed.method == "ws"
        self.k, self.n, self.gated = x.shape[1], agreed.columns(weight), agreed.act is not None
        self.core, self.config = backend().core("ag_gemm") if choice.method == "ws" else None, choice.config
        if possible.across_nodes(group):
            kind: type[gather.Gather] = GatherOverNodes
        elif choice.comm_sms:
            kind = by_sms.PushesBySms
        else:
            kind = in_graphs.PushesInGraphs if choice.in_graphs else gather.PushesByCopies
        self.space, self.captured = kind.workspace(group), kind.captured
        self._make_room(kind, agreed.m)
        super().__init__(self.space)
        self.halves = self.space.halves(x.dtype)

    def _make_room(self, kind: type[gather.Gather], m: int) -> None:
        self.m, self.tiles = m, -(-m // self.config.block_m)
        self.pitch = self.tiles * self.config.block_m
        self.gather = kind(self, self.choice)

    def _grid(self) -> tuple:
        return max(1, min(self.call.units, backend().num_sms() - self.gather.programs)),

    def resize(self, agreed, x, weight, bias, out):
        if self.copies or type(self.gather) is not gather.PushesByCopies:
            return None
        self._make_room(gather.PushesByCopies, agreed.m)
        if self.moved():
            return None
        x, self.call = x.contiguous(), type(self.call)(self, bias is not None)
        self.gather.prepare(x)
        return self._grid(), self.call.resized(x)

    def compile(self, x, weight, bias, out):
        by_columns = None if self.gated else self.core          # which reads gate and up of contiguous rows only
        x, weight = x.contiguous(), aligned.weight_for(by_columns, weight)
        self.gather.prepare(x)
        by_core, self.copies = aligned.served("ag_gemm", self.core, self.asked, x, weight, out)
        self.reader = by_columns if by_core and not self.copies else None
        weight = aligned.weight_for(self.reader, weight)
        if self.copies:
            x, weight, out = (aligned.readable(self.core, t) for t in (x, weight, out))
        self.columns = weight.stride(1) != 1
        self.call = self.gather.arguments(self.core if by_core else None)(self, bias is not None)
        self.launch = backend().prepare(self.call.kernel, self._grid(), self.call.described(x, weight, bias, out, 0),
                                        self.call.options, self.call.varying)

    def run(self, group, x, weight, bias, out, return_gathered=False):
        target = out
        try:                                    # may copy, so it may fail
            x, weight = x.contiguous(), aligned.weight_for(self.reader, weight)
            if self.copies:
                backend().before_torch()
                x, weight = aligned.readable(self.core, x), aligned.readable(self.core, weight)
                target = out if self.core.accepts(out) else aligned.room(out)
            current, sides = backend().current_stream(), side_streams(self.gather.streams)
            begun = self.space.call()
        except BaseException as error:
            withdraw(group, self.space.kind, error)
            raise
        with begun as epoch:
            for side in sides:
                side.wait_stream(current)
            self.gather.start(x, epoch, *sides)
            self.launch(*self.call.args(x, weight, bias, target, epoch))
            for side in sides:
                current.wait_stream(side)
        if target is not out:
            backend().before_torch()
            out.copy_(target)
        return self._gathered(x, epoch) if return_gathered else None

    def _gathered(self, x: torch.Tensor, epoch: int | None) -> torch.Tensor:
        backend().before_torch()
        gathered = self.gather.chunks(epoch)
        gathered[self.group.rank].copy_(x)              # the own shard never goes through the workspace
        return gathered.view(self.out_shape[0], self.k)

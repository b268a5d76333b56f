# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ag_gemm: plan and dispatch."""
from dataclasses import replace
from typing import Any

import torch

from triton_dist.ops import _plan, _recent, _tune
from triton_dist.ops.calls import aligned, checks
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.ops.ag_gemm import by_sms, gather
from triton_dist.ops.ag_gemm.nodes import GatherOverNodes
from triton_dist.ops.ag_gemm.reference import ag_gemm_reference
from triton_dist.ops.all_gather.op import all_gather
from triton_dist.ops.registry import record
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument, OutOfHeap
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import side_stream

# Bytes of a shard up to which a push by SMs is tried where calls are timed.
_MOST_BY_SMS = 4 << 20
# Numbers of programs that send over nodes, which are tried beside the usual one.
_OVER_NODES = (1, 2, 4, 16)
# Inside graph capture SMs push, of a gather of up to so many bytes without being asked: it takes room of its own.
_MOST_IN_GRAPHS = 64 << 20


def ag_gemm(x: torch.Tensor, weight: torch.Tensor, *, group: Any = None, bias: torch.Tensor | None = None,
            out: torch.Tensor | None = None, return_gathered: bool = False, method: str = "auto",
            comm_sms: int | None = None, save_gathered: bool = False) -> Any:
    """all_gather(x) @ weight^T + bias, with the gather hidden behind the GEMM. Collective over `group`.

    Args:
        x: [M / W, K] fp16, bf16 or fp32 on `triton_dist.device()`: this rank's rows. Equal shape and dtype on all ranks.
        weight: [N_local, K], same dtype: this rank's shard, as nn.Linear stores it. N_local may differ and may be 0.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        bias: [N_local] or None, same dtype, added in fp32 before rounding.
        out: [M, N_local] contiguous, or None to allocate.
        return_gathered: also return the gathered x [M, K], rows in group order.
        method: "auto", "ws" (fused, the device's warp-specialised core; what it cannot read or write is copied at each
            call), "portable" (fused) or "unfused" (a collective, then a matmul). The same on all ranks.
        comm_sms: None, or the number of SMs (1 to 32) that push x instead of the copy engine, and which the GEMM leaves to
            them: for few rows, where a copy's start takes longest. Over nodes, how many programs send at most. The same on
            all ranks.
        save_gathered: where a gradient of weight is wanted, keep the gathered x [M, K] for it. False: keep x [M / W, K], and
            gather it again in the backward pass. The same on all ranks.

    Gradients (without `out`): that of x by gemm_rs, that of weight from the gathered x. The same tensors must require them on
    all ranks.
    In graphs: run the same call once before capture, else auto captures "unfused" and other methods refuse. SMs push there,
    4 where comm_sms does not say, 16 for shards of up to 512 KiB; calls that gather more than 64 MiB are captured fused only with
    comm_sms. Replays and eager calls may follow each other in any order, all on one stream or on ones that wait for each other.
    Over nodes shards travel by SHMEM to the equal place of each other node and are shared inside each.

    Returns out [M, N_local], rows in group order, or (out, gathered).
    Sums accumulate in fp32 with one rounding to the output dtype; fp32 follows torch's allow_tf32 switch for matmuls.
    Under autocast operands are cast and the output has its dtype, as for nn.Linear; `out` must have that dtype.
    Raises InvalidArgument before anything is sent. Same inputs give the same bits.
    """
    known = _CALLS.known((method, comm_sms), group, x, weight, out, bias)
    if known is None:
        return record(ag_gemm, x, weight, group=group, bias=bias, out=out, return_gathered=return_gathered, method=method,
                      comm_sms=comm_sms, save_gathered=save_gathered)
    if out is None:
        out = known.new_out()
    gathered = known.plan.run(known.group, x, weight, bias, out, return_gathered)
    return (out, gathered) if return_gathered else out


def _checked(group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None,
             method: str, comm_sms: int | None) -> dict:
    """Refuses bad arguments; of good ones, what all ranks must agree on."""
    checks.matrix("x", x)
    checks.matrix("weight", weight, like=x)
    (m, k), n = x.shape, weight.shape[0]
    if weight.shape[1] != k:
        raise InvalidArgument(f"weight: expected [N_local, {k}] to match x {list(x.shape)}, found {list(weight.shape)}; it has a "
                              "row for each output column, as in nn.Linear")
    checks.rows("x", m * group.size)
    checks.vector("bias", bias, n, like=x)
    checks.output("out", out, (m * group.size, n), like=x)
    checks.no_overlap("out", out, x=x, weight=weight, bias=bias)
    checks.no_grad(x=x, weight=weight, bias=bias)
    if comm_sms is not None:
        if type(comm_sms) is not int or not 1 <= comm_sms <= by_sms.MOST:
            raise InvalidArgument(f"comm_sms: expected None or a whole number from 1 to {by_sms.MOST}, found {comm_sms!r}; leave "
                                  "it out for the copy engine")
        if method == "unfused":
            raise InvalidArgument(f"comm_sms: 'unfused' has no push, found {comm_sms}; leave it out, or use another method")
    return agreement(m, k, x.dtype, method, group, comm_sms)


def agreement(m: int, k: int, dtype: torch.dtype, method: str, group: Group, comm_sms: int | None = None) -> dict:
    """What all ranks must agree on. Raises InvalidArgument where `method` cannot run."""
    apart, by_copies = _plan.across_nodes(group), comm_sms is None
    uncaptured = _plan.BEFORE_CAPTURE
    if by_copies and not _pays_in_graphs(m, k, dtype, group):
        uncaptured = f"to capture a gather of more than {_MOST_IN_GRAPHS >> 20} MiB takes comm_sms"
    method = _plan.possible("ag_gemm", method, group, _core(k, dtype) is not None, by_copies and not apart, uncaptured)
    agreed = dict(op="ag_gemm", m=m, k=k, dtype=dtype, method=method)
    if not by_copies:
        agreed["comm_sms"] = comm_sms
    return dict(agreed, sms=backend().num_sms()) if apart else agreed


def candidates(m: int, k: int, dtype: torch.dtype, group: Group, comm_sms: int | None = None) -> list[Choice]:
    """Ways to run ag_gemm of x [m, k] a rank, the default of each method first; with `comm_sms` those in which SMs push."""
    core, found = _core(k, dtype), []
    portable = backend().gemm_configs(dtype, m)
    for method, configs in (("ws", core.configs(dtype, m)), ("portable", portable[:1])) if core else (("portable", portable),):
        found += [Choice(method, config) for config in configs]
        if len(configs) > 1:
            found += [Choice(method, configs[0], *sent) for sent in _ways_to_send(
                -(-m // configs[0].block_m), m * k * dtype.itemsize, group, comm_sms)]
    if comm_sms is not None:
        return [replace(choice, comm_sms=comm_sms) for choice in found]
    return [*found, Choice("unfused")]


def _ways_to_send(tiles: int, nbytes: int, group: Group, comm_sms: int | None) -> list[tuple[int, int]]:
    """(pieces, comm_sms) of Choices that send a shard of `tiles` tiles otherwise than is usual."""
    if _plan.across_nodes(group):
        return [(0, sms) for sms in _OVER_NODES] if comm_sms is None else []
    usual, _ = gather.cut(tiles, nbytes, gather.PIECE_BYTES if comm_sms is None else by_sms.PIECE_BYTES)
    found = [(pieces, 0) for pieces in (1, 2, gather.MAX_PIECES) if pieces != usual and pieces <= tiles]
    if comm_sms is None and nbytes <= _MOST_BY_SMS:
        found += [(0, sms) for sms in (by_sms.FEW_SMS, by_sms.MORE_SMS)]
    return found


def shape(m: int, k: int, dtype: torch.dtype, n: int, world: int) -> Shape:
    """Of x [m, k] a rank and `n` rows of weight on all ranks together."""
    return Shape("ag_gemm", str(dtype).removeprefix("torch."), m * world, n, k)


def bytes_in(m: int, k: int, dtype: torch.dtype, world: int) -> int:
    """What the gather brings to a rank."""
    return (world - 1) * m * k * dtype.itemsize


def _core(k: int, dtype: torch.dtype) -> Any:
    core = backend().core("ag_gemm")
    return core if core is not None and core.serves(dtype, k) else None


def _pays_in_graphs(m: int, k: int, dtype: torch.dtype, group: Group) -> bool:
    """Whether a call that pushes with the copy engine makes ready to be captured as well."""
    return m * k * dtype.itemsize * group.size <= _MOST_IN_GRAPHS and not _plan.across_nodes(group)


def _make_plan(group: Group, agreed: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
               out: torch.Tensor | None) -> _plan.Plan:
    """How calls like this one run."""
    if 0 in x.shape:                                    # the same on every rank: nothing to send
        return _Empty(x, weight.shape[0], group)
    (m, k), n, dtype, method, comm_sms = x.shape, weight.shape[0], x.dtype, agreed["method"], agreed.get("comm_sms")

    def make(choice: Choice) -> _plan.Plan:
        return _Unfused(x, n, group) if choice.method == "unfused" else _Fused(x, weight, group, choice, method == "ws")

    if method == "unfused":
        return make(Choice(method))
    ways = [choice for choice in candidates(m, k, dtype, group, comm_sms) if method in ("auto", choice.method)]
    rule = _plan.rule("ag_gemm", ways, group, bytes_in(m, k, dtype, group.size))
    call = _tune.Call(tuple(agreed.items()), n, lambda total: shape(m, k, dtype, total, group.size), ways, rule,
                      lambda choice: _plan.Trial(lambda: make(choice), group, (x, weight, bias, out), False))
    choice = _tune.decide(group, call).choice
    plan = make(choice)
    if choice.method == "unfused" or choice.comm_sms or not _pays_in_graphs(m, k, dtype, group):
        return plan
    try:
        return _EagerOrCaptured(plan, make(replace(choice, pieces=0, comm_sms=by_sms.usual_sms(m * k * dtype.itemsize))))
    except OutOfHeap:                                   # on all ranks; the call itself has what it needs
        return plan


class _Empty(_plan.Plan):
    """No rows, or sums of no terms."""

    def __init__(self, x: torch.Tensor, n: int, group: Group):
        self.rows, self.out_shape = x.shape[0] * group.size, (x.shape[0] * group.size, n)

    def run(self, group, x, weight, bias, out, return_gathered):
        backend().before_torch()
        if bias is None:
            out.zero_()
        else:
            out.copy_(bias.expand_as(out))
        return x.new_empty((self.rows, x.shape[1])) if return_gathered else None


class _Unfused(_plan.Unfused):
    """A collective, then a matmul."""

    def __init__(self, x: torch.Tensor, n: int, group: Group):
        super().__init__()
        self.out_shape = (x.shape[0] * group.size, n)

    def run(self, group, x, weight, bias, out, return_gathered):
        backend().before_torch()

        def gather(rows: torch.Tensor) -> torch.Tensor:
            everyone = all_gather(rows, group=group)
            backend().before_torch()
            return everyone
        return ag_gemm_reference(x, weight, gather, bias, out)[1]


class _Fused(_plan.OnWorkspace):
    """A gather beside one kernel. Holds all that does not change from call to call.

    asked: whether the caller named the method. m, k, n: sizes of x [m, k] and weight [n, k].
    A chunk of the gather buffer has `tiles` tiles of rows; pitch: its rows.
    """

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, group: Group, choice: Choice, asked: bool):
        self.group, self.dtype, self.config, self.asked = group, x.dtype, choice.config, asked
        (self.m, self.k), self.n = x.shape, weight.shape[0]
        self.core = backend().core("ag_gemm") if choice.method == "ws" else None
        self.tiles = -(-self.m // self.config.block_m)
        self.pitch, self.out_shape = self.tiles * self.config.block_m, (self.m * group.size, self.n)
        if _plan.across_nodes(group):
            kind: type[gather.Gather] = GatherOverNodes
        else:
            kind = by_sms.PushesBySms if choice.comm_sms else gather.PushesByCopies
        self.space = space = kind.workspace(group)
        self.gather, self.captured = kind(self, choice), kind.captured
        super().__init__(space)
        self.halves = [half.view(x.dtype)[:group.size * self.pitch * self.k] for half in space.halves()]

    def compile(self, x, weight, bias, out):
        x, weight = x.contiguous(), checks.rows_contiguous(weight)
        self.gather.prepare(x)
        out = x.new_empty(self.out_shape) if out is None else out
        by_core, self.copies = aligned.served("ag_gemm", self.core, self.asked, x, weight, out)
        if self.copies:
            x, weight, out = (aligned.readable(self.core, t) for t in (x, weight, out))
        self.call = self.gather.arguments(self.core if by_core else None)(self, bias is not None)
        programs = max(1, min(self.call.units, backend().num_sms() - self.gather.programs))
        self.launch = backend().prepare(self.call.kernel, (programs,), self.call.args(x, weight, bias, out, 0),
                                        self.call.options)

    def run(self, group, x, weight, bias, out, return_gathered):
        target = out
        try:                                    # may copy, so it may fail
            x, weight = x.contiguous(), checks.rows_contiguous(weight)
            if self.copies:
                backend().before_torch()
                x, weight = aligned.readable(self.core, x), aligned.readable(self.core, weight)
                target = out if self.core.accepts(out) else aligned.room(out)
            current, side = backend().current_stream(), side_stream()
            begun = self.space.call()
        except BaseException as error:
            _plan.withdraw(group, self.space.kind, error)
            raise
        with begun as epoch:
            side.wait_stream(current)
            self.gather.start(x, epoch, side)
            self.launch(*self.call.args(x, weight, bias, target, epoch))
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


class _EagerOrCaptured(_plan.Plan):
    """A plan for eager calls, and one for those inside graph capture."""

    def __init__(self, *plans: _plan.Plan):
        self.plans, self.out_shape = plans, plans[0].out_shape

    def compile(self, *call):
        for plan in self.plans:
            plan.compile(*call)

    def moved(self) -> bool:
        return any(plan.moved() for plan in self.plans)

    def run(self, *call):
        return self.plans[backend().is_capturing()].run(*call)


_CALLS = _recent.Calls("ag_gemm", "x weight bias out", _checked, _plan.first_use(_make_plan), autocasts=True)

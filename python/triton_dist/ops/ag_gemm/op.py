# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ag_gemm: what ranks agree on, the ways to run it, what they move, and the call."""
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Callable, Sequence

import torch

from triton_dist.ops import products, registry
from triton_dist.ops.ag_gemm import by_sms, gather
from triton_dist.ops.ag_gemm.fused import Fused
from triton_dist.ops.ag_gemm.unfused import ag_gemm_unfused
from triton_dist.ops.all_gather.op import ALL_GATHER, all_gather
from triton_dist.ops.autograd import gemms as gradients
from triton_dist.ops.calls import acts, checks, possible
from triton_dist.ops.calls.plans import Plan
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.registry import Gradient, Operator
from triton_dist.ops.tuning import model
from triton_dist.ops.tuning.table import Choice, Shape, choices
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group

# Bytes of a shard up to which a push by SMs is tried where calls are timed.
_MOST_BY_SMS = 4 << 20
# Numbers of programs that send over nodes, which are tried beside the usual one.
_OVER_NODES = (1, 2, 4, 16)
# Bytes of a gather up to which SMs push in a captured call without comm_sms: it takes as much memory again as eager calls have.
_MOST_BY_SMS_IN_GRAPHS = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Rows(Agreed):
    """x is [m, k] on each rank. comm_sms, act: as asked for. sms: of the device, over nodes."""
    m: int
    k: int
    act: str | None = None
    comm_sms: int | None = None
    sms: int | None = None

    @property
    def shard(self) -> int:
        """Bytes of x."""
        return self.m * self.k * self.dtype.itemsize

    def columns(self, weight: torch.Tensor) -> int:
        """Of the result of this rank."""
        return acts.columns(self.act, weight.shape[0])


class AgGemm(Op):
    """A gather beside a GEMM that takes tiles in the order of arrival."""

    name = "ag_gemm"
    tensors = {"x": "sharded", "weight": "sharded", "bias": "sharded"}
    outputs = {"out": "sharded"}
    methods = ("ws", "portable", "unfused")
    schema = "(Tensor x, Tensor weight, Tensor? bias, str group, str method, int? comm_sms, str? act) -> Tensor"
    gradient = Gradient(gradients.keep_ag_gemm, gradients.ag_gemm_backward)
    autocasts = timed = True
    local_axis = "n"

    def check(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None,
              method: str, comm_sms: int | None, act: str | None) -> Rows:
        checks.matrix("x", x)
        checks.matrix("weight", weight, like=x)
        (m, k), n = x.shape, weight.shape[0]
        if weight.shape[1] != k:
            raise InvalidArgument(f"weight: expected [N_local, {k}] to match x {list(x.shape)}, found {list(weight.shape)}; it "
                                  "has a row for each output column, as in nn.Linear")
        checks.rows("x", m * group.size)
        acts.check(act, n)
        checks.vector("bias", bias, n, like=x)
        checks.output("out", out, (m * group.size, acts.columns(act, n)), like=x)
        checks.no_overlap("out", out, x=x, weight=weight, bias=bias)
        checks.no_grad(x=x, weight=weight, bias=bias)
        if comm_sms is not None:
            if type(comm_sms) is not int or not 1 <= comm_sms <= by_sms.MOST:
                raise InvalidArgument(f"comm_sms: expected None or a whole number from 1 to {by_sms.MOST}, found {comm_sms!r}; "
                                      "leave it out for the copy engine")
            if method == "unfused":
                raise InvalidArgument(f"comm_sms: 'unfused' has no push, found {comm_sms}; leave it out, or use another method")
        return self._agreed(m, k, x.dtype, method, group, comm_sms, act)

    def resized(self, agreed: Rows, group: Group, x: torch.Tensor, asked: tuple) -> Rows | None:
        return agreed.of_rows(x.shape[0]) if 0 < x.shape[0] * group.size < 2**31 else None

    def _agreed(self, m: int, k: int, dtype: torch.dtype, method: str, group: Group, comm_sms: int | None = None,
                act: str | None = None) -> Rows:
        apart = possible.across_nodes(group)
        found = Rows(op=self.name, dtype=dtype, method=method, m=m, k=k, comm_sms=comm_sms, act=act,
                     sms=backend().num_sms() if apart else None)
        uncaptured = _why_uncaptured(found, group) if backend().is_capturing() else ""
        return products.resolved(self, found, group, comm_sms is None and not apart, uncaptured, _core(k, dtype))

    def candidates(self, agreed: Rows, group: Group) -> Sequence[Choice]:
        if agreed.method == "unfused" or not agreed.m * agreed.k:
            return [Choice("unfused")]
        core, portable = _core(agreed.k, agreed.dtype), backend().gemm_configs(agreed.dtype, agreed.m)
        tiled = core.configs(agreed.dtype, agreed.m, agreed.act is not None) if core else portable
        to_send = _ways_to_send(-(-agreed.m // tiled[0].block_m), agreed, group)
        return _ways(agreed.method, agreed.comm_sms, tuple(tiled) if core else (), tuple(portable), to_send)

    def rule(self, agreed: Rows, group: Group, ways: Sequence[Choice]) -> tuple[Choice, str]:
        return products.rule(self, agreed, group, ways, (group.size - 1) * agreed.shard)

    def plan(self, choice: Choice, agreed: Rows, group: Group, *tensors: torch.Tensor | None) -> Fused:
        return Fused(self, choice, agreed, group, *tensors)

    def choice_in_graphs(self, agreed: Rows, group: Group, choice: Choice) -> Choice | None:
        """A copy engine's pushes carry the epoch as an argument, which a replay would repeat.

        In their place SMs push, or copies before which all ranks meet (in_graphs.py).
        """
        if choice.comm_sms or possible.across_nodes(group):
            return None
        copies = backend().captures_pushes()
        if agreed.shard * group.size > _MOST_BY_SMS_IN_GRAPHS or copies and agreed.shard > by_sms.LARGE_SHARD:
            return choice._replace(in_graphs=True) if copies else None
        return choice._replace(in_graphs=True, pieces=0, comm_sms=by_sms.usual_sms(agreed.shard))

    def collective_of_unfused(self, agreed: Rows, group: Group, x: torch.Tensor, *_: torch.Tensor | None) -> Plan | None:
        if not agreed.m * agreed.k:
            return None
        return ALL_GATHER.part(group, ALL_GATHER.at(agreed.m * group.size, agreed.k, 1, agreed.dtype, group), x, None)

    def unfused(self, agreed: Rows, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                out: torch.Tensor, return_gathered: bool = False, collective: Callable | None = None) -> torch.Tensor | None:
        """A collective, then a matmul. Gives the gathered x where it is asked for."""
        if not agreed.m * agreed.k:                     # no rows, or sums of no terms
            if bias is None:
                out.zero_()
            else:
                each = bias if agreed.act is None else acts.silu_mul(bias)
                out.copy_(each.expand_as(out))
            return x.new_empty((agreed.m * group.size, agreed.k)) if return_gathered else None

        run = collective or partial(all_gather, group=group)

        def gathered(rows: torch.Tensor) -> torch.Tensor:
            everyone = run(rows)
            backend().before_torch()
            return everyone
        return ag_gemm_unfused(x, weight, gathered, bias, out, agreed.act is not None)[1]

    def out_shape(self, world: int, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
                  act: str | None = None) -> tuple:
        registry.require(weight.shape[1] == x.shape[1], "weight: expected [N_local, K] with the K of x [M / W, K]")
        acts.check(act, weight.shape[0])
        return x.shape[0] * world, acts.columns(act, weight.shape[0])

    def shape_of_out(self, agreed: Rows, group: Group, *tensors: torch.Tensor | None) -> tuple:
        return self.out_shape(group.size, *tensors[:len(self.tensors)], act=agreed.act)

    def fake(self, **call: Any) -> torch.Tensor:
        x, weight = call["x"], call["weight"]
        return x.new_empty(self.out_shape(registry.world_of(call["group"]), x, weight, act=call["act"]))

    def traffic(self, agreed: Rows, group: Group) -> dict[int, int]:
        """Its shard to every peer; over nodes to the equal place of each, and what comes so to every rank of the own."""
        if possible.across_nodes(group):
            return products.gathered_over_nodes(group, agreed.shard)
        return {rank: agreed.shard for rank in group.world_ranks if rank != group.world_ranks[group.rank]}

    def local_size(self, x: torch.Tensor, weight: torch.Tensor, *_: torch.Tensor | None) -> int:
        return weight.shape[0]

    def shape(self, agreed: Rows, group: Group, local: int) -> Shape:
        act = "" if agreed.act is None else f", {agreed.act}"
        return Shape(self.name, f"{str(agreed.dtype).removeprefix('torch.')}{act}", agreed.m * group.size, local, agreed.k)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Rows:
        return self._agreed(-(-m // group.size), k, dtype, "auto", group)

    def estimates(self, agreed: Rows, group: Group, shape: Shape, ways: Sequence[Choice]) -> dict:
        return products.estimates(model.ag_gemm_estimates, agreed, group, ways, agreed.m, -(-shape.n // group.size), shape.k)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return {"x": (m // group.size, k), "weight": (products.part(n, group), k)}

    def recorded(self, given: dict) -> Any:
        given["x"], given["weight"], given["bias"] = registry.cast(given["x"], given["weight"], given["bias"])
        gathers = given["return_gathered"]
        if not gathers and not (given["save_gathered"] and given["weight"].requires_grad):
            return registry.call_recorded(self, given)
        result, gathered = AG_GEMM_GATHERED(given["x"], given["weight"], given["bias"], registry.name_of(given["group"]),
                                            given["method"], given["comm_sms"], given["act"], not gathers)
        result = registry.written(result, given["out"])
        return (result, gathered) if gathers else result


def _ways_to_send(tiles: int, agreed: Rows, group: Group) -> tuple[tuple[int, int], ...]:
    """(pieces, comm_sms) of Choices that send a shard of `tiles` tiles otherwise than is usual."""
    by_copies = agreed.comm_sms is None
    if possible.across_nodes(group):
        return tuple([(0, sms) for sms in _OVER_NODES]) if by_copies else ()
    usual, _ = gather.cut(tiles, agreed.shard, gather.PIECE_BYTES if by_copies else by_sms.PIECE_BYTES)
    found = [(pieces, 0) for pieces in (1, 2, gather.MAX_PIECES) if pieces != usual and pieces <= tiles]
    if by_copies and agreed.shard <= _MOST_BY_SMS:
        found += [(0, sms) for sms in (by_sms.FEW_SMS, by_sms.MOST_SMS)]
    return tuple(found)


@cache
def _ways(method: str, comm_sms: int | None, by_core: tuple, portable: tuple, to_send: tuple) -> tuple[Choice, ...]:
    """Candidates with these tilings, of the core and the portable kernel, and ways to send by the first one that is preferred."""
    found: list[Choice] = []
    for kind, configs in (("ws", by_core), ("portable", portable[:1] if by_core else portable)):
        found += choices(kind, *configs)
        if len(configs) > 1:
            found += [Choice(kind, configs[0], *way) for way in to_send]
    if comm_sms is not None:
        found = [choice._replace(comm_sms=comm_sms) for choice in found]
    else:
        found.append(Choice("unfused"))
    return tuple([choice for choice in found if method in ("auto", choice.method)])


def _why_uncaptured(agreed: Rows, group: Group) -> str:
    """Why a call without a plan cannot be captured."""
    if agreed.comm_sms is not None:
        return possible.BEFORE_CAPTURE
    if agreed.shard * group.size > _MOST_BY_SMS_IN_GRAPHS and not backend().captures_pushes():
        return ("graphs cannot hold this device's copies, so to capture a gather of more than "
                f"{_MOST_BY_SMS_IN_GRAPHS >> 20} MiB takes comm_sms")
    return (f"{possible.BEFORE_CAPTURE}, under triton_dist.prepare_graphs() or on another stream than the default one; or the "
            "symmetric heap had no room for it then")


def _core(k: int, dtype: torch.dtype) -> Any:
    core = backend().core("ag_gemm")
    return core if core is not None and core.serves(dtype, k) else None


AG_GEMM = AgGemm()


@AG_GEMM.public
def ag_gemm(x: torch.Tensor, weight: torch.Tensor, *, group: Any = None, bias: torch.Tensor | None = None,
            out: torch.Tensor | None = None, return_gathered: bool = False, method: str = "auto",
            comm_sms: int | None = None, save_gathered: bool = False, act: str | None = None) -> Any:
    """all_gather(x) @ weight^T + bias, with the gather hidden behind the GEMM. Collective over `group`.

    Args:
        x: [M / W, K] fp16, bf16 or fp32 on `triton_dist.device()`: this rank's rows. Equal shape and dtype on all ranks.
        weight: [N_local, K], same dtype: this rank's shard, as nn.Linear stores it. N_local may differ and may be 0.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        bias: [N_local] or None, same dtype, added in fp32 before rounding.
        out: contiguous, of the result's shape, or None to allocate.
        return_gathered: also return the gathered x [M, K], rows in group order.
        method: "auto", "ws" (fused, the device's warp-specialised core; what it cannot read or write is copied at each
            call), "portable" (fused) or "unfused" (a collective, then a matmul). The same on all ranks.
        comm_sms: None, or the number of SMs (1 to 32) that push x instead of the copy engine. The GEMM leaves them free. This
            suits few rows, because a copy takes long to start. Over nodes: the most programs that send. The same on all ranks.
        save_gathered: True keeps the gathered x [M, K] for the gradient of weight. False keeps x [M / W, K] and gathers it again
            in the backward pass, while gemm_rs computes the gradient of x. The same on all ranks.
        act: None, or "silu_mul": the first N_local / 2 rows of weight are gate's, the others up's, and the result is
            silu(x @ gate^T + its bias) * (x @ up^T + its bias), computed in the GEMM's epilogue. N_local is even. The same on all
            ranks.

    Gradients (without `out`): gemm_rs gives the gradient of x, and the gathered x that of weight. The same tensors must require
    gradients on all ranks. With "silu_mul" the backward pass computes gate and up again; training is faster without it if there
    is memory for the product.
    In graphs: run the same call once before capture, under `triton_dist.prepare_graphs()` or on a stream other than the default
    one, as torch's warm-ups do. Otherwise auto captures "unfused", and other methods are refused. In a graph SMs push shards of
    up to 8 MiB: comm_sms of them, or by default 16 for up to 512 KiB and else 4 or 8. The copy engine pushes larger shards, into
    a buffer of its own of the size of the gathered x. Where graphs cannot hold a device's copies, SMs push gathers of up to
    64 MiB. Replays and eager calls may follow each other in any order, on one stream or on streams that wait for each other.
    Over nodes SHMEM sends shards to the rank at the same position of each other node, which passes them on inside its node.

    Returns out [M, N_local], with "silu_mul" [M, N_local / 2], rows in group order, or (out, gathered).
    Sums accumulate in fp32 with one rounding to the output dtype, after the activation; fp32 follows torch's allow_tf32 switch
    for matmuls. "unfused" rounds the product, silu and the result.
    Under autocast operands are cast and the output has its dtype, as for nn.Linear; `out` must have that dtype.
    Raises InvalidArgument before anything is sent. Same inputs give the same bits.

    Example:
        hidden = ag_gemm(x, up_proj.weight)                 # x [M / W, K] -> [M, N_local]
        hidden = ag_gemm(x, torch.cat([gate_proj.weight, up_proj.weight]), act="silu_mul")
    """
    known = AG_GEMM.known((method, comm_sms, act), group, x, weight, out, bias)
    if known is None:
        return AG_GEMM.record(x=x, weight=weight, group=group, bias=bias, out=out, return_gathered=return_gathered, method=method,
                              comm_sms=comm_sms, save_gathered=save_gathered, act=act)
    if out is None:
        out = known.new_out()
    gathered = known.plan.run(known.group, x, weight, bias, out, return_gathered)
    return (out, gathered) if return_gathered else out


def _gathered(**call: Any) -> tuple:
    """Shapes of ag_gemm with return_gathered."""
    x = call["x"]
    return AG_GEMM.fake(**call), x.new_empty((x.shape[0] * registry.world_of(call["group"]), x.shape[1]))


AG_GEMM_GATHERED = Operator(
    "ag_gemm_gathered",
    "(Tensor x, Tensor weight, Tensor? bias, str group, str method, int? comm_sms, str? act, bool hidden=False)"
    " -> (Tensor, Tensor)",
    lambda x, weight, bias, group, method, comm_sms, act, hidden=False: ag_gemm(
        x, weight, group=group, bias=bias, method=method, comm_sms=comm_sms, act=act, return_gathered=True),
    lambda x, weight, bias, group, method, comm_sms, act, hidden=False: _gathered(x=x, weight=weight, group=group, act=act),
    Gradient(gradients.keep_ag_gemm_gathered, gradients.ag_gemm_gathered_backward))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ep_dispatch: what ranks agree on, its plan of one to three kernels, and the call by tensors. Users call ep/calls.py."""
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.ops import registry
from triton_dist.ops.autograd import experts as gradients
from triton_dist.ops.calls import checks
from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.calls.carriers import carrier_of, flat
from triton_dist.ops.calls.plans import OnWorkspace, Plan
from triton_dist.ops.ep import checks as ep_checks, chunks
from triton_dist.ops.ep.chunks import Room, tile_of
from triton_dist.ops.ep.nodes_device import HEAD
from triton_dist.ops.ep.op import TWO_LEVEL, ExpertsOp, OfTokens
from triton_dist.ops.ep.self_flagged import METHOD, aligned
from triton_dist.ops.ep_dispatch.by_expert import ByExpert
from triton_dist.ops.ep_dispatch.kernels import ep_dispatch_kernel
from triton_dist.ops.ep_dispatch.nodes import OverNodes
from triton_dist.ops.ep_dispatch.place_kernels import expand_kernel, place_kernel
from triton_dist.ops.ep_dispatch.self_flagged import SelfFlagged
from triton_dist.ops.ep_dispatch.unfused import ep_dispatch_unfused
from triton_dist.ops.exchange.sizes import power_of_two
from triton_dist.ops.registry import Gradient
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import CountedWorkspace, team

LAYOUTS = ("compact", "indexed", "expert", "masked")
QUANTS = ("fp8_1x128", )
_WIDE = 32  # rows whose choices a program moves at a time
_CELLS = 128  # choices whose places a program finds at a time
_COUNTS = 16384  # of choices of experts that it reads at a time
_PLACE_WARPS = 8
_EXPANDING = 4  # programs that put the rows of a chunk in their places


@dataclass(frozen=True, kw_only=True)
class Tokens(OfTokens):
    """What is dispatched of tokens: weights of choices or none, and `scales` scales.

    room: rows by expert; of each expert where the layout is masked. limit: rows that can come.
    """
    weighted: bool
    scales: int
    layout: str
    align: int
    room: int
    limit: int
    quant: str | None

    @property
    def sent_bytes(self) -> int:
        """Of a row."""
        return self.row * (1 if self.quant else self.dtype.itemsize)

    @property
    def ordered(self) -> bool:
        """Whether rows are put in the order of experts."""
        return self.layout != "compact"

    @property
    def expanded(self) -> bool:
        """Whether there is a row for each choice."""
        return self.layout in ("expert", "masked")


class EPDispatch(ExpertsOp):
    """Tokens to the ranks that have their experts."""

    name = "ep_dispatch"
    tensors = {"x": "sharded", "topk_ids": "sharded", "topk_weights": "sharded", "scales": "sharded"}
    outputs = {
        "out": "sharded",
        "scales_out": "sharded",
        "ids_out": "sharded",
        "weights_out": "sharded",
        "told": "local",
        "positions": "local",
        "sources": "local"
    }
    schema = (
        "(Tensor x, Tensor topk_ids, Tensor? topk_weights, Tensor? scales, SymInt num_experts, str layout, SymInt align, "
        "SymInt? capacity, SymInt? max_tokens, str? quant, str group, str method) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
    gradient = Gradient(gradients.keep_dispatch, gradients.backward_dispatch)

    def check(self, group: Group, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor | None,
              scales: torch.Tensor | None, out: torch.Tensor | None, *rest: Any) -> Tokens:
        num_experts, layout, align, capacity, max_tokens, quant, method = rest[-7:]
        checks.tensor("x", x, ndim=2, any_dtype=True)
        ep_checks.choices(topk_ids, x.shape[0])
        ep_checks.experts(num_experts, group)
        k = topk_ids.shape[1]
        ep_checks.floats("topk_weights", topk_weights, tuple(topk_ids.shape))
        if scales is not None:
            if not isinstance(scales, torch.Tensor) or scales.ndim != 2:
                raise InvalidArgument(
                    f"scales: expected None or float32 [{x.shape[0]}, S], found "
                    f"{list(scales.shape) if isinstance(scales, torch.Tensor) else type(scales).__name__}")
            ep_checks.floats("scales", scales, (x.shape[0], scales.shape[1]))
        if layout not in LAYOUTS:
            raise InvalidArgument(f"layout: expected one of {', '.join(LAYOUTS)}, found {layout!r}")
        checks.size("align", align)
        if align < 1 or align > 1 and layout not in ("indexed", "expert"):
            raise InvalidArgument(f"align: expected at least 1, and 1 for layout {layout!r}, found {align}")
        if quant is not None and quant not in QUANTS:
            raise InvalidArgument(f"quant: expected None or one of {', '.join(QUANTS)}, found {quant!r}")
        if quant is not None and (x.dtype not in checks.DTYPES or x.shape[1] % 128 or scales is not None):
            raise InvalidArgument(
                f"quant: {quant!r} takes rows of float16, bfloat16 or float32 whose length is a multiple of 128, "
                f"without scales, found {x.dtype} of shape {list(x.shape)}")
        if capacity is not None:
            checks.size("capacity", capacity)
        agreed = self._agreed(x.shape[1], x.dtype, k, topk_weights is not None,
                              0 if scales is None else scales.shape[1], num_experts, layout, align, capacity,
                              ep_checks.most_tokens(max_tokens, x.shape[0]), quant, method, group)
        like = torch.empty(0, dtype=torch.float8_e4m3fn, device=x.device) if quant else x
        checks.output("out", out, self._shape_out(agreed, group), like=like, any_dtype=True)
        if quant is not None and out is not None and out.data_ptr() % 4:
            raise InvalidArgument(
                "out: expected an address that is a multiple of 4 bytes, since four numbers of fp8 are stored at a time, "
                f"found one {out.data_ptr() % 4} bytes beyond; pass None to have it allocated")
        checks.no_overlap("out", out, x=x, topk_ids=topk_ids, topk_weights=topk_weights, scales=scales)
        checks.no_grad(x=x, topk_weights=topk_weights)
        self.refuse_unfused_capture(agreed)
        return agreed

    def _agreed(self, row: int, dtype: torch.dtype, k: int, weighted: bool, scales: int, experts: int, layout: str,
                align: int, capacity: int | None, max_tokens: int, quant: str | None, method: str,
                group: Group) -> Tokens:
        most = group.size * max_tokens
        cut = layout == "indexed" and capacity is not None and capacity < most
        method, why = self.chosen_for_rows(method, row * (1 if quant else dtype.itemsize), max_tokens, k, experts, group,
                                           "rows of an indexed dispatch may be cut off" if cut else None)
        room = {"compact": 0, "masked": most}.get(layout, most * k + experts // group.size * (align - 1))
        limit = most
        if capacity is not None:
            room, limit = (capacity, most) if layout in ("expert", "masked") else (room, capacity)
        by_expert = room * (experts // group.size if layout == "masked" else 1)
        if max(limit, by_expert) * max(row, k) >= 2**46 or by_expert >= 2**31:
            raise InvalidArgument(f"capacity: expected fewer rows, found {room}; split the call")
        return Tokens(op=self.name,
                      dtype=dtype,
                      method=method,
                      why=why,
                      row=row,
                      k=k,
                      weighted=weighted,
                      scales=row // 128 if quant else scales,
                      experts=experts,
                      layout=layout,
                      align=align,
                      room=room,
                      limit=limit,
                      max_tokens=max_tokens,
                      quant=quant)

    def of_ids(self, dtype: torch.dtype, k: int, weighted: bool, experts: int, max_tokens: int, group: Group) -> Tokens:
        """What ranks agree on where only ids and weights of choices travel, of rows without elements."""
        return self._agreed(0, dtype, k, weighted, 0, experts, "indexed", 1, None, max_tokens, None, "push", group)

    def plan(self, choice: Choice, agreed: Tokens, group: Group, *tensors: torch.Tensor | None) -> Plan:
        if choice.method == METHOD:
            return SelfFlagged(agreed, group, tensors)
        if choice.method == TWO_LEVEL:
            return OverNodes(Push(agreed, group, tensors, chunks.whole_calls(group), send=False, over_nodes=True))
        if agreed.expanded:
            return ByExpert(Push, agreed, group, tensors)
        return Push(agreed, group, tensors, chunks.whole_calls(group))

    def unfused(self, agreed: Tokens, group: Group, *tensors: torch.Tensor | None) -> None:
        """The group's own collective."""
        if agreed.max_tokens:
            ep_dispatch_unfused(agreed, group, *tensors)
        else:  # no tokens on any rank
            tensors[8].zero_()
            if agreed.ordered:
                local = agreed.experts // group.size
                begins = torch.arange(local + 1) * (agreed.room if agreed.layout == "masked" else 0)
                tensors[8][-local - 1:] = begins.to(tensors[8])
            tensors[6].fill_(-1)
            tensors[7].zero_()
            tensors[9].fill_(-1)

    def shape_of_out(self, agreed: Tokens, group: Group, *_: torch.Tensor | None) -> tuple:
        return self._shape_out(agreed, group)

    def _shape_out(self, agreed: Tokens, group: Group) -> tuple:
        if agreed.layout == "masked":
            return agreed.experts // group.size, agreed.room, agreed.row
        return agreed.room if agreed.expanded else agreed.limit, agreed.row

    def filled(self, group: Group, agreed: Tokens, tensors: Sequence) -> list:
        inputs = list(tensors[:len(self.tensors)])
        return inputs + [
            out if out is not None else inputs[0].new_empty(shape, dtype=dtype)
            for out, (shape, dtype) in zip(tensors[len(self.tensors):], self._results(agreed, group))
        ]

    def _results(self, agreed: Tokens, group: Group) -> list:
        """(shape, dtype) of each output, None for x's; a shape of 0 stands for what there is not."""
        out, i32, local = self._shape_out(agreed, group), torch.int32, agreed.experts // group.size
        rows = agreed.limit
        return [(out, torch.float8_e4m3fn if agreed.quant else None),
                ((*out[:-1], agreed.scales) if agreed.scales else (0, ), torch.float32), ((rows, agreed.k), i32),
                ((rows, agreed.k) if agreed.weighted else (0, ), torch.float32),
                ((1 + group.size * agreed.chunks.count + (2 * local + 1 if agreed.ordered else 0), ), i32),
                ((rows, agreed.k) if agreed.ordered else (0, ), i32),
                ((agreed.room, ) if agreed.layout == "indexed" else (0, ), i32)]

    def fake(self, **call: Any) -> tuple:
        x, ids, scales, max_tokens = call["x"], call["topk_ids"], call["scales"], call["max_tokens"]
        group = registry.resolve(call["group"])
        agreed = self._agreed(x.shape[1], x.dtype, ids.shape[1], call["topk_weights"] is not None,
                              0 if scales is None else scales.shape[1], call["num_experts"], call["layout"],
                              call["align"], call["capacity"], x.shape[0] if max_tokens is None else max_tokens,
                              call["quant"], "auto", group)
        return tuple([x.new_empty(shape, dtype=dtype) for shape, dtype in self._results(agreed, group)])

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Tokens:
        """m tokens of all ranks, rows of n elements; k does not matter: each token has a choice on each of up to 16 ranks."""
        return self._agreed(n, dtype, min(group.size, ep_checks.MOST_CHOICES), False, 0, 8 * group.size, "compact", 1,
                            None, -(-m // group.size), None, "auto", group)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        rows, choice = -(-m // group.size), torch.arange(min(group.size, ep_checks.MOST_CHOICES))
        ids = 8 * choice + (torch.arange(rows).unsqueeze(1) + group.rank) % 8
        return {"x": (rows, n), "topk_ids": ids.to(torch.int32).to(backend().device()), "num_experts": 8 * group.size}


class Push(OnWorkspace):
    """The kernel that sends and takes; for rows by expert, one that finds their places, and one that puts them there.

    send, take: False in a plan of the other half alone (ep/split.py). over_nodes: rows come by another kernel (nodes.py).
    expand: False: rows stay as they came. beside: words of choices beside a row, if not all of them, and
    pieces: in which rows move, if not as usual (by_expert.py).
    """
    def __init__(self,
                 agreed: Tokens, group: Group, tensors: Sequence, space: CountedWorkspace,
                 send: bool = True, take: bool = True, over_nodes: bool = False, expand: bool = True,
                 beside: int | None = None, pieces: chunks.Pieces | None = None):
        self.agreed, self.group, self.tokens, self.chunks = agreed, group, tensors[0].shape[0], agreed.chunks
        self.halves, self.places = dict(send=send, take=take), take and agreed.ordered
        self.expands = agreed.expanded and expand
        self.sent, each = (torch.int8, 1) if agreed.quant else carrier_of(agreed.dtype)
        self.carrier, self.row = carrier_of(agreed.dtype)[0], each * agreed.row
        self.local = agreed.experts // group.size
        self.pieces, multiple = (chunks.ROUNDED, 128) if agreed.quant else (pieces or chunks.MOVED, 1)
        self.tile = tile_of(self.chunks, self.row, self.sent.itemsize, self.pieces, multiple)
        self.meta = chunks.words_beside(agreed.k * (1 + agreed.weighted) if beside is None else beside, agreed.scales)
        box = HEAD.value + self.chunks.each * self.meta if over_nodes else 0
        self.room = Room(group, self.chunks, self.tile, self.sent, self.row, self.meta, space, box)
        self.padded = power_of_two(self.local)
        self.counts = group.size * self.chunks.count * self.padded
        super().__init__(self.room.space)

    def compile(self, *tensors):
        (args, placing, expanding), agreed, room = self.args(*tensors), self.agreed, self.room
        args, placing = (*args, hist := self._hist()), (hist, *placing) if placing else ()
        tokens, chunked = power_of_two(self.chunks.each), self.chunks.count
        shared = dict(K=agreed.k,
                      CHOICES=power_of_two(agreed.k),
                      E_LOC=self.local,
                      WORLD=self.group.size,
                      RANKS=room.ranks,
                      PITCH=room.pitch,
                      num_stages=1)
        of_rows = dict(shared,
                       SCALES=agreed.scales,
                       SCALES_PAD=power_of_two(max(1, agreed.scales)),
                       META=self.meta,
                       **self.pieces.options)
        rest = (*room.packets, *room.rows, *room.words, *room.flags, room.space.control, team(self.group),
                self.tokens, self.chunks.each, self.tile.rounds, self.row, agreed.limit, agreed.experts, chunked)
        self.options = dict(of_rows,
                            E_PAD=self.padded,
                            WEIGHTS=agreed.weighted,
                            QUANT=agreed.quant is not None,
                            INDEX=agreed.ordered,
                            FIRST=0 if self.expands else 1,
                            TOKENS=tokens,
                            WIDE=min(tokens, _WIDE),
                            ROWS=self.tile.rows,
                            COLS=self.tile.cols,
                            ROUND=self.tile.round,
                            PARTS=self.tile.parts)
        self.exchange = backend().prepare(ep_dispatch_kernel, self.tile.grid(self.chunks, **self.halves), (*args, *rest),
                                          dict(self.options, SEND=self.halves["send"], TAKE=self.halves["take"]),
                                          varying=len(args))
        if placing:
            self.place = backend().prepare(place_kernel, (chunked, ),
                                           (*placing, agreed.limit, agreed.room, agreed.align, chunked),
                                           dict(shared,
                                                E_PAD=self.padded,
                                                MASKED=agreed.layout == "masked",
                                                SOURCES=not agreed.expanded,
                                                ROWS=min(tokens, _CELLS // shared["CHOICES"]),
                                                LINES=min(power_of_two(chunked), max(1, _COUNTS // self.padded)),
                                                num_warps=_PLACE_WARPS),
                                           varying=len(placing))
        if expanding:
            tile = tile_of(self.chunks, self.row, self.sent.itemsize, chunks.EXPANDED)
            parts = min(_EXPANDING, -(-self.chunks.each // tile.rows))
            rest = (*room.rows, *room.words, room.space.control, self.chunks.each, self.row, agreed.limit, agreed.room,
                    agreed.align, chunked)
            self.expand = backend().prepare(expand_kernel, (parts * chunked, ), (*expanding, *rest),
                                            dict(of_rows,
                                                 MASKED=agreed.layout == "masked",
                                                 ROWS=tile.rows,
                                                 COLS=tile.cols,
                                                 PARTS=parts),
                                            varying=len(expanding))

    def sending(self, x, topk_ids, topk_weights, scales, out, scales_out, ids_out, weights_out, told, positions,
                 sources) -> tuple:
        x = flat(x, self.carrier) if x.dtype != self.carrier else x.contiguous()
        return (aligned(x) if self.agreed.quant else x, topk_ids,
                weights_out if topk_weights is None else topk_weights, scales_out if scales is None else scales,
                out if out.dtype == self.sent else flat(out, self.sent), scales_out, ids_out, weights_out, told)

    def args(self, *tensors) -> tuple:
        """Of the kernel that sends and takes, of the one that places, and of the one that expands; () where there is none."""
        sent = self.sending(*tensors)
        if not self.places:
            return sent, (), ()
        out, scales_out, ids_out, _, told = sent[4:]
        positions, sources = tensors[9:11]
        of_experts = told[1 + self.group.size * self.chunks.count:]
        expanding = (told, positions, of_experts, out, scales_out) if self.expands else ()
        return sent, (told, ids_out, positions, sources, of_experts), expanding

    def _hist(self) -> torch.Tensor:
        """Room for numbers of choices between two kernels of a call: its own, as a graph may outlive this plan."""
        if not self.places:  # nobody writes to it
            return self.space.control.view(torch.int16)
        return torch.empty(self.counts, dtype=torch.int16, device=backend().device())

    def launch(self, sent: tuple, placing: tuple, expanding: tuple) -> None:
        hist = self._hist()
        self.exchange(*sent, hist)
        if self.places:  # the half of a call that only sends is launched with the arguments of both
            self.place(hist, *placing)
            if expanding:
                self.expand(*expanding)


EP_DISPATCH = EPDispatch()


@EP_DISPATCH.public
def ep_dispatch_rows(x: torch.Tensor,
                     topk_ids: torch.Tensor,
                     topk_weights: torch.Tensor | None = None,
                     scales: torch.Tensor | None = None,
                     *,
                     num_experts: int,
                     layout: str = "compact",
                     align: int = 1,
                     capacity: int | None = None,
                     max_tokens: int | None = None,
                     quant: str | None = None,
                     group: Any = None,
                     out: torch.Tensor | None = None,
                     method: str = "auto") -> tuple:
    """The operator of ep_dispatch in graphs: it takes and returns tensors. In a program call ep_dispatch instead.

    Returns (out, scales_out, ids_out, weights_out, told, positions, sources); tensors that the call does not have are empty.
    """
    asked, more = (num_experts, layout, align, capacity, max_tokens, quant, method), [None] * 5
    known = EP_DISPATCH.known(asked, group, x, topk_ids, out, topk_weights, scales, None, *more)
    if known is None:
        return EP_DISPATCH.record(x=x,
                                  topk_ids=topk_ids,
                                  topk_weights=topk_weights,
                                  scales=scales,
                                  num_experts=num_experts,
                                  layout=layout,
                                  align=align,
                                  capacity=capacity,
                                  max_tokens=max_tokens,
                                  quant=quant,
                                  group=group,
                                  out=out,
                                  method=method)
    try:
        tensors = EP_DISPATCH.filled(known.group, known.plan.agreed,
                                     [x, topk_ids, topk_weights, scales, out, None, *more])
    except BaseException as error:
        withdraw(known.group, EP_DISPATCH.name, error)
        raise
    known.plan.run(known.group, *tensors)
    return tuple(tensors[4:])

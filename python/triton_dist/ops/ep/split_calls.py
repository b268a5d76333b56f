# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ep_dispatch_send and ep_combine_send: the first half of a call, whose result has the second half as `recv`."""
from contextlib import contextmanager
from typing import Any, Iterator

import torch

from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.calls.record import Known
from triton_dist.ops.ep.calls import EPDispatched, EPHandle, brought, expect_handle, refuse_cuts
from triton_dist.ops.ep.split import COMBINE_SEND, DISPATCH_SEND, SplitOp, UnderWay
from triton_dist.runtime.backend import backend
from triton_dist.runtime.device import Stream
from triton_dist.runtime.entry import entry
from triton_dist.runtime.streams import used_on


class EPSent:
    """A dispatch or a combine whose rows have been sent. `recv()`, or calling the object, completes it.

    The object may be dropped. The second next send on the same group then receives its rows.

    Attributes:
        outputs: an EPDispatched, or out [T, H]. Its tensors exist, but their content is valid only after recv().
    """

    def __init__(self, call: UnderWay | None, stream: Stream | None, outputs: Any):
        self._call, self._stream = call, stream
        self.outputs = outputs

    def recv(self) -> Any:
        """Has the current stream take what came.

        Returns:
            `outputs`: what ep_dispatch or ep_combine would have returned. A second call returns the same. Raises InvalidArgument
            in another graph capture than the one the rows were sent in.
        """
        if self._call is not None:
            first = not self._call.done
            self._call.take()
            if first and isinstance(self.outputs, EPDispatched):
                refuse_cuts(self.outputs)
        elif self._stream is not None and backend().current_stream() != self._stream:
            backend().current_stream().wait_stream(self._stream)
        return self.outputs

    __call__ = recv


@entry
def ep_dispatch_send(x: torch.Tensor,
                     topk_ids: torch.Tensor,
                     topk_weights: torch.Tensor | None = None,
                     *,
                     num_experts: int,
                     scales: torch.Tensor | None = None,
                     layout: str = "compact",
                     align: int = 1,
                     capacity: int | None = None,
                     max_tokens: int | None = None,
                     quant: str | None = None,
                     group: Any = None,
                     out: torch.Tensor | None = None,
                     method: str = "auto",
                     stream: Stream | None = None) -> EPSent:
    """The first half of ep_dispatch: sends rows and does not wait. Collective over `group`, in the order of all other calls.

    The half that sends is one launch. It ends when the rows have been stored to the peers, and no SM waits for theirs. Work that
    is launched before `recv()` overlaps with the peers' sends. Give a `stream` to overlap it with this rank's own send, too: the
    two then share the SMs. `recv()` launches the half that takes: it waits for the peers' rows and puts them in their places.

    Two calls may be under way on a group, dispatches and combines counted together, which is what two micro-batches need. Another
    send first completes the older one. Its result stays valid. Ranks must send in the same order; they may receive in any order.

    Do not write to the arguments before `recv()` has been called: rows of this rank's own experts are copied there. With
    method="unfused" this half does the whole call.

    Args:
        stream: of triton_dist.new_stream(): the send runs on it, after all that is on the current stream now. None: the current
            stream.
        x, topk_ids, topk_weights, num_experts, scales, layout, align, capacity, max_tokens, quant, group, out, method: as in
            ep_dispatch.

    Returns:
        An EPSent, whose recv() gives an EPDispatched. No gradients. The symmetric heap has two more workspaces for split calls,
        each as large as that of ep_dispatch.
        In graphs: run the same call once before capture, and capture both halves in one graph. Do not replay it while another
        split call on the group is under way. Raises InvalidArgument before anything is sent.

    Example:
        a = ep_dispatch_send(x_a, ids_a, num_experts=64)
        h_b = attention(x_b)                                        # of the other micro-batch, while rows travel
        b = ep_dispatch_send(h_b, ids_b, num_experts=64)
        y_a = experts(a.recv().x)
    """
    if stream is not None and isinstance(x, torch.Tensor):
        x = x.contiguous()          # a copy must be memory of the current stream
    more = [None] * 5
    known = DISPATCH_SEND.asked(stream, (num_experts, layout, align, capacity, max_tokens, quant, method), group, x, topk_ids,
                                out, topk_weights, scales, None, *more)
    tensors = _filled(DISPATCH_SEND, known, [x, topk_ids, topk_weights, scales, out, None, *more])
    call = _sent(known, stream, tensors)
    tokens = x.shape[0] if max_tokens is None else max_tokens
    scaled = scales is not None or quant is not None
    return EPSent(call, stream, brought(tensors[4:], topk_ids, topk_weights, num_experts, layout, tokens, scaled, group))


@entry
def ep_combine_send(y: torch.Tensor,
                    handle: EPHandle,
                    *,
                    topk_weights: torch.Tensor | None = None,
                    positions: torch.Tensor | None = None,
                    bias: torch.Tensor | None = None,
                    residual: torch.Tensor | None = None,
                    out: torch.Tensor | None = None,
                    method: str = "auto",
                    stream: Stream | None = None) -> EPSent:
    """The first half of ep_combine: sums each row's own experts and sends the sums. See ep_dispatch_send.

    The second half adds the sums of all ranks, with bias and residual. The handle may be that of ep_dispatch or of
    ep_dispatch_send.

    Args:
        stream: as in ep_dispatch_send.
        y, handle, topk_weights, positions, bias, residual, out, method: as in ep_combine.

    Returns:
        An EPSent, whose recv() gives out [T, H]. There are no gradients. For graphs see ep_dispatch_send. Raises
        InvalidArgument before anything is sent.

    Example:
        sent = ep_combine_send(y_a, came.handle)
        h_b = experts(came_b.x)                                     # of the other micro-batch, while sums travel
        x_a = sent.recv()
    """
    expect_handle(handle)
    placed = handle.positions if positions is None else positions
    if stream is not None:
        y, residual = (t.contiguous() if isinstance(t, torch.Tensor) else t for t in (y, residual))
    asked = handle.num_experts, handle.limit if placed is None else handle.room, handle.max_tokens, method
    known = COMBINE_SEND.asked(stream, asked, handle.group, y, handle.topk_ids, out, handle.told, placed, None,
                               topk_weights, bias, residual)
    tensors = _filled(COMBINE_SEND, known, [y, handle.topk_ids, handle.told, placed, topk_weights, bias, residual, out])
    return EPSent(_sent(known, stream, tensors), stream, tensors[-1])


def _filled(op: SplitOp, known: Known, tensors: list) -> list:
    """All tensors of a call that has been noted, outputs allocated."""
    try:
        return op.filled(known.group, known.plan.agreed, tensors)
    except BaseException as error:
        withdraw(known.group, op.name, error)
        raise


def _sent(known: Known, stream: Stream | None, tensors: list) -> UnderWay | None:
    """Sends. None for a call by the unfused method, which is done."""
    with _following(stream):
        call = known.plan.run(known.group, *tensors)
    if stream is not None:
        used_on(stream, tensors)
    return call


@contextmanager
def _following(stream: Stream | None) -> Iterator[None]:
    """Makes `stream` current, after what is on the current one."""
    if stream is None:
        yield
        return
    stream.wait_stream(backend().current_stream())
    with backend().use_stream(stream):
        yield

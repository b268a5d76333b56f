# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The plan of a dispatch of few tokens: one kernel in every layout, whose rows are their own flags."""
from typing import Any, Sequence

import torch

from triton_dist.ops.calls.carriers import carrier_of, flat
from triton_dist.ops.calls.plans import OnWorkspace
from triton_dist.ops.ep.self_flagged import Slots, TELLERS, aligned, threads_of
from triton_dist.ops.ep_dispatch.self_flagged_kernel import ep_dispatch_self_flagged
from triton_dist.ops.exchange.sizes import VECTOR, power_of_two
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import team

_PAIRS = 32  # of choices that a thread compares at a time


class SelfFlagged(OnWorkspace):
    """Holds all that does not change from call to call. agreed: a Tokens (op.py)."""
    def __init__(self, agreed: Any, group: Group, tensors: Sequence):
        self.agreed, self.group, self.tokens = agreed, group, tensors[0].shape[0]
        self.carrier, self.sent = carrier_of(agreed.dtype)[0], torch.int8 if agreed.quant else None
        self.vectors, self.local = agreed.sent_bytes // VECTOR, agreed.experts // group.size
        self.threads = threads_of(agreed.chunks, self.vectors)
        self.meta = agreed.k * (1 + agreed.weighted) + agreed.scales + self.threads.pieces
        self.slots = Slots(group, agreed.chunks, self.vectors, self.local if agreed.ordered else 0, self.meta)
        super().__init__(self.slots.space)

    def compile(self, *tensors: torch.Tensor | None) -> None:
        agreed, slots, threads, chunks = self.agreed, self.slots, self.threads, self.agreed.chunks
        args, tellers = self.args(*tensors), TELLERS if agreed.ordered else 1
        counted, entries = power_of_two(-(-agreed.experts // tellers)), power_of_two(agreed.max_tokens * agreed.k)
        rest = (*slots.rest, team(self.group), self.tokens, -(-self.tokens // chunks.count), chunks.each, self.vectors,
                agreed.limit, agreed.room, agreed.align, agreed.experts, chunks.count)
        self.launch = backend().prepare(ep_dispatch_self_flagged, (tellers + threads.parts * chunks.count, ), (*args, *rest),
                                        dict(K=agreed.k,
                                             CHOICES=power_of_two(agreed.k),
                                             SCALES=agreed.scales,
                                             WEIGHTS=agreed.weighted,
                                             QUANT=agreed.quant is not None,
                                             ORDERED=agreed.ordered,
                                             EXPANDED=agreed.expanded,
                                             MASKED=agreed.layout == "masked",
                                             E_LOC=self.local,
                                             E_PAD=power_of_two(self.local),
                                             COUNTED=counted,
                                             WORLD=self.group.size,
                                             RANKS=slots.ranks,
                                             PITCH=slots.pitch,
                                             TOKENS=power_of_two(chunks.each),
                                             HEAD=max(threads.count, power_of_two(self.meta)),
                                             TELLERS=tellers,
                                             BLOCK=min(entries, max(16, _PAIRS * threads.count // counted)),
                                             **threads.options,
                                             num_stages=1),
                                        varying=len(args))

    def args(self, x, topk_ids, topk_weights, scales, out, scales_out, ids_out, weights_out, told, positions, sources) -> tuple:
        return (aligned(flat(x, self.carrier)), topk_ids, weights_out if topk_weights is None else topk_weights,
                scales_out if scales is None else scales, flat(out, self.sent or self.carrier), scales_out, ids_out, weights_out,
                told, positions, sources)

    def run(self, group: Group, *tensors: Any) -> None:
        out = tensors[4]
        if out.data_ptr() % VECTOR == 0:
            super().run(group, *tensors)
        else:  # stores of whole vectors need an aligned address
            super().run(group, *tensors[:4], elsewhere := out.clone(), *tensors[5:])
            backend().before_torch()
            out.copy_(elsewhere)

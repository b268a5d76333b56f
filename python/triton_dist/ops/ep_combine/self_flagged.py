# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The plan of a combine of few tokens: one kernel whose rows are their own flags."""
from typing import Any, Sequence

import torch

from triton_dist.ops.calls.plans import OnWorkspace
from triton_dist.ops.ep.self_flagged import Slots, aligned, threads_of
from triton_dist.ops.ep_combine.self_flagged_kernel import ep_combine_self_flagged
from triton_dist.ops.exchange.sizes import VECTOR, power_of_two
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import team


class SelfFlagged(OnWorkspace):
    """Holds all that does not change from call to call. agreed: a Sums (op.py)."""
    def __init__(self, agreed: Any, group: Group, tensors: Sequence):
        y, topk_ids, _, positions = tensors[:4]
        self.agreed, self.group, self.tokens = agreed, group, topk_ids.shape[0]
        self.limit = y.shape[0] if positions is None else positions.shape[0]
        self.vectors = agreed.row * agreed.dtype.itemsize // VECTOR
        self.threads = threads_of(agreed.chunks, self.vectors)
        self.slots = Slots(group, agreed.chunks, self.vectors, 0, 0)
        super().__init__(self.slots.space)

    def compile(self, *tensors: torch.Tensor | None) -> None:
        agreed, slots, threads, chunks = self.agreed, self.slots, self.threads, self.agreed.chunks
        _, _, _, positions, weights, bias, residual, _ = tensors
        args = self.args(*tensors)
        rest = (*slots.rest, team(self.group), self.tokens, chunks.each, self.vectors, self.limit, agreed.experts, chunks.count)
        self.launch = backend().prepare(ep_combine_self_flagged, (threads.parts * chunks.count, ), (*args, *rest),
                                        dict(agreed.options(self.group, positions, weights, bias, residual),
                                             RANKS=slots.ranks,
                                             PITCH=slots.pitch,
                                             TOKENS=power_of_two(chunks.each),
                                             **threads.options,
                                             num_stages=1,
                                             enable_fp_fusion=False),  # else not the bits of the unfused sums
                                        varying=len(args))

    def args(self, y, topk_ids, told, positions, topk_weights, bias, residual, out) -> tuple:
        return (aligned(y.contiguous()), topk_ids, told, told if positions is None else positions,
                out if topk_weights is None else topk_weights, out if bias is None else aligned(bias),
                out if residual is None else aligned(residual.contiguous()), out)

    def run(self, group: Group, *tensors: Any) -> None:
        out = tensors[7]
        if out.data_ptr() % VECTOR == 0:
            super().run(group, *tensors)
        else:  # stores of whole vectors need an aligned address
            super().run(group, *tensors[:7], elsewhere := torch.empty_like(out))
            backend().before_torch()
            out.copy_(elsewhere)

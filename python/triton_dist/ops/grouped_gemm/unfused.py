# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""grouped_gemm by a loop of torch's products: the method "unfused". The host waits for the numbers of rows."""
import torch

from triton_dist.ops.calls import acts


def grouped_gemm_unfused(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor | None, counts: torch.Tensor | None,
                         sources: torch.Tensor | None, row_weights: torch.Tensor | None, out: torch.Tensor, gated: bool) -> None:
    """Writes each expert's rows of out. Arguments as for grouped_gemm; `gated`: with "silu_mul"."""
    experts, wide = weight.shape[0], torch.promote_types(x.dtype, torch.float32)
    rows, to = x.reshape(-1, x.shape[-1]), out.view(-1, out.shape[-1])
    end = x.shape[1] if x.ndim == 3 else to.shape[0]
    begins = [e * end for e in range(experts)] if offsets is None else offsets.tolist()
    many = [begins[e + 1] - begins[e] for e in range(experts)] if counts is None else counts.tolist()
    for e, (begin, count) in enumerate(zip(begins, many)):
        at = slice(begin, begin + max(0, min(count, end - (begin if offsets is not None else 0))))
        if at.start >= at.stop:
            continue
        product = (rows[at] if sources is None else rows[sources[at].long()]) @ weight[e].t()
        if gated:
            product = acts.silu_mul(product)
        if row_weights is not None:
            product = product.to(wide) * row_weights.view(-1)[at, None]
        to[at] = product

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rows by expert for a wide grouped GEMM, copied from where they lie: gathering them on their way would take longer."""
import torch
import triton.language as tl

from triton_dist.runtime.backend import backend
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["rows_x", "rows", "experts"])
def gather_rows_kernel(x, sources, begins, out, rows_x, rows, k, stride_x, experts, BLOCK: tl.constexpr):
    """out [rows, k]: row r is row sources[r] of x, up to where the last expert's rows end.

    Between experts `sources` may hold anything. What it points at outside of x is the last row.
    """
    col = tl.arange(0, BLOCK)
    end = tl.minimum(tl.load(begins + experts).to(tl.int32), rows)
    for row in range(tl.program_id(0), end, tl.num_programs(0)):
        source = tl.load(sources + row).to(tl.int64)
        source = tl.minimum(tl.maximum(source, 0), rows_x - 1)
        for start in range(0, k, BLOCK):
            inside = start + col < k
            value = tl.load(x + source * stride_x + start + col, mask=inside)
            tl.store(out + row.to(tl.int64) * k + start + col, value, mask=inside)


class GatherRows:
    """x[sources], for calls with tensors like those that it was made with."""

    def __init__(self, x: torch.Tensor, sources: torch.Tensor, begins: torch.Tensor, experts: int):
        rows, k = sources.shape[0], x.shape[1]
        self._room, grid = backend().maker((rows, k), x.dtype), (min(8 * backend().num_sms(), rows),)
        args = (x, sources, begins, self.room(), x.shape[0], rows, k, x.stride(0), experts)
        self._launch = backend().prepare(gather_rows_kernel, grid, args, dict(BLOCK=1024, num_warps=4), varying=4)

    def room(self) -> torch.Tensor:
        """Memory for the rows."""
        return self._room()

    def __call__(self, x: torch.Tensor, sources: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
        """x[sources], up to where the last expert's rows end; what follows is not written."""
        found = self.room()
        self._launch(x, sources, begins, found)
        return found

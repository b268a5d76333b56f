# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The launch of the kernel for bias, residual and norm, of tensors that an op's plan gives."""
import torch

from triton_dist.ops.calls.plans import present
from triton_dist.ops.exchange import sizes
from triton_dist.ops.norm_rows.kernels import norm_rows_kernel
from triton_dist.runtime.backend import backend

MOST_THREADS = 1024
MOST_ROW_BYTES = 8 * MOST_THREADS * sizes.VECTOR        # that one program holds in registers
_TENSORS = 10


def served(n: int, dtype: torch.dtype) -> bool:
    """Whether the kernel can be compiled now, and holds a row of n elements."""
    return 0 < n * dtype.itemsize <= MOST_ROW_BYTES and not backend().is_capturing()


def threads_of(m: int, n: int, dtype: torch.dtype, whole: bool, adds: bool, norms: bool) -> tuple[int, int]:
    """(threads of a program, vectors of a row that each of them has) for m rows of n elements.

    On an H200, of rows of 4096 and 8192 bf16: a norm alone is fastest with four vectors a thread, of one row and of thousands; an
    addition alone with one. With both one row takes 512 threads (8192: 1.96 us, with 256 2.33), many rows two vectors a thread.
    Rows that are no whole vectors are read element by element, which is long code for each vector.
    """
    vectors = sizes.vectors(n, dtype)
    wanted = sizes.power_of_two(vectors)
    if whole and norms and not adds:
        wanted = -(-wanted // 4)
    elif whole and norms:
        wanted = min(wanted, max(512, wanted // 8)) if m <= backend().num_sms() else -(-wanted // 2)
    threads = min(max(wanted, 4 * backend().warp_size), MOST_THREADS)
    return threads, -(-vectors // threads)


class NormRows:
    """Bias, residual and norm of m rows of n elements. `compile` makes it ready; then a call is one launch.

    center: whether the norm is of differences from the mean (LayerNorm). quant: how the norm is quantised, as of the kernel.
    """

    def __init__(self, m: int, n: int, dtype: torch.dtype, eps: float = 0.0, weight_bias: float = 0.0, center: bool = False,
                 quant: str = ""):
        self._m, self._n, self._dtype = m, n, dtype
        self._options = dict(EPS=eps, WEIGHT_BIAS=weight_bias, CENTER=center, QUANT=quant)

    def compile(self, x: torch.Tensor, *others: torch.Tensor | None) -> None:
        """Prepares launches on tensors like these: x, weight, bias, residual, out, total, shift, scale, quantised, scales.

        x and the residual have rows whose elements lie one after another, all others are contiguous; `scales` is a matrix. Those
        at the end may be left out. Without a weight there is no norm. total: None where it is x, with nothing added.
        """
        n, size = self._n, self._dtype.itemsize
        given = (x, *others, *[None] * (_TENSORS - 1 - len(others)))
        _, weight, bias, residual, out, total, shift, _, quantised, scales = given
        varying, args = present(*given)
        x_step = x.stride(0) if x.ndim == 2 else n
        step = residual.stride(0) if residual is not None and residual.ndim == 2 else n
        whole = n * size % sizes.VECTOR == x_step * size % sizes.VECTOR == step * size % sizes.VECTOR == 0
        for t in given[:7]:
            whole = whole and (t is None or t.data_ptr() % sizes.VECTOR == 0)
        whole = whole and (quantised is None or quantised.data_ptr() % sizes.VECTOR == 0)
        self._threads_of = n, self._dtype, whole, bias is not None or residual is not None, weight is not None
        self._threads = threads, each = threads_of(self._m, *self._threads_of)
        options = dict(self._options, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, HAS_TOTAL=total is not None,
                       HAS_SHIFT=shift is not None, NORM=weight is not None, HAS_OUT=out is not None, THREADS=threads, EACH=each,
                       WHOLE=whole, num_warps=threads // backend().warp_size, num_stages=1)
        steps = (0, 0) if scales is None else (scales.stride(0), scales.stride(1))
        self.launch = backend().prepare(norm_rows_kernel, (self._m,), (*args, n, x_step, step, *steps), options, varying)

    def on(self, m: int) -> "NormRows | None":
        """The same, ready, for m rows. None where it is to be compiled for them."""
        launch = self.launch.on((m,), {}) if threads_of(m, *self._threads_of) == self._threads else None
        if launch is None:
            return None
        found = object.__new__(NormRows)
        vars(found).update(vars(self), _m=m, launch=launch)
        return found

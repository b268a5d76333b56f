# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The fused plan of gemm_ar: how packets cut the product, and its one kernel."""
from dataclasses import dataclass

import torch

from triton_dist.ops.all_reduce.op import ALL_REDUCE
from triton_dist.ops.calls import checks
from triton_dist.ops.calls.plans import OnWorkspace, present
from triton_dist.ops.calls.possible import precision
from triton_dist.ops.device.boxes import boxes, can_read
from triton_dist.ops.exchange import sizes
from triton_dist.ops.gemm_ar.kernels import gemm_ar_kernel
from triton_dist.runtime.backend import backend
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import MAX_PROGRAMS, team

MOST_ROWS = 64                          # of a tile of packets: where there are no more, weights are read once
_MOST_TERMS = 32                        # of a tile, over ranks and pieces: more packets, and more threads that sum them


@dataclass(frozen=True)
class Tiling:
    """How packets cut the product: the GEMM's tiling, pieces of a tile along K, and whether tiles are summed in two hops."""
    config: GemmConfig
    split: int
    two_shot: bool

    def pieces(self, m: int, n: int) -> int:
        """Pieces of a product [m, n]."""
        return -(-m // self.config.block_m) * -(-n // self.config.block_n) * self.split


def tiling(m: int, n: int, dtype: torch.dtype, world: int) -> Tiling:
    """The tiling of a product [m, n]: of those below, the first that keeps nine of ten SMs busy, or most of them.

    The order is that of times on 2 H200 for 1 to 64 rows. Each piece of a tile sends a term, so bytes count once for each.
    """
    config, sms = backend().few_rows_config(dtype, min(m, MOST_ROWS)), backend().num_sms()
    most_pieces = max(1, _MOST_TERMS // sizes.power_of_two(world))
    narrow, split, most = 1, 1, 0.0
    for narrower, parts in ((1, 1), (1, 2), (2, 2), (1, 4), (2, 4), (1, 8), (2, 8), (4, 8)):
        parts = min(parts, most_pieces)
        pieces = -(-m // config.block_m) * -(-n // (config.block_n // narrower)) * parts
        busy = pieces / (-(-pieces // sms) * sms)
        if busy > most:
            narrow, split, most = narrower, parts, busy
        if most >= 0.9:
            break
    two_shot = sizes.by_size(ALL_REDUCE.steps, world, m * n * dtype.itemsize * split)[0] != "one_shot"
    return Tiling(config._replace(block_n=config.block_n // narrow), split, two_shot)


class Packets(OnWorkspace):
    """One kernel on the workspace of packets. Holds all that does not change from call to call.

    A subclass runs a kernel with more to do. options, and `more`, the last arguments, are those of one of the kernels alone.
    """

    more: tuple = ()

    def __init__(self, cut: Tiling, group: Group, x: torch.Tensor, weight: torch.Tensor, *_: torch.Tensor | None):
        self.kernel, self.group, self.tiling, config = gemm_ar_kernel, group, cut, cut.config
        self.m, (self.n, self.k) = x.shape[0], weight.shape
        pieces = cut.pieces(self.m, self.n)
        share = -(-sizes.words(min(self.m, config.block_m) * config.block_n, x.dtype) // cut.split)
        terms = group.size * cut.split
        pairs = (terms + group.size) * -(-share // group.size) if cut.two_shot else terms * share
        self.programs, self.options = min(pieces, backend().num_sms(), MAX_PROGRAMS), dict(TWO_SHOT=cut.two_shot)
        space, self.slots, self.half = sizes.packets(group, pieces * pairs)
        super().__init__(space)

    def compile(self, *given):
        config, group, args = self.tiling.config, self.group, self.args(*given)
        self.plain = all(arg is t for arg, t in zip(args, given))
        x, weight, bias, residual = args[:4]
        by_boxes = backend().copies_boxes() and can_read(x, weight)
        used = [t.contiguous() for t in given[2:] if t is not None]
        options = dict(self.options, WORLD=group.size, RANKS=sizes.power_of_two(group.size), SPLIT=self.tiling.split,
                       HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, WHOLE=sizes.whole_words(self.n, *used),
                       BOXES=by_boxes, EVEN_K=self.k % config.block_k == 0, PRECISION=precision(x.dtype),
                       THREADS=config.num_warps * backend().warp_size, **config.options())
        del options["GROUP_M"]
        rest = (self.slots, self.half, self.space.control, team(group), self.m, self.n, self.k, x.stride(0), weight.stride(0))
        varying, tensors = present(*args)
        if by_boxes:
            tensors[:2] = boxes(x, config.block_m, config.block_k), boxes(weight, config.block_n, config.block_k)
        self.launch = backend().prepare(self.kernel, (self.programs,), (*tensors, *rest, *self.more), options, varying)

    def args(self, x, weight, bias, residual, *others) -> tuple:
        return (checks.rows_contiguous(x), checks.rows_contiguous(weight), bias,
                None if residual is None else residual.contiguous(), *others)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The Hopper core as a capability: what it serves, its tiling, and the arguments of its kernels.

Ops ask the backend's registry for "ag_gemm" or "gemm_rs" and get one of these objects, or nothing.
"""
import functools
from typing import Any, Callable

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_dist.cores.hopper.ag_gemm_ws import ag_gemm_by_sms_ws_kernel, ag_gemm_ws_kernel
from triton_dist.cores.hopper.descriptors import descriptor, layout, tma_can_read
from triton_dist.cores.hopper.gemm_ws import NUM_WARPS
from triton_dist.cores.hopper.gemm_rs_ws import gemm_rs_ws_kernel
from triton_dist.cores.hopper.grouped_gemm import GroupedGemmCore
from triton_dist.runtime.backend import backend
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.device import absent
from triton_dist.runtime.heap import peer_tensor

# gemm_rs sends a tile in boxes, a row of a box as wide as the swizzle of shared memory.
BOX_ROWS, BOX_BYTES = 32, 128
# TMA stores can fill an NVLink (450 GB/s), and while it is full, loads of all SMs stand still: measured on H100, the main loop
# behind a burst of tiles took 20 to 50 % longer. So all SMs together send no faster than SEND_GBS, or than lets a tile arrive
# when HIDDEN of the time until the next rank needs it has passed. An SM does FLOP_NS in a nanosecond, of CLOCK_GHZ cycles.
SEND_GBS, FULL_GBS, HIDDEN, FLOP_NS, CLOCK_GHZ = 300, 430, 0.45, 5300, 1.7
# How much longer than its bytes a tile takes until its flag may be set.
MARGIN = 1.3

_NARROWEST = 8              # columns of a wgmma; a warp has as many of gate and of up


def _wide_tiles(tiles: int, programs: int) -> int:
    """How many of `tiles` come before the last wave, where that can be split in half tiles and is still a wave; else all."""
    last = tiles % programs
    return tiles - last if 2 * last <= programs else tiles


def _pace(plan: Any, box_bytes: int) -> tuple[int, int]:
    """(clock cycles from box to box when all programs of a gemm_rs plan send, how many tiles of its last two steps alternate).

    The second is 0, unless a wave of tiles takes longer to send than to compute. Then it is all but a wave, with which the last
    step but one begins: half of the programs send, while the others compute tiles that stay, and miss no more than that.
    """
    config, programs = plan.config, plan.programs
    tiles = plan.pitch // config.block_m * -(-plan.n // config.block_n)         # of a chunk
    area = config.block_m * config.block_n
    burst, compute_ns = programs * area * plan.hop_dtype.itemsize, 2 * area * plan.k / FLOP_NS        # of a tile of each program
    mixed = tiles - programs if plan.group.size > 1 and MARGIN * burst / SEND_GBS > compute_ns else 0
    rate = FULL_GBS
    if mixed <= 0:
        until_needed = compute_ns * max(1.0, tiles / programs)
        rate = min(FULL_GBS, max(SEND_GBS, burst / (HIDDEN * max(until_needed, 1.0))))
    return int(box_bytes * programs / rate * CLOCK_GHZ), max(0, mixed)


@functools.cache
def _half_width(c: GemmConfig) -> GemmConfig:
    return c._replace(block_n=c.block_n // 2, num_stages=c.num_stages + 2)


@functools.cache
def _among(usual: GemmConfig, wide: GemmConfig, narrow: bool) -> list[GemmConfig]:
    """Tilings beside `usual`, which comes first: of both widths, unless only the `narrow` one has room, and of other groups."""
    widths = [] if narrow else [c for c in (wide, _half_width(wide)) if c != usual]
    return [usual, *widths, *_in_other_groups(usual)]


@functools.cache
def _deeper(c: GemmConfig) -> GemmConfig:
    return c._replace(num_stages=c.num_stages + 1)


@functools.cache
def _in_other_groups(c: GemmConfig) -> tuple[GemmConfig, GemmConfig]:
    return c._replace(group_m=max(1, c.group_m // 2)), c._replace(group_m=2 * c.group_m)


def _rows(buffer: torch.Tensor, columns: int, *block: int) -> TensorDescriptor:
    """Describes as many whole rows as `buffer` has room for: the same for calls of all numbers of rows."""
    rows = buffer.numel() // columns
    return descriptor(buffer[:rows * columns].view(rows, columns), *block)


class _Core:
    """`tiles(dtype, m)` gives the tiling for chunks of m rows; `preferred` says whether `auto` takes the core.

    `config` is the tiling without measurements, the first of `configs`, among which measuring may choose.
    `serves`, `config` and `configs` depend on what all ranks agree on. A rank whose own tensors `accepts` refuses runs on
    copies, or the portable kernel in the same call: buffers, flags and tiling are the same. `bind` makes the arguments of
    a plan's calls.
    """

    bind: type                          # (plan, has_bias) -> an object with kernel, options and args(...)
    bind_by_sms: type                   # the same for an ag_gemm whose x SMs push

    def __init__(self, tiles: Callable[[torch.dtype, int], GemmConfig], preferred: bool):
        self.tiles, self.preferred = tiles, preferred

    def serves(self, dtype: torch.dtype, row: int) -> bool:
        """Whether calls whose symmetric buffers have rows of `row` elements can use the core."""
        return dtype.itemsize == 2 and row * dtype.itemsize % 16 == 0

    accepts = staticmethod(tma_can_read)        # whether a tensor of this rank can be read and written

    def accepts_columns(self, weight: torch.Tensor) -> bool:
        """Whether a weight [n, k] can be read that has contiguous columns instead of rows."""
        return tma_can_read(weight.t())


class _Bound:
    """Arguments of a core's kernel for the calls of a plan.

    `described` gives all of them, with descriptors. `args` gives those that change from call to call, in their places, with
    tensors where there are descriptors; `varying` says which these are.
    """

    varying: tuple

    def __init__(self, plan: Any, has_bias: bool):
        self.plan, self.columns, c = plan, plan.columns, plan.config
        self.blocks = c.block_m, c.block_n, c.block_k
        self.options = dict(HAS_BIAS=has_bias, COLUMNS=self.columns, STAGES=c.num_stages, BLOCK_M=c.block_m,
                            BLOCK_N=c.block_n, BLOCK_K=c.block_k, GROUP_M=c.group_m, num_warps=c.num_warps)

    def weight(self, weight: torch.Tensor, block_n: int) -> TensorDescriptor:
        """Describes weight [n, k] in blocks of block_n rows."""
        block_k = self.blocks[2]
        return descriptor(weight.t(), block_k, block_n) if self.columns else descriptor(weight, block_n, block_k)


class _AgGemm(_Bound):
    kernel = ag_gemm_ws_kernel

    def __init__(self, plan: Any, has_bias: bool):
        super().__init__(plan, has_bias)
        bm, bn, bk = self.blocks
        self.gathered = self._gathered(bm, bk)          # in even epochs
        self.width = bn // 2 if plan.gated else bn      # columns of out in a tile
        tiles = plan.pitch // bm * -(-plan.n // self.width) * plan.group.size
        narrowest = _NARROWEST * bn // self.width * (1 if bm >= 16 * NUM_WARPS.value else NUM_WARPS.value // 4)
        splits = bn // 2 >= narrowest and not self.columns
        sms = max(1, backend().num_sms() - plan.gather.programs)
        self.wide, self.narrow = (_wide_tiles(tiles, sms), self.width // 2) if splits else (tiles, self.width)
        self.units = 2 * tiles - self.wide
        # Not only where there are some: else the number of rows would decide which of two kernels is compiled.
        self.options.update(STAGING=layout(plan.dtype, bm, self.width), NARROW=splits, GATED=plan.gated)
        self.varying = (0, 1, 2, 3, 4, 5, *[6] * has_bias, 8)

    def _gathered(self, *block: int) -> TensorDescriptor:
        p = self.plan
        return p.space.derived((p.dtype, p.k, block), lambda: _rows(p.halves[0], p.k, *block))

    def operands(self, x: torch.Tensor, gathered: TensorDescriptor, weight: torch.Tensor, out: torch.Tensor) -> tuple:
        """Descriptors of x, the gather buffer, and weight and out in wide and in narrow tiles.

        out [world * m, n] is taken as [world, m, n]. A view would give a chunk of one row a stride of n, which need not be
        aligned.
        """
        return (descriptor(x, self.blocks[0], self.blocks[2]), gathered, self.weight(weight, self.width),
                self.weight(weight, self.narrow), *self._chunks(out, out.stride(0)))

    def _chunks(self, out: torch.Tensor, row: int) -> list[TensorDescriptor]:
        p, block_m = self.plan, self.blocks[0]
        described = dict(shape=(p.group.size, p.m, p.n), strides=(p.m * row, row, 1))
        return [descriptor(out, 1, block_m, width, **described) for width in (self.width, self.narrow)]

    def resized(self, x) -> dict:
        """{position: argument of the kernel that depends on the number of rows}, of calls that allocate out."""
        p, (bm, _, bk) = self.plan, self.blocks
        wide, narrow = self._chunks(x, p.n)             # at an address that does not matter
        return {0: descriptor(x, bm, bk), 4: wide, 5: narrow, 11: p.m, 14: p.gather.pieces, 15: p.gather.piece_tiles,
                16: self.wide}

    def args(self, x, weight, bias, out, epoch) -> tuple:
        """Of one call: x [m, k], weight [n, k], bias [n] or None, out [world * m, n], the call's epoch."""
        return x, self.plan.halves[epoch & 1], weight, weight, out, out, bias, None, epoch

    def described(self, x, weight, bias, out, epoch) -> tuple:
        bias = absent(weight) if bias is None else bias
        p = self.plan
        return (*self.operands(x, self.gathered, weight, out), bias, p.space.flags, epoch, p.group.rank, p.group.size,
                p.m, p.n, p.k, p.gather.pieces, p.gather.piece_tiles, self.wide)


class _AgGemmBySms(_AgGemm):
    kernel = ag_gemm_by_sms_ws_kernel

    def __init__(self, plan: Any, has_bias: bool):
        super().__init__(plan, has_bias)
        self.options.update(MOST=plan.gather.most)
        self.varying = (0, 2, 3, 4, 5, *[6] * has_bias)

    def _gathered(self, *block: int) -> TensorDescriptor:
        p, gather = self.plan, self.plan.gather
        rows = gather.half_rows + p.group.size * p.pitch
        return descriptor(gather.data[:rows * p.k].view(rows, p.k), *block)

    def args(self, x, weight, bias, out, epoch) -> tuple:
        """Of one call: x [m, k], weight [n, k], bias [n] or None, out [world * m, n]; the epoch is counted on the device."""
        return x, None, weight, weight, out, out, bias

    def described(self, x, weight, bias, out, epoch) -> tuple:
        bias = absent(weight) if bias is None else bias
        p, gather = self.plan, self.plan.gather
        return (*self.operands(x, self.gathered, weight, out), bias, p.space.flags, gather.control, gather.half_rows,
                gather.pushers, p.group.rank, p.group.size, p.m, p.n, p.k, gather.pieces, gather.piece_tiles, self.wide)


class _GemmRs(_Bound):
    kernel = gemm_rs_ws_kernel

    def __init__(self, plan: Any, has_bias: bool):
        super().__init__(plan, has_bias)
        bm, bn, _ = self.blocks
        box = min(bm, BOX_ROWS), min(bn, BOX_BYTES // plan.hop_dtype.itemsize)
        self.buffers = plan.space.derived((plan.hop_dtype, plan.n, bm, bn), lambda: self._buffers((bm, bn), box))
        self.box_bytes = box[0] * box[1] * plan.hop_dtype.itemsize
        self.varying = (0, 1, 2, *[7] * has_bias)

    def _buffers(self, block: tuple, box: tuple) -> tuple:
        """(the own slots and the next rank's in each half, the next rank's flags), whole: in them only programs know rows."""
        p = self.plan
        halves, successor = p.space.halves(p.hop_dtype), p.group.world_ranks[(p.group.rank + 1) % p.group.size]
        return ([*[_rows(half, p.n, *block) for half in halves],
                 *[_rows(peer_tensor(half, successor), p.n, *box) for half in halves]], peer_tensor(p.space.flags, successor))

    def args(self, x, weight, bias, out) -> tuple:
        """Of one call: x [world * m, k], weight [n, k], bias [n] or None, out [m, n]."""
        return x, weight, out, None, None, None, None, bias

    def resized(self, plan, x, out=None) -> dict:
        """{position: argument of the kernel that depends on the number of rows}, which `plan` has.

        out: None where calls allocate it; then its address does not matter.
        """
        (bm, bn, bk), (gap, mixed) = self.blocks, _pace(plan, self.box_bytes)
        target = descriptor(x, bm, bn, shape=(plan.m, plan.n), strides=(plan.n, 1)) if out is None else descriptor(out, bm, bn)
        return {0: descriptor(x, bm, bk), 2: target, 13: plan.m, 16: gap, 17: mixed}

    def described(self, x, weight, bias, out) -> tuple:
        bias = absent(weight) if bias is None else bias
        p, (slots, next_flags) = self.plan, self.buffers
        described, out, m, *pace = self.resized(p, x, out).values()
        return (described, self.weight(weight, self.blocks[1]), out, *slots, bias, p.space.flags, next_flags, p.space.control,
                p.group.rank, p.group.size, m, p.n, p.k, *pace)


class AgGemmCore(_Core):
    """AG-GEMM. Rows of the gather buffer have k elements."""

    bind, bind_by_sms = _AgGemm, _AgGemmBySms

    def config(self, dtype: torch.dtype, m: int, gated: bool = False) -> GemmConfig:
        """Tiling for shards of m rows. Where `gated`, gate and up of a tile are side by side, so staging is half as wide."""
        usual = self.tiles(dtype, m)
        return _deeper(usual) if gated else usual

    def configs(self, dtype: torch.dtype, m: int, gated: bool = False) -> list[GemmConfig]:
        """The same, `config` first."""
        usual = self.config(dtype, m, gated)
        return [usual, _half_width(usual), *_in_other_groups(usual)]


class GemmRsCore(_Core):
    """GEMM-RS. Rows of the slots have n elements."""

    bind = _GemmRs

    def config(self, dtype: torch.dtype, m: int, n: int, hop_dtype: torch.dtype) -> GemmConfig:
        """Tiling for chunks of m rows and n columns: half as wide where staging is fp32, for want of room, and where a
        chunk is much less than a wave of tiles, since then a step waits for the one before it.
        """
        c = self.tiles(dtype, m)
        tiles = -(-m // c.block_m) * -(-n // c.block_n)
        if hop_dtype == torch.float32:
            return c._replace(block_n=c.block_n // 2)
        if 4 * tiles < 3 * backend().num_sms():
            return _half_width(c)
        return c

    def configs(self, dtype: torch.dtype, m: int, n: int, hop_dtype: torch.dtype) -> list[GemmConfig]:
        """The same, `config` first. Of fp32 hops only the half width has room."""
        return _among(self.config(dtype, m, n, hop_dtype), self.tiles(dtype, m), hop_dtype == torch.float32)


def cores(tiles: Callable[[torch.dtype, int], GemmConfig], preferred: bool) -> dict:
    """The registry's entries, by op."""
    return {"ag_gemm": AgGemmCore(tiles, preferred), "gemm_rs": GemmRsCore(tiles, preferred),
            "grouped_gemm": GroupedGemmCore(tiles, preferred)}


_TILES = GemmConfig(128, 256, 64, group_m=8, num_warps=8, num_stages=3)


def hopper_tiles(dtype: torch.dtype, m: int) -> GemmConfig:
    """128 x 256 x 64, three stages and 64 KB of staging fill the shared memory of an SM."""
    return _TILES

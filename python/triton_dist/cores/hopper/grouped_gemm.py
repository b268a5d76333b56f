# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The grouped GEMM of the Hopper core as a capability: what it serves, its tilings, and its prepared launch."""
import functools
from typing import Any, Callable

import torch

from triton_dist.cores.hopper.descriptors import descriptor, tma_can_read
from triton_dist.cores.hopper.gather_rows import GatherRows
from triton_dist.cores.hopper.grouped_gemm_ws import grouped_gemm_ws_kernel
from triton_dist.cores.hopper.tiles_of_experts import ENTRY
from triton_dist.runtime.backend import backend
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.device import absent

# Tiles of 64 rows up to here. Measured on H200: at 256 rows an expert both heights take equally long by random routing, and
# tiles of 64 rows lose by equal counts, since operands from L2 take the time.
FEW_ROWS = 200
# The most rows of an expert's weight, gate and up together, for which the kernel itself gathers the rows that `sources` names.
# For larger weights rows are copied first. Measured on H200: gathering takes 7 to 17 % of most products of many rows, 26 % of
# one. A copy takes the time of rows * K * 4 bytes at 4.1 TB/s, which is 317 / N of a product at 650 TF/s.
GATHERED_N = 2048
_PIECE = 16             # bytes that a thread gathers at a time
_MOST_STREAMS = 16      # on which calls keep memory


class GroupedGemmCore:
    """Rows by expert, each times the weight of its expert. `preferred`: whether `auto` takes it."""

    def __init__(self, tiles: Callable[[torch.dtype, int], GemmConfig], preferred: bool):
        self.tiles, self.preferred, self._lists = tiles, preferred, Lists()

    def configs(self, dtype: torch.dtype, rows: int, gated: bool) -> list[GemmConfig]:
        """Tilings for about `rows` rows of each expert, the usual one first.

        Where `gated`, gate and up of a tile are side by side in block_n, so staging is half as wide.
        """
        usual = self.tiles(dtype, rows)
        tall = usual._replace(num_stages=usual.num_stages + gated)
        if usual.block_m <= 64:
            return [tall]
        low = usual._replace(block_m=64, num_stages=4 + gated)
        return [low, tall] if rows <= FEW_ROWS else [tall, low]

    def refuses(self, x: torch.Tensor, weight: torch.Tensor, n: int, config: GemmConfig, gated: bool) -> str | None:
        """Why rows like those of x [rows, K], or weight [E, N, K], cannot be read, or rows of n columns written; or None."""
        if x.dtype.itemsize != 2:
            return f"the core multiplies fp16 and bf16, not {x.dtype}"
        if not tma_can_read(x) or n * x.element_size() % 16:
            return "rows of x and of the result must begin at multiples of 16 bytes"
        columns = _columns(weight)
        if not tma_can_read(weight[0].t() if columns else weight[0]):
            return "rows or columns of a weight must be contiguous and begin at multiples of 16 bytes"
        if weight.stride(0) % weight.stride(2 if columns else 1):
            return "weights of experts must be whole rows apart"
        if columns and (gated or weight.shape[2] % config.block_k):
            return f"weights with contiguous columns need K in multiples of {config.block_k}, and no activation"
        return None

    @staticmethod
    def gathers(n: int) -> bool:
        """Whether rows that `sources` names are gathered on their way to the product with weights [E, n, K], not copied first."""
        return n <= GATHERED_N

    def prepare(self, *call: Any, **options: Any) -> Callable[..., None]:
        """What launches calls like this one. For the arguments see Launch."""
        return Launch(self._lists, *call, **options)


class Lists:
    """Memory for lists of tiles. Calls on one stream share it, since they run one after the other."""

    def __init__(self) -> None:
        self._stream: Any = None                    # of the last call, and its memory
        self._memory: Any = None
        self._of: dict = {}                         # the memory of each of the last streams

    def __call__(self, words: int, like: torch.Tensor) -> torch.Tensor:
        """Returns int32 memory of at least `words` elements on the device of `like`, for a call on the current stream."""
        stream = backend().eager_stream()
        if stream is not None and stream is self._stream and self._memory.numel() >= words:
            return self._memory
        make = functools.partial(torch.empty, words, dtype=torch.int32, device=like.device)
        if stream is None:                          # a graph's own: its replays may run beside other calls
            return make()
        found = self._of.get(stream)
        if found is None or found.numel() < words:
            if len(self._of) >= _MOST_STREAMS:
                self._of.clear()
            found = self._of[stream] = backend().outside_pools(make)
        self._stream, self._memory = stream, found
        return found


class Launch:
    """Launches the core for calls with tensors like those that it was made with.

    Args:
        lists: memory for the list of tiles.
        config: the tiling.
        tensors: those of a call: x [., k], weight [E, N, k], begins, counts, row_weights or None, out [rows, n], and sources or
            None: row r by expert is row sources[r] of x. Threads gather such rows, since TMA cannot, or copy them first.
        room, options: as for the portable kernel. programs: the most that run at a time.
    """

    shortest = 64           # rows of a tile: those that a wgmma has

    def __init__(self, lists: Lists, config: GemmConfig, tensors: tuple, room: int, gated: bool, programs: int, **options: Any):
        x, weight, begins, counts, row_weights, out, sources = tensors
        (experts, n_all, k), n, c, columns = weight.shape, out.shape[1], config, _columns(weight)
        self._lists, self._gather = lists, None
        gathers = sources is not None and GroupedGemmCore.gathers(n_all)
        if sources is not None and not gathers:
            self._gather = GatherRows(x, sources, begins, experts)
            x, sources = self._gather.room(), None
        each = weight[0].t() if columns else weight[0]
        pitch = weight.stride(0) // each.stride(0) if experts > 1 else each.shape[0]
        flat = weight.as_strided(((experts - 1) * pitch + each.shape[0], each.shape[1]), each.stride())
        width = c.block_n // (1 + gated)
        entries = experts * options["PARTS"]
        most = min(out.shape[0], out.shape[0] // c.block_m + entries) * -(-n // width)
        programs, short = min(programs, most), c.block_m > self.shortest
        self._words = (most + 2 * programs) * ENTRY.value
        block = (c.block_k, c.block_n) if columns else (width, c.block_k)
        args = (descriptor(x, c.block_m, c.block_k), descriptor(x, c.block_m // (1 + short), c.block_k),
                descriptor(flat, *block), descriptor(out, c.block_m, width), x,
                absent(begins) if sources is None else sources, out, begins, counts,
                absent(out) if row_weights is None else row_weights, lists(self._words, out), n, k, entries, room, pitch,
                x.shape[0], x.stride(0) * x.itemsize // _PIECE)
        options = dict(options, GATED=gated, COLUMNS=columns, STAGES=c.num_stages, BLOCK_M=c.block_m, BLOCK_N=c.block_n,
                       BLOCK_K=c.block_k, GROUP_M=c.group_m, SHORT=short, GATHER=gathers, EVEN_K=k % c.block_k == 0,
                       num_warps=c.num_warps)
        varying = (0, 1, 2, 3, 4, *[5] * gathers, 6, 7, 8, *[9] * (row_weights is not None), 10)
        self._launch = backend().prepare(grouped_gemm_ws_kernel, (programs,), args, options, varying)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, begins: torch.Tensor, counts: torch.Tensor,
                 row_weights: torch.Tensor | None, out: torch.Tensor, sources: torch.Tensor | None) -> None:
        if self._gather is not None:
            x = self._gather(x, sources, begins)
        self._launch(x, x, weight, out, x, sources, out, begins, counts, row_weights, self._lists(self._words, out))


def _columns(weight: torch.Tensor) -> bool:
    """Whether columns of the experts' weights are contiguous instead of rows."""
    return weight.stride(2) != 1

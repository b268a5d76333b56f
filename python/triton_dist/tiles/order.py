# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The order of tiles, as the kernels' own device functions give it: they run in the emulator."""
from dataclasses import dataclass

import torch
import triton.language as tl

from triton_dist.ops.device.gemm import tile_of
from triton_dist.ops.device.order import gathered_chunk, ring_chunk
from triton_dist.runtime.jit import jit

OPS = ("gemm", "ag_gemm", "gemm_rs")


@dataclass(frozen=True)
class Tile:
    """The `turn`-th tile of a rank: chunk of rows, and row and column of the tile inside it."""
    turn: int
    chunk: int
    row: int
    column: int


@jit
def order_kernel(out, tiles_m, tiles_n, index, world, OP: tl.constexpr, GROUP_M: tl.constexpr):
    """out int32 [turns, 3]: chunk, row and column of each turn."""
    tiles = tiles_m * tiles_n
    for t in range(tiles * world):
        step = t // tiles
        if OP == "gemm_rs":
            chunk = ring_chunk(index, step, world)
        elif OP == "ag_gemm":
            chunk = gathered_chunk(index, step, world)
        else:
            chunk = step
        row, column = tile_of(t % tiles, tiles_m, tiles_n, GROUP_M)
        tl.store(out + 3 * t, chunk)
        tl.store(out + 3 * t + 1, row)
        tl.store(out + 3 * t + 2, column)


def order(tiles_m: int, tiles_n: int, group_m: int, op: str = "gemm", world: int = 1) -> list[list[Tile]]:
    """For each rank of a world, its tiles in the order in which programs take them.

    Args:
        tiles_m, tiles_n: tiles of a chunk: of all rows of a gemm, of the rows of one rank of the others.
        group_m: rows of tiles that are taken together; 1: row by row.
        op: "gemm", "ag_gemm" or "gemm_rs".
    """
    from triton_dist.backends.emulator import run_ranks

    def one() -> list:
        found = []
        for index in range(world):
            out = torch.zeros(tiles_m * tiles_n * world, 3, dtype=torch.int32)
            order_kernel[(1,)](out, tiles_m, tiles_n, index, world, OP=op, GROUP_M=group_m)
            found.append([Tile(turn, *row) for turn, row in enumerate(out.tolist())])
        return found
    return run_ranks(one, 1, mode="eager")[0]


@dataclass(frozen=True)
class Wave:
    """What the programs of one wave read at once: so many different blocks of rows of A, and of columns of B."""
    rows: int
    columns: int


def first_wave(tiles: list[Tile], programs: int) -> Wave:
    """Of the tiles that all programs take first."""
    wave = tiles[:programs]
    return Wave(len({(tile.chunk, tile.row) for tile in wave}), len({tile.column for tile in wave}))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist tiles`: draws the order in which programs take tiles, and says what the first wave reads."""
import argparse
from pathlib import Path
from typing import Sequence

from triton_dist.cli.status import check_file, status_of
from triton_dist.runtime.context import MAX_WORLD
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.tiles.order import OPS, Tile, first_wave, order

_MOST = 1 << 14


def main(words: Sequence[str]) -> int:
    """Entry point: 0; 2 for words that make no sense."""
    args = _parser().parse_args(words)
    return status_of("tiles", lambda: _drawn(args))


def _drawn(args: argparse.Namespace) -> int:
    (tiles_m, tiles_n), world = args.grid, args.ranks if args.op != "gemm" else 1
    for name, size in (("--grid", tiles_m), ("--grid", tiles_n), ("--group_m", args.group_m), ("--programs", args.programs),
                       ("--ranks", world)):
        if size < 1:
            raise InvalidArgument(f"{name}: expected positive sizes, found {size}")
    if world > MAX_WORLD:
        raise InvalidArgument(f"--ranks: expected at most {MAX_WORLD}, found {world}")
    count = tiles_m * tiles_n * world
    if count > _MOST:
        raise InvalidArgument(f"{count} tiles are too many to draw; at most {_MOST}")
    if args.out is not None:
        check_file(args.out)
    ranks = order(tiles_m, tiles_n, args.group_m, args.op, world)
    title = f"{args.op}, {tiles_m} x {tiles_n} tiles{' a rank' if world > 1 else ''}, groups of {args.group_m} rows"
    print(f"{title}\n{_said(ranks[0], tiles_m, tiles_n, args, world)}")
    if args.out is None:
        for rank, tiles in enumerate(ranks):
            if world > 1:
                print(f"rank {rank}")
            print(_numbers(tiles, tiles_m, tiles_n, world))
        return 0
    from triton_dist.tiles.picture import draw
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(draw(ranks, tiles_m, tiles_n, args.programs, title, world))
    print(args.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="triton-dist tiles", description="Shows the order in which the programs of a kernel take the tiles of a product: "
        "grouped, so that operands stay in L2, and rotated by rank, so that a rank begins with the rows that it has.")
    parser.add_argument("--grid", type=int, nargs=2, metavar=("M", "N"), default=(8, 8),
                        help="tiles of the product, of one rank's rows for ag_gemm and gemm_rs (default 8 8)")
    parser.add_argument("--group_m", "--group-m", type=int, default=4, help="rows of tiles of a group; 1: row by row (default 4)")
    parser.add_argument("--op", choices=OPS, default="gemm", help="whose order (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="of ag_gemm and gemm_rs (default %(default)s)")
    parser.add_argument("--programs", type=int, default=16, help="programs that run at once (default %(default)s)")
    parser.add_argument("--out", type=Path, help="file for a picture (SVG); without it numbers are printed")
    return parser


def _said(tiles: list[Tile], tiles_m: int, tiles_n: int, args: argparse.Namespace, world: int) -> str:
    programs = min(args.programs, len(tiles))
    grouped = first_wave(tiles, programs)
    rows = first_wave([Tile(t, t // (tiles_m * tiles_n), t % (tiles_m * tiles_n) // tiles_n, t % tiles_n)
                       for t in range(tiles_m * tiles_n * world)], programs)
    return (f"the first {programs} tiles read {grouped.rows} blocks of A and {grouped.columns} of B, "
            f"{grouped.rows + grouped.columns} in all; row by row they would read {rows.rows} and {rows.columns}, "
            f"{rows.rows + rows.columns} in all")


def _numbers(tiles: list[Tile], tiles_m: int, tiles_n: int, world: int) -> str:
    turn = {(tile.chunk, tile.row, tile.column): tile.turn for tile in tiles}
    width = len(str(len(tiles) - 1))
    lines = []
    for chunk in range(world):
        lines += [" ".join(f"{turn[chunk, row, column]:{width}}" for column in range(tiles_n)) for row in range(tiles_m)]
        lines += [""] * (chunk + 1 < world)
    return "\n".join(lines)

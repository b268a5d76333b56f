# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The order of tiles as a picture (SVG): a panel for each rank, a cell for each tile, darker the later; the first wave framed."""
from html import escape

from triton_dist.tiles.order import Tile

_FIRST, _LAST = (221, 235, 247), (8, 48, 107)
_HEAD, _LEFT, _GAP = 58, 46, 26
_PANEL = 420                  # pixels that a panel may be wide, at most


def draw(ranks: list[list[Tile]], tiles_m: int, tiles_n: int, programs: int, title: str, world: int) -> str:
    """The picture's text."""
    size = max(3, min(30, _PANEL // tiles_n, 560 // (tiles_m * world)))
    width, height = tiles_n * size, tiles_m * world * size + (world - 1) * 4
    parts = []
    for rank, tiles in enumerate(ranks):
        x = _LEFT + rank * (width + _GAP + _LEFT)
        if world > 1:
            parts.append(_text(x, _HEAD - 8, f"rank {rank}", 12, "bold"))
        parts += [_cell(tile, x, size, tiles_m, tiles, programs) for tile in reversed(tiles)]       # the first wave on top
        for chunk in range(world) if world > 1 else ():
            middle = _HEAD + chunk * (tiles_m * size + 4) + tiles_m * size / 2
            first = min(tile.turn for tile in tiles if tile.chunk == chunk) // (len(tiles) // world) + 1
            parts.append(_text(x - 6, middle, f"rows of {chunk}", 9, anchor="end") + _text(x - 6, middle + 11, f"step {first}", 9,
                                                                                         anchor="end"))
    whole = _LEFT + len(ranks) * (width + _GAP + _LEFT), _HEAD + height + 30
    foot = f"light: first, dark: last. Thick lines: the first {programs} tiles, which run at once"
    size_of = f'width="{whole[0]}" height="{whole[1]}" viewBox="0 0 {whole[0]} {whole[1]}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size_of} font-family="sans-serif">'
            f'<rect width="100%" height="100%" fill="white"/>{_text(8, 22, title, 14, "bold")}'
            f'{"".join(parts)}{_text(_LEFT, _HEAD + height + 20, foot, 11)}</svg>\n')


def _cell(tile: Tile, left: int, size: int, tiles_m: int, tiles: list[Tile], programs: int) -> str:
    x = left + tile.column * size
    y = _HEAD + tile.chunk * (tiles_m * size + 4) + tile.row * size
    part = tile.turn / max(1, len(tiles) - 1)
    colour = "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(_FIRST, _LAST))
    stroke = ('stroke="#d35400" stroke-width="2"' if tile.turn < programs else 'stroke="white" stroke-width="0.5"')
    number = _text(x + size / 2, y + size / 2 + 3, str(tile.turn), 8 if size < 24 else 10, anchor="middle",
                   colour="white" if part > 0.45 else "#1b2631") if size >= 18 else ""
    return f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{colour}" {stroke}/>{number}'


def _text(x: float, y: float, words: str, size: int, weight: str = "normal", anchor: str = "start",
          colour: str = "#2c3e50") -> str:
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}">'
            f"{escape(words)}</text>")

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist tiles`: each tile once, in groups, rotated by rank; and it is the order that the ops' kernels have."""
import re

import pytest
from hypothesis import given, settings, strategies as st

from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.engine.tracer import Tracer
from triton_dist.tiles import command
from triton_dist.tiles.order import Tile, Wave, first_wave, order
from triton_dist.trace.calls import Call

sizes = st.integers(1, 6)


@settings(max_examples=15)
@given(tiles_m=sizes, tiles_n=sizes, group_m=sizes, world=st.integers(1, 3), op=st.sampled_from(["ag_gemm", "gemm_rs"]))
def test_each_rank_takes_each_tile_once_a_chunk_at_a_time(tiles_m, tiles_n, group_m, world, op):
    for rank, tiles in enumerate(order(tiles_m, tiles_n, group_m, op, world)):
        assert len(tiles) == len({(tile.chunk, tile.row, tile.column) for tile in tiles}) == tiles_m * tiles_n * world
        chunks = [tiles[step * tiles_m * tiles_n].chunk for step in range(world)]
        assert sorted(chunks) == list(range(world)) and chunks[0 if op == "ag_gemm" else -1] == rank
        for step, chunk in enumerate(chunks):
            part = tiles[step * tiles_m * tiles_n:][:tiles_m * tiles_n]
            assert all(tile.chunk == chunk for tile in part)
            groups = [tile.row // group_m for tile in part]
            assert groups == sorted(groups), "a group of rows is done before the next"


def test_ranks_never_want_one_chunk_at_once():
    for op in ("ag_gemm", "gemm_rs"):
        ranks = order(2, 2, 1, op, 4)
        for turn in range(16):
            assert len({tiles[turn].chunk for tiles in ranks}) == 4


def test_groups_read_less():
    grouped, rows = order(8, 16, 4)[0], order(8, 16, 1)[0]
    assert first_wave(grouped, 16) == Wave(4, 4) and first_wave(rows, 16) == Wave(1, 16)
    assert [(tile.row, tile.column) for tile in rows] == [(t // 16, t % 16) for t in range(128)]


@pytest.mark.parametrize("op", ["ag_gemm", "gemm_rs"])
def test_it_is_the_order_of_the_kernels(op):
    """A program's recorded laps have the chunks of its turns."""
    tracer = Tracer()
    run_ranks(lambda: Call(op, 192, 192, 96, {"method": "portable"}).made()(), 3, mode="eager", observer=tracer)
    spans = [span for span in tracer.spans if span.event == "mma"]
    programs = 1 + max(span.program for span in spans)
    turns = len(spans) // 3
    for rank in range(3):
        mine = {span.program + span.lap * programs: span.number for span in spans if span.rank == rank}
        assert sorted(mine) == list(range(turns))
        drawn = order(1, turns // 3, 1, op, 3)[rank]
        assert [mine[turn] for turn in range(turns)] == [tile.chunk for tile in drawn]


def test_the_command_draws_and_prints(tmp_path, capsys):
    assert command.main(["--grid", "4", "2", "--group_m", "2", "--programs", "4"]) == 0
    said = capsys.readouterr().out
    assert "read 2 blocks of A and 2 of B, 4 in all; row by row they would read 2 and 2" in said
    assert [list(map(int, line.split())) for line in said.splitlines()[2:]] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    out = tmp_path / "new" / "tiles.svg"
    assert command.main(["--op", "gemm_rs", "--ranks", "2", "--grid", "2", "3", "--programs", "2", "--out", str(out)]) == 0
    drawn = out.read_text()
    assert drawn.count("<rect") == 1 + 2 * 2 * 2 * 3 and drawn.count('stroke="#d35400"') == 2 * 2
    assert re.findall(r">(rank \d|rows of \d)<", drawn) == [f"{word}" for rank in (0, 1)
                                                            for word in (f"rank {rank}", "rows of 0", "rows of 1")]


@pytest.mark.parametrize("words, said", [(["--grid", "0", "4"], "expected positive sizes"),
                                         (["--op", "ag_gemm", "--ranks", "65"], "--ranks: expected at most 64, found 65"),
                                         (["--out", "/proc/nowhere/t.svg"], "cannot be written"),
                                         (["--grid", "400", "400"], "160000 tiles are too many")])
def test_what_cannot_be_drawn_is_told(words, said, capsys):
    assert command.main(words) == 2 and said in capsys.readouterr().err


def test_a_wave_counts_what_is_different():
    assert first_wave([Tile(0, 0, 0, 0), Tile(1, 0, 0, 1), Tile(2, 1, 0, 0), Tile(3, 1, 5, 9)], 3) == Wave(2, 2)

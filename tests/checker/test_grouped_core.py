# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The grouped GEMM of the Hopper core under the checker: clean, and what keeps its tall and short tiles right is needed."""
from unittest import mock

import pytest
from checking import MODES, SCHEDULES
from mutants import edited, load, source_of
from test_grouped_gemm import BF16, expected, given

import triton_dist
from triton_dist.backends.emulator import backend as emulator
from triton_dist.checker import check_kernel
from triton_dist.cores.hopper import grouped_gemm as core
from triton_dist.ops import grouped_gemm
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.testing import assert_matches, poisoned

HOPPER = "triton_dist.cores.hopper"
FILES = ("gemm_ws", "tiles_of_experts", "grouped_gemm_ws")            # a file imports from those before it
COUNTS = [130, 5, 0, 128 * 3 + 7, 64, 200]


@pytest.fixture(autouse=True)
def tall_tiles(monkeypatch):
    """Tiles of 128 rows, as on a GPU, and short ones."""
    monkeypatch.setattr(emulator, "_core_tiles", lambda dtype, m: GemmConfig(128, 64, 16, group_m=2, num_warps=8, num_stages=3))
    monkeypatch.setattr(core, "FEW_ROWS", 0)


IN_ORDER = [(80, None, "by expert", COUNTS), (16, "silu_mul", "by expert", COUNTS)]
GATHERED = [(72, None, "gathered", [3, 130, 40])]


def calls(ways):
    """K above and below the number of stages; rows side by side, so that a tile's block holds rows of the next expert."""
    for k, act, how, counts in ways:
        x, weight, told, rows = given(k, 96, BF16, how, act, counts, align=1)
        room = len(told.get("sources", x))
        out = grouped_gemm(x, weight, **told, act=act, out=poisoned(room, 96, dtype=BF16), method="ws")
        triton_dist.synchronize()
        for e, wanted in expected(x, weight, rows, act).items():
            assert_matches(out[rows[e][1]], wanted, k=k, roundings=2)


def broken(name, edits, folder):
    """The kernel with `edits` made in the file `name`."""
    modules = {}
    for file in FILES[FILES.index(name):]:
        over = [(f"from {HOPPER}.{other} import", f"from {module.__name__} import") for other, module in modules.items()]
        modules[file] = load(file, edited(source_of(f"{HOPPER}.{file}"), edits if file == name else over), folder)
    return modules["grouped_gemm_ws"].grouped_gemm_ws_kernel


def check(schedules, ways):
    return check_kernel(lambda: calls(ways), 1, schedules, modes=MODES, num_sms=3)


OF_GATHERED = {
    "wgmma reads what threads have written without a proxy fence": ("grouped_gemm_ws", [
        ("    def see_copies(self):\n        fence_async_shared()\n", "    def see_copies(self):\n        pass\n")]),
    "copies do not arrive": ("grouped_gemm_ws", [("        copies_arrive(bar, increment_count=False)\n", "")]),
    "copies arrive before they are made": ("grouped_gemm_ws", [
        ("        copies_arrive(bar, increment_count=False)\n", ""),
        ("        if self.EVEN_K:\n", "        copies_arrive(bar, increment_count=False)\n        if self.EVEN_K:\n")]),
    "the barrier waits for one thread": ("gemm_ws", [("count=1 + 32 * GATHERING * GATHER", "count=2 if GATHER else 1")]),
    "a gathering loader announces rows by TMA": ("gemm_ws", [("BLOCK_N if s.GATHER else BLOCK_M + BLOCK_N",
                                                              "BLOCK_M + BLOCK_N")]),
    "rows beyond the tile are gathered from anywhere": ("grouped_gemm_ws", [
        ("        row = gl.maximum(gl.minimum(row, self.rows_x - 1), 0).to(gl.int64)\n", "        row = row.to(gl.int64)\n"),
        ("gl.minimum(gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, spread)), tile.rows - 1)",
         "gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, spread))")]),
    "columns beyond K are gathered": ("grouped_gemm_ws", [
        (", mask=(cols < self.k // _PIECE * _PIECE)[None, :])", ", mask=(cols >= 0)[None, :])")]),
}
MUTANTS = {
    **OF_GATHERED,
    "a short tile expects the bytes of a tall one": ("gemm_ws", [("else BLOCK_M + BLOCK_N", "else s.BLOCK_M + BLOCK_N")]),
    "mma leaves short tiles out": ("gemm_ws", [("            while hooks.is_short(t):\n                it = _multiply(hooks, s, "
                                                "hooks.tile(t), it, lap, s.BLOCK_M // 2, s.BLOCK_N)\n                lap += 1\n",
                                                "            while hooks.is_short(t):\n")]),
    "a short tile is stored by whole blocks": ("grouped_gemm_ws", [("        if tile.rows == self.BLOCK_M:\n            COLS",
                                                                    "        if tile.rows >= 64:\n            COLS")]),
    "rows of the next expert are stored": ("grouped_gemm_ws", [("mask=(line < tile.rows)[:, None] &",
                                                                "mask=(line < self.BLOCK_M)[:, None] &")]),
    "short tiles forget their own column": ("tiles_of_experts", [("(talls - complete) * (n + 1)", "(talls - complete) * n")]),
    "tall tiles forget the short ones before": ("tiles_of_experts", [
        ("_before(short_ends, e, expert[:, None]) + passed)", "_before(short_ends, e, expert[:, None]) * 0 + passed)")]),
    "tall tiles of all groups count short ones": ("tiles_of_experts", [
        ("gl.where(m // GROUP_M == (talls - 1) // GROUP_M, shorts * n, 0)", "shorts * n")]),
    "a short tile counts the groups before as the last one": ("tiles_of_experts", [
        ("complete * tiles_n + (talls - complete)", "(talls)")]),
}


@SCHEDULES
def test_it_is_clean(schedules):
    report = check(schedules, IN_ORDER + GATHERED)
    assert report.clean, str(report)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name, tmp_path):
    with mock.patch.object(core, "grouped_gemm_ws_kernel", broken(*MUTANTS[name], tmp_path)):
        try:
            report = check(4, GATHERED if name in OF_GATHERED else IN_ORDER)
        except AssertionError:                      # wrong values
            return
    assert not report.clean, f"survived: {name}"


def test_the_kernel_that_is_loaded_again_is_right(tmp_path):
    """So what is found in a mutant is its edit."""
    kernel = broken("gemm_ws", [("    lap = 0\n    t = gl", "    lap = 0\n\n    t = gl")], tmp_path)
    with mock.patch.object(core, "grouped_gemm_ws_kernel", kernel):
        report = check(2, IN_ORDER)
    assert report.clean, str(report)

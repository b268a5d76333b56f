# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every op is clean, and checking costs little."""
import gc
import time
from types import SimpleNamespace

import pytest
from chunks import Chunks2d, Offsets2d
from normed_products import GARN
from quant_scenarios import QARN
from scenarios import AG, AR, ARN, F32, GAR, RS, Moves, V, back_to_back, overtaking, side_stream, two_groups

from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.checker.chiplets import ChipletDetector
from triton_dist.checker.schedules import schedules
from triton_dist.ops.op import sent


class CoreAG(AG):
    method = "ws"


class CoreRS(RS):
    method = "ws"


class Scatter(RS):
    method = "scatter"


CALLS = {
    "ag_gemm": [AG(70, 40, 96, bias=True), AG(9, 41, 50), AG(20, lambda r: 24 * (r == 1), 40), AG(40, 72, 64, dtype=F32)],
    "ag_gemm by SMs": [AG(70, 40, 96, bias=True, comm_sms=3), AG(9, 41, 50, comm_sms=1), AG(40, 72, 64, dtype=F32, comm_sms=2),
                       AG(20, lambda r: 24 * (r == 1), 40, comm_sms=16)],
    "gemm_rs": [RS(70, 40, 96, bias=True), RS(9, 41, 50), RS(20, 24, lambda r: 40 * (r == 1)), RS(40, 72, 64, hop_dtype=F32)],
    "gemm_rs, scatter": [Scatter(70, 40, 96, bias=True), Scatter(9, 41, 50), Scatter(20, 24, lambda r: 40 * (r == 1)),
                         Scatter(40, 72, 64, hop_dtype=F32)],
    "ag_gemm, silu_mul": [AG(70, 40, 96, bias=True, act="silu_mul"), AG(9, 42, 50, comm_sms=2, act="silu_mul"), AG(9, 42, 50)],
    "ag_gemm, core": [CoreAG(136, 40, 64), CoreAG(16, 72, 160, bias=True), CoreAG(70, 48, 96, act="silu_mul")],
    "ag_gemm by SMs, core": [CoreAG(136, 40, 64, comm_sms=3), CoreAG(16, 72, 160, bias=True, comm_sms=1), CoreAG(70, 40, 96)],
    "gemm_rs, core": [CoreRS(72, 40, 128), CoreRS(136, 40, 32, bias=True), CoreRS(20, 72, 160, hop_dtype=F32)],
    "all_reduce": [AR(n, method, in_place=in_place) for method in ("one_shot", "two_shot", "push") for n in (515, 40)
                   for in_place in (False, True)],
    **{op: [Moves(op, n, method, in_place=in_place) for method in ("one_shot", "push") for n in (259, 40)
            for in_place in (False, True)] for op in ("all_gather", "reduce_scatter", "all_to_all_single")},
    "gemm_ar": [GAR(9, 70, 40, bias=True), GAR(1, 64, 300, residual="in place"), GAR(5, 24, lambda rank: 136 * (rank == 1)),
                GAR(4, 72, 24, dtype=F32, residual="apart")],
    "gemm_ar_rmsnorm": [GARN(9, 70, 40, bias=True), GARN(1, 530, 40, residual="in place"), GARN(5, 24, lambda rank: 9 * rank),
                        GARN(4, 72, 24, dtype=F32, residual="apart")],
    "all_reduce_rmsnorm": [ARN(m, n, method, bias=True, residual=residual) for method in ("one_shot", "two_shot")
                           for m, n, residual in ((5, 70, "in place"), (2, 600, "apart"))] + [
                               ARN(5, 40, "one_shot", residual="in place", over_x="norm"), ARN(5, 40, "two_shot", over_x="sum")],
    "all_reduce_rmsnorm_quant": [QARN(5, 200, "one_shot", "fp8_1x128", bias=True, residual="in place"),
                                 QARN(2, 600, "two_shot", "fp8_row", residual="apart"), QARN(3, 40, "two_shot", "fp8_tensor")],
    "all_to_all_vdev": [V(20, 70), V(16, 33, capacity=13), V(3, 24, splits=lambda rank, seed, world: [0] * world), V(64, 300)],
    "all_to_all_vdev_2d": [Chunks2d(20, 70), Chunks2d(16, 33, 3, align=4, capacity=13), Offsets2d(20, 40),
                           Offsets2d(16, 24, capacity=5)],
    "gemm_ar, other methods": [GAR(24, 40, 64, method, bias=True, residual="in place") for method in ("ring", "unfused")],
}


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("name", CALLS)
def test_an_op_is_clean(name, world):
    """On one schedule; the next test has another one of all ops but the cores."""
    report = check_kernel(lambda: back_to_back(CALLS[name]), world, 1, modes=["random"])
    assert report.clean and report.accesses, str(report)


@pytest.mark.parametrize("name", [name for name in CALLS if "core" not in name])
def test_an_op_is_clean_where_barriers_leave_stores_under_way(name):
    report = check_kernel(lambda: back_to_back(CALLS[name]), 3, 1, modes=["late"], detector=ChipletDetector)
    assert report.clean and report.accesses, str(report)


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("name", CALLS)
def test_an_op_is_clean_on_a_hundred_schedules(name, world):
    report = check_kernel(lambda: back_to_back(CALLS[name]), world, 100)
    assert report.clean and report.schedules == 100, str(report)


@pytest.mark.parametrize("script", [
    lambda: overtaking([AG(20, 24, 40), RS(20, 24, 40)], slow=1), lambda: side_stream([AG(20, 24, 40), RS(20, 24, 40)]),
    lambda: two_groups([AG(20, 24, 40), RS(20, 24, 40), AR(64, "two_shot"), AR(64, "push"), GAR(3, 40, 40)])],
    ids=["overtaking", "side stream", "two groups"])
def test_ops_together_are_clean(script):
    report = check_kernel(script, 4, 1, modes=["late"])
    assert report.clean, str(report)


def test_the_ops_move_what_their_formula_says():
    """ag_gemm: its shard and a flag, or one of each SM that pushes, to every peer. gemm_rs: W - 1 chunks, and a flag for
    each tile, to the next rank; by "scatter" one chunk, and these flags, to each peer."""
    world, m, n, k, calls, runs = 4, 64, 128, 64, 2, 2
    report = check_kernel(lambda: back_to_back([AG(m, n, k)] * calls), world, runs)
    assert report.links == {(a, b): runs * calls * (2 * m * k + 4) for a in range(world) for b in range(world) if a != b}
    assert report.formula == {link: nbytes - runs * calls * 4 for link, nbytes in report.links.items()}
    assert f"{calls * (2 * m * k + 4)} bytes on 0->1, " in report.traffic() and f": {calls * 2 * m * k})" in report.traffic()
    report = check_kernel(lambda: back_to_back([AG(m, n, k, comm_sms=3)] * calls), world, runs)
    assert report.links == {link: nbytes + runs * calls * 3 * 4 for link, nbytes in report.formula.items()} and report.clean
    assert report.formula == {(a, b): runs * calls * 2 * m * k for a in range(world) for b in range(world) if a != b}
    report = check_kernel(lambda: back_to_back([RS(m, n, k)] * calls), world, runs)
    tiles = n // 64
    assert report.links == {(r, (r + 1) % world): runs * calls * (world - 1) * (2 * m * n + 4 * tiles) for r in range(world)}
    assert report.formula == {link: runs * calls * (world - 1) * 2 * m * n for link in report.links}
    report = check_kernel(lambda: back_to_back([Scatter(m, n, k)] * calls), world, runs)
    assert report.links == {(a, b): runs * calls * (2 * m * n + 4 * tiles) for a in range(world) for b in range(world) if a != b}
    assert report.formula == {link: runs * calls * 2 * m * n for link in report.links}


def test_collectives_move_what_their_formula_says():
    """Packets carry as many bytes of flags as of data, self-flagged stores none; push has a flag for each rank, hop and block."""
    world, n = 4, 1024
    for op, method, nbytes, with_flags in (
            ("all_reduce", "one_shot", 2 * n, 2 * n), ("all_reduce", "two_shot", n, n),
            ("all_reduce", "push", n, n + 2 * 4),
            ("all_gather", "one_shot", 2 * n, 4 * n), ("all_gather", "push", 2 * n, 2 * n + 4),
            ("reduce_scatter", "one_shot", 2 * n, 2 * n), ("all_to_all_single", "push", 2 * n, 2 * n + 4)):
        call = [AR(n, method) if op == "all_reduce" else Moves(op, n, method)]
        report = check_kernel(lambda: back_to_back(call), world, 1)
        links = {(a, b) for a in range(world) for b in range(world) if a != b}
        assert report.clean and report.links == dict.fromkeys(links, with_flags), (op, method)
        assert report.formula == dict.fromkeys(links, nbytes), (op, method)


@pytest.mark.parametrize("m, two_shot", [(8, False), (48, True)])
def test_gemm_ar_moves_what_its_formula_says(m, two_shot):
    """As packets of all_reduce do, however the tiles are cut; both numbers of hops are of sizes that auto takes."""
    world, n = 4, 1024
    report = check_kernel(lambda: back_to_back([GAR(m, n, 16)]), world, 1)
    links = {(a, b) for a in range(world) for b in range(world) if a != b}
    nbytes = m * n if two_shot else 2 * m * n
    assert report.clean and report.links == dict.fromkeys(links, 2 * nbytes)
    assert report.formula == dict.fromkeys(links, nbytes)


def test_gemm_ar_rmsnorm_moves_what_its_formula_says():
    """As gemm_ar in one hop. Sums of squares stay at home."""
    world, m, n = 4, 4, 1024
    report = check_kernel(lambda: back_to_back([GARN(m, n, 16)]), world, 1)
    links = {(a, b) for a in range(world) for b in range(world) if a != b}
    assert report.clean and report.links == {link: 2 * nbytes for link, nbytes in report.formula.items()}
    assert {*report.formula} == links and set(report.formula.values()) <= {2 * m * n * split for split in (1, 2, 4)}


@pytest.mark.parametrize("method", ["one_shot", "two_shot"])
def test_all_reduce_rmsnorm_moves_what_its_formula_says(method):
    """In two hops of 6 rows on 4 ranks, ranks 0 and 1 sum two rows and the others one."""
    world, m, n = 4, 6, 256
    report = check_kernel(lambda: back_to_back([ARN(m, n, method)]), world, 1)
    own = (2, 2, 1, 1)
    rows = {(a, b): own[a] + own[b] if method == "two_shot" else m for a in range(world) for b in range(world) if a != b}
    assert report.clean and report.links == report.formula == {link: 2 * n * count for link, count in rows.items()}


@pytest.mark.full
@pytest.mark.parametrize("op", [AG(64, 64, 256), RS(64, 256, 64), CoreAG(64, 64, 256), CoreRS(64, 256, 64)],
                         ids=["ag_gemm", "gemm_rs", "ag_gemm, core", "gemm_rs, core"])
def test_checking_costs_little_more_than_running(op):
    """CPU seconds with and without a checker: up to 2.18 times as many on 2 cores; 4 ranks, global 256 x 256 x 256.

    Of each schedule both are taken in turn, four times, and the least counts: what else the machine does at a time makes all
    that runs then slower, by its caches too, and would be in one of two long measurements only.
    """
    def script():
        return back_to_back([op] * 3)

    chosen = [*schedules(10, 0, 4, 8)]
    alone, checked = {}, {}
    for _ in range(4):
        for schedule in chosen:
            gc.collect()                    # neither pays for what the other has left
            start = time.process_time()
            run_ranks(script, 4, mode=schedule.mode, seed=schedule.seed, num_sms=8)
            alone[schedule] = min(time.process_time() - start, alone.get(schedule, 1e9))
            gc.collect()
            start = time.process_time()
            report = check_kernel(script, replay=schedule.token)
            checked[schedule] = min(time.process_time() - start, checked.get(schedule, 1e9))
            assert report.clean and report.schedules == 1 and report.accesses
    plain, under_check = sum(alone.values()), sum(checked.values())
    print(f"plain {plain:.2f} s, checked {under_check:.2f} s, {under_check / plain:.2f} times")
    assert under_check <= 2.4 * plain


@pytest.mark.full
def test_twenty_schedules_take_less_than_half_a_minute():
    report = check_kernel(lambda: back_to_back([AG(64, 64, 256)] * 3), 4, 20)
    assert report.clean and report.seconds < 30, str(report)


def test_an_op_without_a_formula_counts_nothing():
    group = SimpleNamespace(size=2, rank=0, world_ranks=(0, 1))
    assert sent(SimpleNamespace(op="somebody's own", m=4), group) == {}
    assert sent("no call of an op", group) == {}

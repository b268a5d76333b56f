# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The SHMEM table: it has every published name, and its rows are consistent."""
import inspect
import itertools

import pytest

from triton_dist.backends.emulator.rebuild import primitives
from triton_dist.backends.emulator.twins import shmem as _shmem  # noqa: F401 - registers the twins
from triton_dist.language._call import SELECT
from triton_dist.language.abi import ROWS
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.language.shmem_abi import FUNCTIONS, LIBRARY, PARAMETERS

TABLE = [row for row in ROWS.values() if row.library == LIBRARY]


def spelled(*patterns: str) -> set:
    """"a{,_b}" stands for a and a_b."""
    names = set()
    for pattern in patterns:
        parts = [part.split("}") for part in ("}" + pattern).split("{")]
        choices = [[tail] if i == 0 else [word + tail for word in head.split(",")] for i, (head, tail) in enumerate(parts)]
        names |= {"".join(words) for words in itertools.product(*choices)}
    return names


PUBLISHED = spelled(
    "set_rocshmem_ctx", "my_pe", "n_pes", "team_my_pe", "team_n_pes", "team_translate_pe", "remote_ptr", "remote_mc_ptr",
    "barrier_all{,_vec,_block,_warp,_wave,_wg}", "barrier{,_block,_warp}", "sync_all{,_block,_warp}", "team_sync{_block,_warp}",
    "quiet", "quiet_pe", "fence", "getmem{,_nbi}{,_block,_warp,_wave,_wg}", "putmem{,_nbi}{,_block,_warp,_wave,_wg}", "int_p",
    "putmem_signal{,_nbi}{,_block,_warp,_wave,_wg}", "ulong_put_signal", "signal_op", "signal_wait_until",
    "uint64_wait_until_equals", "broadcast{,mem}{,_warp,_block}", "fcollect{,mem}{,_warp,_block}",
    "putmem_rma{,_nbi}{,_block,_warp}", "putmem_signal_rma{,_nbi}{,_block,_warp}",
    "atomic_{set,add,inc,and,or,xor,fetch,fetch_inc,fetch_add,fetch_and,fetch_or,fetch_xor,swap,compare_swap}", "p", "g",
    "i{put,get}", "wait_until", "test", "signal_fetch", "alltoall{,mem}{,_warp,_block}",
    "{sum,prod,min,max}_reduce{,_warp,_block}")


def test_every_published_function_is_there_and_no_other():
    assert set(FUNCTIONS) == PUBLISHED
    assert PUBLISHED <= set(shmem.__all__) and all(callable(getattr(shmem, name)) for name in PUBLISHED)


@pytest.mark.parametrize("name, signature", [
    ("putmem_nbi", "(dest, source, bytes, pe, qp_id=0)"), ("putmem_nbi_block", "(dest, source, bytes, pe)"),
    ("putmem_signal_nbi_block", "(dest, source, bytes, sig_addr, signal, sig_op, pe, qp_id=0)"),
    ("int_p", "(dest, value, pe, qp_id=0)"), ("signal_wait_until", "(sig_addr, cmp_, cmp_val)"),
    ("broadcast_warp", "(team, dest, source, nelems, pe_root)"), ("fcollectmem", "(team, dest, source, nelems)"),
    ("signal_op", "(sig_addr, signal, sig_op, pe)"), ("barrier_all_wg", "()"), ("team_sync_block", "(team)"),
    ("atomic_compare_swap", "(dest, cond, word, pe)"), ("iput", "(dest, source, dst, sst, nelems, pe)"),
    ("ulong_put_signal", "(dest, source, nelems, sig_addr, signal, sig_op, pe)")])
def test_signatures_are_the_published_ones(name, signature):
    assert str(inspect.signature(getattr(getattr(shmem, name), SELECT))) == signature


def test_constants_are_the_published_ones():
    for library, order in (("NVSHMEM", "EQ NE GT LE LT GE"), ("ROCSHMEM", "EQ NE GT GE LT LE"), ("MORI", "EQ NE GT LE LT GE")):
        assert [getattr(shmem, f"{library}_CMP_{word}") for word in order.split()] == list(range(6))
    assert (shmem.NVSHMEM_SIGNAL_SET, shmem.NVSHMEM_SIGNAL_ADD, shmem.MORI_SIGNAL_SET, shmem.MORI_SIGNAL_ADD,
            shmem.ROCSHMEM_SIGNAL_SET, shmem.ROCSHMEM_SIGNAL_ADD) == (9, 10, 9, 10, 0, 1)
    assert [shmem.NVSHMEM_TEAM_WORLD, shmem.NVSHMEM_TEAM_SHARED, shmem.NVSHMEMX_TEAM_NODE, shmem.NVSHMEMX_TEAM_SAME_MYPE_NODE,
            shmem.NVSHMEMI_TEAM_SAME_GPU, shmem.NVSHMEMI_TEAM_GPU_LEADERS] == list(range(6))
    assert (shmem.NVSHMEMI_AMO_FETCH, shmem.NVSHMEMI_AMO_COMPARE_SWAP, shmem.MORI_AMO_FETCH, shmem.MORI_AMO_COMPARE_SWAP) == (
        12, 19, 14, 21)


def test_rows_are_consistent():
    for row in TABLE:
        assert row.args == tuple(PARAMETERS[name][1] for name in row.params) and row.symbol.startswith(LIBRARY)
        assert row.caller in ("all", "each") or row.result == "int32" and not row.pure
        scope = next((word for word in ("warp", "block") if row.symbol.endswith(word)), None)
        assert scope is None or row.caller == scope
        assert row.symbol == f"{LIBRARY}_{row.stem}{row.scope}" and row.scope == (f"_{scope}" if scope else "")
        assert row.symbol in primitives.SYMBOLS
    for function in FUNCTIONS.values():
        row = ROWS[function.symbol]
        assert len(function.call) == len(row.args), function.name
        for item, parameter in zip(function.call, row.params):
            counted = isinstance(item, int) or item in ("itemsize", "typecode")
            assert counted or PARAMETERS[item][1] == PARAMETERS[parameter][1], function.name
    of_widths = {symbol for function in FUNCTIONS.values() for _, symbol in function.widths}
    assert {function.symbol for function in FUNCTIONS.values()} | of_widths == {row.symbol for row in TABLE}


def test_a_function_is_for_kernels_only():
    with pytest.raises(RuntimeError, match="libshmem_device.my_pe can only be called inside a kernel"):
        shmem.my_pe()


def test_published_names_of_one_type_are_the_same_functions():
    assert shmem.int64_atomic_add is shmem.ulong_atomic_add is shmem.atomic_add
    assert shmem.float_sum_reduce_block is shmem.sum_reduce_block and shmem.int_wait_until is shmem.wait_until
    assert callable(shmem.set_lock) and callable(shmem.clear_lock) and str(inspect.signature(getattr(shmem.int_p, SELECT))) == (
        "(dest, value, pe, qp_id=0)")

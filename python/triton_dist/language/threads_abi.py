# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The device functions of single threads as ABI rows: each thread of a program calls them for itself.

They make a library of their own, which is linked into kernels that call one of them (`kernels_of_threads.py`). Kernels that
do not are compiled as if it did not exist. `extra/language_extra.py` makes the functions, `backends/gpu/thread_functions.py`
their bodies, `backends/emulator/twins/threads.py` their twins.
"""
from triton_dist.language.abi import ROWS, Row

LIBRARY = "tdist_simt"        # key under extern_libs
SCOPES = ("cta", "gpu", "sys")
LOAD_SEMANTICS = ("relaxed", "acquire")
STORE_SEMANTICS = ("relaxed", "release")
UPDATE_SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
FENCE_SEMANTICS = ("acq_rel", "sc")
UPDATES = ("add", "xchg")
SHUFFLES = ("idx", "up", "down", "xor")
WIDTHS = (8, 16, 32, 64)
WORDS = (32, 64)


def _row(stem: str, args: tuple, result: str, doc: str, pure: bool = False) -> None:
    symbol = f"{LIBRARY}_{stem}"
    ROWS[symbol] = Row(symbol, args, result, pure, doc, library=LIBRARY)


for _axis in "xyz":
    _row(f"tid_{_axis}", (), "int32", "index of the calling thread in its program", pure=True)
_row("lane", (), "int32", "index of the calling thread in its warp", pure=True)
_row("sm", (), "int32", "number of the multiprocessor that runs the calling thread")
_row("clock", (), "int64", "nanoseconds of the device's global timer")
for _bits in WIDTHS:
    for _scope in SCOPES:
        for _sem in LOAD_SEMANTICS:
            _row(f"ld_b{_bits}_{_sem}_{_scope}", ("int64",), f"int{_bits}", "(address): one load")
        for _sem in STORE_SEMANTICS:
            _row(f"st_b{_bits}_{_sem}_{_scope}", ("int64", f"int{_bits}"), "int32", "(address, value): one store")
for _bits in WORDS:
    _word = f"int{_bits}"
    for _scope in SCOPES:
        for _sem in UPDATE_SEMANTICS:
            for _op in UPDATES:
                _row(f"{_op}_b{_bits}_{_sem}_{_scope}", ("int64", _word), _word, "(address, value): atomic; the old word")
            _row(f"cas_b{_bits}_{_sem}_{_scope}", ("int64", _word, _word), _word,
                 "(address, expected, value): stores value where expected is; the old word")
for _scope in SCOPES:
    for _sem in FENCE_SEMANTICS:
        _row(f"fence_{_sem}_{_scope}", (), "int32", "memory fence of the calling thread")
_row("st_v4", ("int64", "int32", "int32", "int32", "int32"), "int32", "(address, four words): one 16-byte store")
for _how in SHUFFLES:
    _row(f"shfl_{_how}", ("int32", "int32", "int32"), "int32",
         "(mask, value, lane or distance): the value of another thread of the warp")
_row("ballot", ("int32", "int32"), "int64", "(mask, predicate): one bit for each thread of the warp whose predicate is not 0")

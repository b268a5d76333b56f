# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The ABI table: every device function of the runtime, once.

A row is a symbol, its argument and result types and its effect. The row makes the Triton-side builtin (`_call.py`);
`backends/gpu/device_runtime.py` puts the GPU bodies together; `backends/emulator/twins/dist.py` registers a Python twin
under the same symbol. A row that is optional is defined only where a GPU needs it. Pointers travel as int64, so that LLVM
can inline the call. The rows of the SHMEM device API, which other libraries implement, are in `shmem_abi.py`.
"""
from dataclasses import dataclass

SCOPES = ("gpu", "sys")
WAIT_SEMANTICS = ("acquire", "relaxed")
COMPARISONS = ("eq", "ge")
FENCE_SEMANTICS = ("acquire", "release", "acq_rel")
SIGNAL_OPS = ("set", "add")
BITS = (32, 64)
DRAIN = "tdist_drain"
# No rows: inline assembly that a backend may state (`_linked.Statement`). TAKE and TRY_TAKE give four words; TRY_TAKE is there
# if waits are bounded. E4M3_WORD is for targets whose compiler knows float8_e4m3fn. BF16_WORD and FP16_WORD round two fp32.
TAKE, TRY_TAKE = "tdist_sf_take", "tdist_sf_try_take"
E4M3_WORD = "tdist_e4m3_word"
BF16_WORD, FP16_WORD = "tdist_bf16_word", "tdist_fp16_word"


@dataclass(frozen=True)
class Row:
    """One device function. `args` and `result` name Triton dtypes; `pure` functions may be merged, moved or dropped."""
    symbol: str
    args: tuple
    result: str
    pure: bool
    doc: str
    library: str = "tdist"        # key under extern_libs of the library that defines it
    optional: bool = False        # only in device runtimes of GPUs that need it; `_call.provides` tells


ROWS: dict[str, Row] = {}


def _row(symbol: str, args: tuple, result: str, pure: bool, doc: str, optional: bool = False) -> None:
    ROWS[symbol] = Row(symbol, args, result, pure, doc, optional=optional)


_row("tdist_true", (), "int32", True, "1, opaque to the compiler's middle end: keeps a wait inside an scf.if")
_row("tdist_zero_after", ("int32",), "int32", True, "0 that depends on a token: the data dependence of consume_token")
_row("tdist_rank", (), "int32", True, "world rank, from the context")
_row("tdist_num_ranks", (), "int32", True, "world size, from the context")
_row("tdist_symm_delta", ("int32",), "int64", True,
     "bytes to add to a local heap address to reach the same object on a world rank; a multiple of 256")
_row("tdist_barrier_pad", (), "int64", True, "local address of the heap's world-barrier pad (int32 epoch, then flags)")
_row("tdist_gdc_wait", (), "int32", False, "waits for all kernels ahead on the stream; nothing where launches do not overlap")
_row("tdist_gdc_launch_dependents", (), "int32", False, "lets the next kernel on the stream be launched; likewise")
_row("tdist_prefetch", ("int64", "int32"), "int32", False,
     "(address, pred): asks for memory at a global address to be brought into the L2 cache; nothing where no instruction does")
_row("tdist_ll_store", ("int64", "int32", "int32", "int32"), "int32", False,
     "(address, data, flag, pred): one 8-byte relaxed system-scope store of {data, flag}")
_row("tdist_ll_load", ("int64", "int32", "int32"), "int32", False,
     "(address, flag, pred): polls an 8-byte packet, relaxed system scope, until its flag matches; the data")
_row("tdist_ll_store_pair", ("int64", "int64", "int32", "int32"), "int32", False,
     "(address, data, flag, pred): one 16-byte access that stores two packets, {low half, flag} and {high half, flag}")
_row("tdist_ll_load_pair", ("int64", "int32", "int32"), "int64", False,
     "(address, flag, pred): polls two adjacent packets, 16 bytes at a time, until both flags match; the data")
_row("tdist_sf_store", ("int64", "int32", "int32", "int32", "int32", "int32"), "int32", False,
     "(address, four words, pred): one 16-byte relaxed system-scope store of self-flagged words")
_row("tdist_sf_give_up", ("int64", "int32"), "int32", False,
     "(address, pred): where waits are bounded, says that the slot has not filled in time, and traps; else nothing")
_row("tdist_sf_take_pair", ("int64", "int32"), "int64", False,
     "(address, pred): polls two 32-bit words, relaxed system scope, until neither is 0; empties them; the words")
_row(DRAIN, (), "int32", False,
     "waits until the calling threads' stores are done; where a program's barrier alone does not", optional=True)
for _scope in SCOPES:
    for _sem in FENCE_SEMANTICS:
        _row(f"tdist_fence_{_sem}_{_scope}", (), "int32", False, "memory fence of the calling threads")
    for _bits in BITS:
        _word = f"int{_bits}"
        for _op in SIGNAL_OPS:
            _row(f"tdist_notify_warp_{_op}_b{_bits}_{_scope}", ("int64", _word), "int32", False,
                 "(flag, value): release by lane 0 of the calling warp, after a warp barrier")
            _row(f"tdist_signal_{_op}_b{_bits}_{_scope}", ("int64", _word), "int32", False,
                 "(flag, value): release by the program's first thread, after a drain and a barrier", optional=True)
        for _cmp in COMPARISONS:
            for _sem in WAIT_SEMANTICS:
                _row(f"tdist_wait_{_cmp}_b{_bits}_{_sem}_{_scope}", ("int64", "int32", _word), "int32", False,
                     "(flags, n, value): every warp polls n consecutive flags; eq, or ge by signed difference; a token")

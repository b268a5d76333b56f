# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The SHMEM device API as a table: every published function once, with its ABI row.

`extra/libshmem_device.py` makes the builtins; a GPU backend the bodies, over the functions of a library that it names by a
row's stem and scope; `backends/emulator/twins/shmem.py` the twins; `docs/write_shmem_table.py` the page that says what
works where.

Who calls a library function is part of its row: all threads of the program where they only look ("all") or where the
library wants them together ("block"); thread 0 ("thread") or the first warp ("warp") where each caller would act once more.
In kernels of threads (`kernels_of_threads.py`) functions of "thread" and "warp" are called by whoever calls them, without
barriers, as a function that gives each caller a value of its own always is ("each").
"""
from dataclasses import dataclass

from triton_dist.language.abi import ROWS, Row

LIBRARY = "tdist_shmem"       # key under extern_libs
SCOPES = {"": "thread", "_warp": "warp", "_block": "block"}
EACH, EACH_MAY = "_each", ("thread", "warp")     # suffix of a row's body for kernels of threads; callers of rows that have one
SAME_AS = {"_wave": "_warp", "_wg": "_block"}      # other published words for them

# Parameter -> (kind, ABI type, what docstrings say). The kind says what is checked when a kernel is traced (`_shmem_check.py`).
PARAMETERS = {
    "dest": ("pointer", "int64", "pointer to where the data go"),
    "source": ("pointer", "int64", "pointer to where the data are"),
    "local_ptr": ("pointer", "int64", "pointer into this rank's symmetric heap"),
    "ptr": ("pointer", "int64", "pointer into this rank's symmetric heap"),
    "sig_addr": ("flag", "int64", "pointer to a 64-bit flag in the symmetric heap"),
    "addr": ("flag", "int64", "pointer to a 64-bit flag in the symmetric heap"),
    "ctx": ("word", "int64", "the library's context, an integer"),
    "bytes": ("count", "int64", "number of bytes"),
    "nelems": ("count", "int64", "how many to copy"),
    "size": ("count", "int64", "bytes of an element"),
    "pe": ("index", "int32", "world rank of the other PE, int32"),
    "pe_root": ("index", "int32", "index of the root in `team`, int32"),
    "team": ("index", "int32", "the team's number, int32"),
    "src_team": ("index", "int32", "a team's number, int32"),
    "pe_in_src_team": ("index", "int32", "index of a PE in `src_team`, int32"),
    "dest_team": ("index", "int32", "a team's number, int32"),
    "value": ("word32", "int32", "int32 to store"),
    "signal": ("word", "int64", "integer of at most 64 bits"),
    "cmp_val": ("word", "int64", "integer to compare with, unsigned"),
    "val": ("word", "int64", "integer to compare with, unsigned"),
    "sig_op": ("signal_op", "int32", "NVSHMEM_SIGNAL_SET or NVSHMEM_SIGNAL_ADD, a constexpr"),
    "cmp_": ("comparison", "int32", "one of NVSHMEM_CMP_EQ, NE, GT, LE, LT, GE, a constexpr"),
    "word": ("operand", "int64", "integer of the width of what the pointer points to"),
    "cond": ("operand", "int64", "integer of the width of what the pointer points to"),
    "word32": ("operand", "int32", ""),
    "cond32": ("operand", "int32", ""),
    "ivar": ("pointer", "int64", "pointer to a 32- or 64-bit integer in this rank's symmetric heap"),
    "dst": ("count", "int64", "step between elements of dest, in elements"),
    "sst": ("count", "int64", "step between elements of source, in elements"),
    "op": ("constant", "int32", ""),
    "type": ("constant", "int32", ""),
    "qp_id": ("queue_pair", "", "must be 0: kernels cannot choose a queue pair"),
}


@dataclass(frozen=True)
class ShmemRow(Row):
    """A row whose body is a call of a library function, made by `caller`: "all", "thread", "warp", "block" or "each"."""
    library: str = LIBRARY
    params: tuple = ()        # names of `args`; "size" multiplies the count before it
    caller: str = "all"
    stem: str = ""            # the operation's name; with `scope`, one of SCOPES, it is the row's
    scope: str = ""
    c_result: str = ""        # of the library's function: "int32", "int64", "pointer", or "" for void


@dataclass(frozen=True)
class Function:
    """A function as published. `call`: the row's arguments, each a parameter's name, a number, "itemsize" or "typecode".

    widths: {bits of what its first pointer points to: symbol}, where rows differ by that; `symbol` is the widest's."""
    name: str
    params: tuple
    symbol: str
    call: tuple
    doc: str
    defaults: tuple = ()      # of the last parameters
    widths: tuple = ()        # pairs of bits and symbol
    typed: int = 0            # bytes that an element of dest and source has; -1: any, but the same; 0: they are bytes


FUNCTIONS: dict[str, Function] = {}


def _row(stem: str, params: str, caller: str, doc: str, c_result: str = "", pure: bool = False, scope: str = "") -> str:
    names = tuple(params.split())
    result = "int64" if c_result in ("int64", "pointer") else "int32"
    symbol = f"{LIBRARY}_{stem}{scope}"
    ROWS[symbol] = ShmemRow(symbol, tuple(PARAMETERS[name][1] for name in names), result, pure, doc, params=names,
                            caller=caller, stem=stem, scope=scope, c_result=c_result)
    return symbol


def _function(name: str, params: str, symbol: str, doc: str, call: tuple | None = None, defaults: tuple = (),
              typed: int = 0) -> None:
    names = tuple(params.split())
    FUNCTIONS[name] = Function(name, names, symbol, names if call is None else call, doc, defaults, typed=typed)


def _simple(name: str, params: str, caller: str, doc: str, c_result: str = "", pure: bool = False) -> None:
    _function(name, params, _row(name, params, caller, doc, c_result, pure), doc)


def _family(stem: str, params: str, doc: str, *, c_result: str = "", scopes: tuple = tuple(SCOPES), aliases: bool = False,
            defaults: dict | None = None, typed: str = "") -> None:
    """One operation at several scopes. `defaults`: {suffix: value of a trailing qp_id}. `typed`: name of the form that
    counts elements of dest's type."""
    for suffix in scopes:
        given = (defaults or {}).get(suffix, ())
        names = params.replace("nelems", "nelems size") if typed else params
        symbol = _row(stem, names, SCOPES[suffix], doc, c_result, scope=suffix)
        bare = tuple(params.split())
        call = tuple(x for p in bare for x in ((p, 1) if typed and p == "nelems" else (p,)))
        _function(stem + suffix, params + (" qp_id" if given else ""), symbol, doc, call, given)
        if typed:
            call = tuple("itemsize" if x == 1 else x for x in call)
            _function(typed + suffix, params, symbol, doc.replace("bytes", "elements of dest's type"), call, typed=-1)
        for alias, of in SAME_AS.items() if aliases else ():
            if of == suffix:
                _function(stem + alias, params, symbol, doc, call)


# -- ranks -------------------------------------------------------------------------------------------------------------
_simple("set_rocshmem_ctx", "ctx", "all", "Does nothing: the runtime sets the library's context itself.")
_simple("my_pe", "", "all", "World rank of this PE, int32.", "int32", pure=True)
_simple("n_pes", "", "all", "Number of PEs of the world, int32.", "int32", pure=True)
_simple("team_my_pe", "team", "all", "Index of this PE in `team`, int32. -1 if it is not a member.", "int32", pure=True)
_simple("team_n_pes", "team", "all", "Number of PEs of `team`, int32.", "int32", pure=True)
_simple("team_translate_pe", "src_team pe_in_src_team dest_team", "all",
        "Index in `dest_team` of the PE that is number `pe_in_src_team` of `src_team`, int32. -1 if it is not a member.",
        "int32", pure=True)
_simple("remote_ptr", "local_ptr pe", "all",
        "The address of the same symmetric object on PE `pe`, for loads and stores. It is null if they cannot reach that PE. "
        "It has the type of `local_ptr`. For wide accesses add tl.multiple_of(..., 16).", "pointer",
        pure=True)
_simple("remote_mc_ptr", "team ptr", "all",
        "The multicast address of `ptr` over `team`. It is null if the machine has no multicast, as in the emulator.", "pointer",
        pure=True)

# -- order and barriers ------------------------------------------------------------------------------------------------
_BARRIER = ("Completes this PE's puts, as quiet does, and returns when every PE of {} has called it. "
            "One program of a rank calls it at a time.")
_SYNC = "Returns when every PE of {} has called it. It completes no puts. One program of a rank calls it at a time."
_family("barrier_all", "", _BARRIER.format("the world"), aliases=True)
_simple("barrier_all_vec", "", "block", "The same as barrier_all_block. (On an NPU it is a barrier of vector cores.)")
_family("barrier", "team", _BARRIER.format("`team`"), c_result="int32")
_family("sync_all", "", _SYNC.format("the world"))
_family("team_sync", "team", _SYNC.format("`team`"), scopes=("_warp", "_block"), c_result="int32")
_simple("quiet", "", "thread",
        "Returns when all puts, gets and signals that this program has issued are complete at their targets.")
_function("quiet_pe", "pe", f"{LIBRARY}_quiet", "The same as quiet: completes what was sent to all PEs, `pe` too.", call=(),
          defaults=(0,))
_simple("fence", "", "thread",
        "Puts and signals that this program issues later arrive at each PE after those it has issued so far.")

# -- puts and gets -----------------------------------------------------------------------------------------------------
_GET = ("Copies `bytes` bytes from `source` on PE `pe` to `dest`. `source` is this rank's own address of the symmetric object. ",
        "`dest` is complete when the call returns.", "`dest` is complete after quiet.")
_PUT = ("Copies `bytes` bytes from `source` to `dest` on PE `pe`. `dest` is this rank's own address of the symmetric object. ",
        "`source` may change when the call returns. `dest` is complete after quiet or a later signal.",
        "`source` must not change before quiet or a barrier, after which `dest` is complete.")
_SIGNAL = " When all data are there, the 64-bit flag `sig_addr` on that PE is set to `signal`, or `signal` is added to it."
_family("getmem", "dest source bytes pe", _GET[0] + _GET[1], aliases=True)
_family("getmem_nbi", "dest source bytes pe", _GET[0] + _GET[2], aliases=True)
_family("putmem", "dest source bytes pe", _PUT[0] + _PUT[1], aliases=True)
_family("putmem_nbi", "dest source bytes pe", _PUT[0] + _PUT[2], aliases=True, defaults={"": (0,)})
_family("putmem_signal", "dest source bytes sig_addr signal sig_op pe", _PUT[0] + _PUT[1] + _SIGNAL, aliases=True)
_family("putmem_signal_nbi", "dest source bytes sig_addr signal sig_op pe", _PUT[0] + _PUT[2] + _SIGNAL, aliases=True,
        defaults={"_block": (0,)})
_RMA = " The data crosses the network even if loads and stores could reach that PE."
for _stem, _form in (("putmem_rma", _PUT[1]), ("putmem_rma_nbi", _PUT[2])):
    _family(_stem, "dest source bytes pe", _PUT[0] + _form + _RMA)
for _stem, _form in (("putmem_signal_rma", _PUT[1]), ("putmem_signal_rma_nbi", _PUT[2])):
    _family(_stem, "dest source bytes sig_addr signal sig_op pe", _PUT[0] + _form + _SIGNAL + _RMA)
_INT_P = "Stores the int32 `value` to `dest` on PE `pe`. It is complete after quiet."
_function("int_p", "dest value pe qp_id", _row("int_p", "dest value pe", "thread", _INT_P), _INT_P,
          call=("dest", "value", "pe"), defaults=(0,), typed=4)
_ULONG = _PUT[0].replace("`bytes` bytes", "`nelems` 64-bit integers") + _PUT[1] + _SIGNAL
_function("ulong_put_signal", "dest source nelems sig_addr signal sig_op pe", f"{LIBRARY}_ulong_put_signal", _ULONG, typed=8)
_row("ulong_put_signal", "dest source nelems sig_addr signal sig_op pe", "thread", _ULONG)

# -- signals -----------------------------------------------------------------------------------------------------------
_simple("signal_op", "sig_addr signal sig_op pe", "thread",
        "Sets the 64-bit flag `sig_addr` on PE `pe` to `signal`, or adds `signal`. It orders no data: use putmem_signal, "
        "or call fence before.")
_simple("signal_wait_until", "sig_addr cmp_ cmp_val", "all",
        "Waits until this rank's 64-bit flag `sig_addr` compares to `cmp_val` as `cmp_` (NVSHMEM_CMP_EQ ... GE) says, unsigned. "
        "Later loads see what came before the signal. Returns the value of the flag, int64, which consume_token takes.", "int64")
_function("uint64_wait_until_equals", "addr val", f"{LIBRARY}_signal_wait_until",
          "The same as signal_wait_until with NVSHMEM_CMP_EQ.", call=("addr", 0, "val"))

# -- collectives -------------------------------------------------------------------------------------------------------
_family("broadcastmem", "team dest source nelems pe_root",
        "Copies `nelems` bytes from `source` on member `pe_root` of `team` to `dest` on every member. All members call it. "
        "`dest` is complete on return. No member may still use dest when the root calls.",
        c_result="int32", typed="broadcast")
_family("fcollectmem", "team dest source nelems",
        "Copies `nelems` bytes from `source` on every member of `team` to `dest` on all of them, in order of index. All "
        "members call it. `dest` is complete on return. No member may still use dest when the first one calls.",
        c_result="int32", typed="fcollect")

_family("alltoallmem", "team dest source nelems",
        "Copies `nelems` bytes from `source` on every member of `team` to each member: the j-th `nelems` bytes of member i "
        "become the i-th of `dest` on member j. All members call it. `dest` is complete on return.",
        c_result="int32", typed="alltoall")
REDUCTIONS = ("sum", "prod", "min", "max")
REDUCED = ("int32", "int64", "fp32", "fp64", "fp16", "bf16")        # types of elements; a row has a type's place in it
for _op in REDUCTIONS:
    for _suffix in SCOPES:
        _doc = (f"The {_op} over all members of `team` of each of `nelems` elements of `source`, to `dest` on every member. "
                "All members call it. `dest` is complete on return, and may be `source`.")
        _symbol = _row(f"{_op}_reduce", "team dest source nelems type", SCOPES[_suffix], _doc, "int32", scope=_suffix)
        _function(f"{_op}_reduce{_suffix}", "team dest source nelems", _symbol, _doc,
                  ("team", "dest", "source", "nelems", "typecode"), typed=-1)

# -- words -------------------------------------------------------------------------------------------------------------
WORDS = (32, 64)


def _by_width(name: str, params: str, caller: str, doc: str, result: bool = False, widths: tuple = WORDS,
              counted: bool = False) -> None:
    """A function whose row depends on the width of what its first pointer points to."""
    symbols = []
    for bits in widths:
        own = params.replace("word", "word32").replace("cond", "cond32") if bits == 32 else params
        gives = (f"int{bits}" if name != "test" else "int32") if result else ""
        symbols.append((bits, _row(f"{name}_b{bits}", own, caller, doc, gives)))
    names = tuple(params.split())
    FUNCTIONS[name] = Function(name, names, symbols[-1][1], names, doc, widths=tuple(symbols), typed=-1 if counted else 0)


_ATOMIC = " It is atomic among SHMEM's atomics on the same word, and complete after quiet."
_FETCH = " Returns the word before the change. Each thread that calls it makes its own change, and gets its own word."
_by_width("atomic_set", "dest word pe", "thread", "Stores `word` to `dest` on PE `pe`." + _ATOMIC)
_by_width("atomic_add", "dest word pe", "thread", "Adds `word` to `dest` on PE `pe`." + _ATOMIC)
_by_width("atomic_inc", "dest pe", "thread", "Adds 1 to `dest` on PE `pe`." + _ATOMIC)
for _op in ("and", "or", "xor"):
    _by_width(f"atomic_{_op}", "dest word pe", "thread", f"Combines `dest` on PE `pe` with `word` by {_op}." + _ATOMIC)
    _by_width(f"atomic_fetch_{_op}", "dest word pe", "each", f"Combines `dest` on PE `pe` with `word` by {_op}." + _FETCH, True)
_by_width("atomic_fetch", "source pe", "all", "The word at `source` on PE `pe`, read atomically.", True)
_by_width("atomic_fetch_inc", "dest pe", "each", "Adds 1 to `dest` on PE `pe`." + _FETCH, True)
_by_width("atomic_fetch_add", "dest word pe", "each", "Adds `word` to `dest` on PE `pe`." + _FETCH, True)
_by_width("atomic_swap", "dest word pe", "each", "Stores `word` to `dest` on PE `pe`." + _FETCH, True)
_by_width("atomic_compare_swap", "dest cond word pe", "each",
          "Stores `word` to `dest` on PE `pe` where it holds `cond`." + _FETCH, True)
_by_width("p", "dest word pe", "thread", "Stores `word` to `dest` on PE `pe`. It is complete after quiet.")
_by_width("g", "source pe", "all", "The element at `source` on PE `pe`.", True)
_STRIDED = "Copies `nelems` elements, `sst` apart at `source`, {} `dst` apart, {}. {}"
_by_width("iput", "dest source dst sst nelems pe", "thread", _STRIDED.format("to `dest`", "on PE `pe`", _PUT[1]),
          widths=(8, 16, 32, 64), counted=True)
_by_width("iget", "dest source dst sst nelems pe", "thread", _STRIDED.format("on PE `pe`, to `dest`", "here", _GET[1]),
          widths=(8, 16, 32, 64), counted=True)
_UNTIL = "`ivar` of this rank compares to `word` as `cmp_` says, signed. Later loads see what came before its value."
_by_width("wait_until", "ivar cmp_ word", "all", f"Waits until the integer {_UNTIL} Returns the value.", True)
_by_width("test", "ivar cmp_ word", "all", f"Returns 1 if the integer {_UNTIL} Otherwise returns 0.", True)
_simple("signal_fetch", "sig_addr", "all", "Returns this rank's 64-bit flag `sig_addr`, int64.", "int64")

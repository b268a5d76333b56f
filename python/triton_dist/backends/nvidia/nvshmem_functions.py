# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which function of NVSHMEM's device library does what a row of the SHMEM table says, and which rows have none."""
from typing import Any

from triton_dist.language import abi, shmem_abi

# Stem of a row -> the function's name after its prefix. The scope follows: nvshmemx_putmem_warp.
_NAMES = {
    **{stem: stem for stem in (
        "my_pe", "n_pes", "team_my_pe", "team_n_pes", "team_translate_pe", "barrier_all", "barrier", "sync_all", "team_sync",
        "quiet", "fence", "getmem", "getmem_nbi", "putmem", "putmem_nbi", "putmem_signal", "putmem_signal_nbi", "int_p",
        "ulong_put_signal", "signal_op", "signal_wait_until", "broadcastmem", "fcollectmem")},
    "remote_ptr": "ptr", "remote_mc_ptr": "mc_ptr", "alltoallmem": "alltoallmem", "signal_fetch": "signal_fetch",
    **{f"{stem}_b{bits}": f"uint{bits}_{stem}" for bits in (32, 64) for stem in (
        "atomic_set", "atomic_add", "atomic_inc", "atomic_and", "atomic_or", "atomic_xor", "atomic_fetch", "atomic_fetch_inc",
        "atomic_fetch_add", "atomic_fetch_and", "atomic_fetch_or", "atomic_fetch_xor", "atomic_swap", "atomic_compare_swap",
        "p", "g")},
    **{f"{stem}_b{bits}": f"int{bits}_{stem}" for bits in (32, 64) for stem in ("wait_until", "test")},
    **{f"{stem}_b{bits}": f"{stem}{bits}" for bits in (8, 16, 32, 64) for stem in ("iput", "iget")},
}
_EXTENSIONS = ("remote_mc_ptr", "signal_op")        # nvshmemx_ without a scope

NO_FUNCTION = "NVSHMEM's device library has no such function"
NOT_LINKED = "it takes NVSHMEM, which this process does not use: set TRITON_DIST_HEAP=nvshmem"


def function_of(row: Any) -> str:
    """Name of the function; "" where NVSHMEM has none."""
    if row.stem not in _NAMES:
        return ""
    return f"nvshmem{'x' if row.scope or row.stem in _EXTENSIONS else ''}_{_NAMES[row.stem]}{row.scope}"


def rows() -> list:
    """The rows that NVSHMEM has a function for."""
    return [row for row in abi.ROWS.values() if row.library == shmem_abi.LIBRARY and function_of(row)]


def lacks() -> dict[str, list]:
    """Symbols of the other rows, by the reason."""
    return {NO_FUNCTION: [row.symbol for row in abi.ROWS.values()
                          if row.library == shmem_abi.LIBRARY and not function_of(row)]}


def not_linked() -> dict[str, list]:
    """What kernels lack that are compiled without NVSHMEM: all rows, by the reason."""
    return {**lacks(), NOT_LINKED: [row.symbol for row in rows()]}

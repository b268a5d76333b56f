# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which C function of rocSHMEM's device bitcode does what a row of the SHMEM table says, and why other rows have none."""
import re
from typing import Any

from triton_dist.language import abi, shmem_abi

_SCOPES = {"": "", "_warp": "_wave", "_block": "_wg"}
_WORLD = "its C name takes no team: it would be right for the world only"
_CPP = "it is a C++ function there, which the bitcode does not export"
_TRANSPORT = "rocSHMEM chooses the transport itself"

# Stem of a row -> the function's name after rocshmem_. The scope follows: rocshmem_putmem_wave.
NAMES = {
    **{stem: stem for stem in (
        "my_pe", "n_pes", "quiet", "fence", "int_p", "ulong_put_signal", "barrier_all", "sync_all", "getmem", "getmem_nbi",
        "putmem", "putmem_nbi", "putmem_signal", "putmem_signal_nbi")},
    "remote_ptr": "ptr", "signal_op": "ulong_atomic_set", "signal_wait_until": "uint64_wait_until",
}
# Stem of a row -> why rocSHMEM's device bitcode does not do it.
REASONS = {
    "barrier": _WORLD, **dict.fromkeys(("team_sync", "team_my_pe", "team_n_pes", "team_translate_pe", "broadcastmem",
                                        "fcollectmem"), _CPP),
    **dict.fromkeys(("putmem_rma", "putmem_rma_nbi", "putmem_signal_rma", "putmem_signal_rma_nbi"), _TRANSPORT),
    **dict.fromkeys([row.stem for row in abi.ROWS.values() if row.library == shmem_abi.LIBRARY and re.search(
        r"_b\d+$|_reduce$|^alltoallmem$|^signal_fetch$", row.stem)], "nobody has looked for its C name yet"),
    "remote_mc_ptr": "AMD GPUs have no multicast addresses", "barrier_all_vec": "it is of another vendor's vector cores",
    "set_rocshmem_ctx": "the runtime sets the context",
}

NOT_LINKED = "it takes rocSHMEM, which this process does not use: set TRITON_DIST_HEAP=rocshmem"


def function_of(row: Any) -> str:
    """Name of the function; "" where rocSHMEM has none."""
    return f"rocshmem_{NAMES[row.stem]}{_SCOPES[row.scope]}" if row.stem in NAMES else ""


def rows() -> list:
    """The rows that rocSHMEM's device bitcode has a function for."""
    return [row for row in abi.ROWS.values() if row.library == shmem_abi.LIBRARY and function_of(row)]


def lacks() -> dict[str, list]:
    """Symbols of the other rows, by the reason."""
    found: dict[str, list] = {}
    for row in abi.ROWS.values():
        if row.library == shmem_abi.LIBRARY and not function_of(row):
            why = f"rocSHMEM's device bitcode has no such function of the same arguments: {REASONS[row.stem]}"
            found.setdefault(why, []).append(row.symbol)
    return found


def not_linked() -> dict[str, list]:
    """What kernels lack that are compiled without rocSHMEM: all rows, by the reason."""
    return {**lacks(), NOT_LINKED: [row.symbol for row in rows()]}

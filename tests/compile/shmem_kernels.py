# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels that call libshmem_device, for the compile tests: one that has every function, told which by a constexpr."""
import importlib.util
import sys

import triton.language as tl

import triton_dist
from triton_dist.backends.nvidia.nvshmem_functions import function_of
from triton_dist.language.abi import ROWS
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.language.shmem_abi import FUNCTIONS

SIGNATURE = dict(dest="*fp32", source="*fp32", longs="*i64", sig_addr="*i64", ints="*i32", out="*i64", n="i32", pe="i32",
                 team="i32", word="i64")
# Parameter -> the kernel's own name for a fitting value.
_VALUES = {"local_ptr": "dest", "ptr": "dest", "addr": "sig_addr", "ctx": "word", "bytes": "n", "nelems": "n", "pe_root": "pe",
           "src_team": "team", "pe_in_src_team": "pe", "dest_team": "team", "value": "n", "signal": "word", "cmp_val": "word",
           "val": "word", "sig_op": "10", "cmp_": "5", "qp_id": "0",
           "cond": "word", "ivar": "longs", "dst": "n", "sst": "n"}
_SPECIAL = {("int_p", "dest"): "ints", ("ulong_put_signal", "dest"): "longs", ("ulong_put_signal", "source"): "longs"}


def call(name: str) -> str:
    """A call of function `name` with the kernel's parameters."""
    if ROWS[FUNCTIONS[name].symbol].stem.endswith("_b64"):       # by the pointer's width
        _SPECIAL.update({(name, end): "longs" for end in ("dest", "source")})
    values = [_SPECIAL.get((name, p)) or _VALUES.get(p, p) for p in FUNCTIONS[name].params]
    return f"shmem.{name}({', '.join(values)})"


def make(folder, *names: str):
    """A jit kernel that calls functions and stores what they give; written as a file, since Triton reads its source."""
    name = names[0] if len(names) == 1 else "of_many"
    path = folder / f"kernel_{name}.py"
    stores = "".join(f"    tl.store(out + {i}, {call(name)}.to(tl.int64))\n" for i, name in enumerate(names))
    path.write_text(f"import triton_dist\nimport triton.language as tl\n"
                    f"from triton_dist.language.extra import libshmem_device as shmem\n\n\n"
                    f"@triton_dist.jit\ndef kernel_{name}({', '.join(SIGNATURE)}):\n"
                    f"{stores}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, f"kernel_{name}")


def on_nvidia() -> list:
    """Names of the functions that NVSHMEM has."""
    return [name for name, function in FUNCTIONS.items() if function_of(ROWS[function.symbol])]


@triton_dist.jit
def exchange(dest, source, sig_addr, n):
    """A put with a signal to the next rank, and the wait for the previous one's."""
    peer = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.putmem_signal(dest, source, n, sig_addr, 7, shmem.NVSHMEM_SIGNAL_SET, peer)
    shmem.signal_wait_until(sig_addr, shmem.NVSHMEM_CMP_GE, 7)


@triton_dist.jit
def scopes(dest, source, n, pe, SCOPE: tl.constexpr):
    """A put by one thread, the first warp, or all."""
    if SCOPE == "thread":
        shmem.putmem(dest, source, n, pe)
    elif SCOPE == "warp":
        shmem.putmem_warp(dest, source, n, pe)
    else:
        shmem.putmem_block(dest, source, n, pe)

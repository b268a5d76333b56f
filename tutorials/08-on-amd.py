# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""AG-GEMM and GEMM-RS on AMD GPUs
================================

.. code-block:: bash

    bash launch.sh 08-on-amd.py

The kernels of tutorials 06 and 07 are compiled for AMD's GPUs as they are. In this tutorial you will compile them for an
MI300X, on whatever machine you have, and see in the assembly

* what a release and an acquire are there: waits, write-backs and invalidations that the hardware does not do by itself,
* that the compiler keeps the order which `dl.notify`, `dl.wait` and `dl.consume_token` ask for,
* how much of each kernel is arithmetic.

On a machine with AMD GPUs run 06 and 07 themselves, by the same commands. Nobody has done so yet.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

import triton_dist
from triton_dist.runtime.groups import resolve
from triton_dist.testing import plot

# %%
# Compiling for a GPU that is not here
# ------------------------------------
#
# `triton-dist dump` compiles any kernel for any target. It must know what the parameters are: `*bf16:16` is a pointer to bf16
# that is a multiple of 16, `%BLOCK_M` a constexpr, whose value follows.

HERE, TARGET = Path(__file__).resolve().parent, "gfx942"
BLOCKS = ["BLOCK_M=128", "BLOCK_N=128", "BLOCK_K=64", "num_warps=8"]
SIZES = "i32, i32:16, i32:16, i32:16, %BLOCK_M, %BLOCK_N, %BLOCK_K"
KERNELS = {
    "06-ag-gemm.py:ag_gemm": f"*bf16:16, *bf16:16, *bf16:16, *bf16:16, *i32:16, {SIZES}",
    "07-gemm-rs.py:gemm_rs": f"*bf16:16, *bf16:16, *bf16:16, *fp32:16, *i32:16, i32, {SIZES}",
}


def assembly(kernel: str, signature: str) -> list:
    """The instructions of a kernel, in order."""
    words = ["dump", str(HERE / kernel), "--signature", signature, *BLOCKS, "--stage", "amdgcn", "--target", TARGET, "--no-lines"]
    done = subprocess.run([sys.executable, "-m", "triton_dist", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    lines = [line.split(";")[0].strip() for line in done.stdout.splitlines()]
    return [line for line in lines if re.match(r"[sv]_|buffer_|global_|ds_|flat_", line)]


# %%
# A release
# ---------
#
# `dl.notify` has to make everything that all waves of the program have stored visible to other GPUs before the flag is. A
# barrier does not wait for a wave's stores, so each wave first waits for its own (`s_waitcnt vmcnt(0)`), then all meet, and one
# thread writes dirty lines of the L2 cache back (`buffer_wbl2 sc0 sc1`), waits again, and stores the flag.


def has_in_order(lines: list, patterns: list) -> bool:
    at = 0
    for pattern in patterns:
        found = next((i for i in range(at, len(lines)) if re.match(pattern, lines[i])), None)
        if found is None:
            return False
        at = found + 1
    return True


RELEASE = [r"s_waitcnt vmcnt\(0\)", "s_barrier", "buffer_wbl2 sc0 sc1", r"s_waitcnt vmcnt\(0\)", "(global|flat)_(store|atomic)"]

# %%
# An acquire
# ----------
#
# `dl.wait` polls past all caches, rests between two polls (`s_sleep`), and then drops what the caches may hold of a peer's
# memory (`buffer_inv sc0 sc1`). Loads of the data must come after that. `consume_token` sees to it, and the products, by the
# matrix units (`v_mfma`), come after the loads.

POLL = [["(global|flat)_load_dword .*sc0 sc1"], ["s_sleep 1"]]                   # the compiler may put the loop elsewhere
ACQUIRE = ["buffer_inv sc0 sc1", "(global|buffer|flat)_load"]
KINDS = {"matrix": "v_mfma", "loads": r"(global|buffer|flat)_load", "stores": r"(global|buffer|flat)_store", "waits": "s_waitcnt",
         "shared": "ds_"}

# %%
# A check and a plot
# ------------------
#
# .. image:: /tutorial_plots/08-on-amd.png
#    :alt: how many matrix, load, store, wait and shared-memory instructions each of the two kernels has


def main() -> None:
    if os.environ.get("RANK", "0") != "0":
        return                                           # one process is enough
    counts: dict = {}
    for name, signature in KERNELS.items():
        lines = assembly(name, signature)
        released, acquired = has_in_order(lines, RELEASE), all(has_in_order(lines, part) for part in (*POLL, ACQUIRE))
        counts[name.partition(":")[2]] = [sum(bool(re.match(kind, line)) for line in lines) for kind in KINDS.values()]
        print(f"{name} for {TARGET}: {len(lines)} instructions, release {'right' if released else 'WRONG'}, "
              f"acquire {'right' if acquired else 'WRONG'}", flush=True)
        if not (released and acquired):
            raise SystemExit(1)
    os.environ.pop("RANK", None)
    triton_dist.initialize_distributed()
    plot("08-on-amd", list(KINDS), counts, resolve(), "kind", "instructions")
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/08-on-amd.png'

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The collectives against sums and copies in float64: `bash launch_amd.sh tests/amd/test_collectives.py [BYTES...]`.

On GPUs of any vendor, or on emulated ranks. BYTES: sizes of a rank's input, packets and plain stores among them.
"""
import sys

import torch

import triton_dist
from triton_dist.ops import all_gather, all_reduce, all_to_all_single, reduce_scatter
from triton_dist.runtime.console import printable
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, poisoned, random_tensor


def check(nbytes: int, dtype: torch.dtype = torch.float32, calls: int = 3) -> int:
    """Each collective `calls` times on x of about nbytes a rank: right, and the same bits every time. How many there are."""
    group = resolve()
    size, rank = group.size, group.rank
    rows = max(1, nbytes // dtype.itemsize // size // 16)
    x = random_tensor(size * rows, 16, dtype=dtype, seed=rank)
    everyone = [random_tensor(size * rows, 16, dtype=dtype, seed=other) for other in range(size)]
    total, mine = sum(other.double() for other in everyone), slice(rank * rows, (rank + 1) * rows)
    cases = [(all_reduce, x.shape, total), (reduce_scatter, (rows, 16), total[mine]),
             (all_gather, (size * x.shape[0], 16), torch.cat(everyone).double()),
             (all_to_all_single, x.shape, torch.cat([other[mine] for other in everyone]).double())]
    for op, shape, expected in cases:
        outs = [poisoned(*shape, dtype=dtype) for _ in range(calls)]
        for out in outs:
            op(x, out=out)
        triton_dist.synchronize()
        assert_matches(outs[0], expected, k=size)
        if not all(torch.equal(out, outs[0]) for out in outs[1:]):
            raise AssertionError(f"{op.__name__}: repeated calls differ")
    return len(cases)


def test_collectives_on_emulated_ranks():
    from triton_dist.backends.emulator.worlds.virtual import run_ranks
    assert run_ranks(lambda: check(4096), 3) == [4, 4, 4]


if __name__ == "__main__":
    triton_dist.initialize_distributed()
    for given in [int(word) for word in sys.argv[1:]] or [1 << 10, 1 << 16]:
        check(given)
    if resolve().rank == 0:
        print(printable("✅ Collectives match float64 on " + f"{resolve().size} ranks"))
    triton_dist.finalize_distributed()

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ops over nodes, checked and timed beside torch's collectives: `bash launch.sh benchmarks/nodes.py`.

Several launchers, or TRITON_DIST_NODES=2x2 with one, make the nodes; on GPUs TRITON_DIST_HEAP=nvshmem. docs/shmem.md has the
launch lines. Every row is compared with torch's result on random inputs before it is timed; the exit status is 1 where one is
wrong. Times are means of back-to-back calls, the slowest rank's; emulated times say nothing about GPUs.
"""
import argparse

import torch

import triton_dist
from triton_dist import ops
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import resolve
from triton_dist.testing import milliseconds, random_tensor

_KIB, _MIB = 1 << 10, 1 << 20
BYTES = {"cuda": [64 * _KIB, 1 * _MIB, 16 * _MIB, 128 * _MIB], "cpu": [4 * _KIB, 64 * _KIB]}          # of the whole tensor
SHAPES = {"cuda": [(2048, 28672, 4096), (8192, 28672, 4096)], "cpu": [(256, 256, 128)]}                # M, N, K of ag_gemm
TOKENS = {"cuda": [(128, 7168, 8, 256), (4096, 7168, 8, 256)], "cpu": [(4, 64, 2, 8)]}      # a rank's, row, choices, experts
COLUMNS = 2048


def collectives(nbytes: int, dtype: torch.dtype) -> list:
    """[(name, size, torch's call, ours)], each call giving its output."""
    group = resolve()
    columns = min(COLUMNS, nbytes // dtype.itemsize // group.size)
    rows = nbytes // dtype.itemsize // columns // group.size
    part = random_tensor(rows, columns, dtype=dtype, seed=group.rank)
    whole = random_tensor(rows * group.size, columns, dtype=dtype, seed=100 + group.rank)

    def gather():
        out = torch.empty_like(whole)
        group.all_gather_tensor(out, part)
        return out

    def scatter():
        out = torch.empty_like(part)
        group.reduce_scatter_tensor(out, whole)
        return out
    size = f"{nbytes // _KIB} KiB"
    return [("all_gather_2d", size, gather, lambda: ops.all_gather_2d(part)),
            ("reduce_scatter_2d", size, scatter, lambda: ops.reduce_scatter_2d(whole))]


def gemms(m: int, n: int, k: int, dtype: torch.dtype) -> list:
    """The same for ag_gemm M, N, K and gemm_rs M, K, N, the two halves of an MLP."""
    group = resolve()
    x = random_tensor(m // group.size, k, dtype=dtype, seed=group.rank)
    up = random_tensor(n // group.size, k, dtype=dtype, seed=9)
    y = random_tensor(m, n // group.size, dtype=dtype, seed=50 + group.rank)
    down = random_tensor(k, n // group.size, dtype=dtype, seed=70 + group.rank)
    core = backend().core("ag_gemm")
    method = "ws" if core is not None and core.preferred else "portable"
    return [("ag_gemm", f"{m} x {n} x {k}", lambda: ops.ag_gemm(x, up, method="unfused"),
             lambda: ops.ag_gemm(x, up, method=method)),
            ("gemm_rs", f"{m} x {k} x {n}", lambda: ops.gemm_rs(y, down, method="unfused"),
             lambda: ops.gemm_rs(y, down, method="portable"))]


def exchanges(tokens: int, row: int, k: int, experts: int, dtype: torch.dtype) -> list:
    """The same for ep_dispatch and ep_combine of random choices."""
    device, rank = triton_dist.device(), resolve().rank
    x = random_tensor(tokens, row, dtype=dtype, seed=rank)
    ids = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(rank)).topk(k).indices.int().to(device)
    y = random_tensor(tokens * resolve().size, row, dtype=dtype, seed=20 + rank)

    came = ops.ep_dispatch(x, ids, num_experts=experts, method="unfused")
    rows = int(came.rows)                       # later rows of the output are never written

    def dispatch(method: str):
        return lambda: ops.ep_dispatch(x, ids, num_experts=experts, method=method).x[:rows]

    def combine(method: str):
        return lambda: ops.ep_combine(y, came.handle, method=method)

    size, methods = f"{tokens} x {row}, top-{k}", ("unfused", "two_level")
    return [("ep_dispatch", size, *map(dispatch, methods)), ("ep_combine", size, *map(combine, methods))]


def difference(ours, theirs) -> float:
    """||ours - theirs|| / ||theirs||, the largest over the ranks."""
    found, expected = ours().double(), theirs().double()
    triton_dist.synchronize()
    return max(resolve().all_gather_object(float((found - expected).norm() / expected.norm())))


def main() -> int:
    """Prints the table; 1 where a row is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iters", type=int, help="calls a figure is the mean of (20; emulated 2)")
    parser.add_argument("--only", default="", help="rows whose name holds this word")
    args = parser.parse_args()
    triton_dist.initialize_distributed()
    group, device = resolve(), triton_dist.device().type
    iters = args.iters or (20 if device == "cuda" else 2)
    if group.rank == 0:
        name = torch.cuda.get_device_name() if device == "cuda" else "emulated"
        print(f"{group.size} x {name}, nodes of {', '.join(str(len(members)) for members in group.nodes)} ranks, bfloat16")
        print(f"{'op':18s} {'size':>20s} {'torch ms':>10s} {'2-D ms':>10s} {'ratio':>6s} {'difference':>11s}", flush=True)
    wrong = 0
    rows = [row for nbytes in BYTES[device] for row in collectives(nbytes, torch.bfloat16)]
    rows += [row for shape in SHAPES[device] for row in gemms(*shape, torch.bfloat16)]
    rows += [row for shape in TOKENS[device] for row in exchanges(*shape, torch.bfloat16)]
    for op, size, theirs, ours in rows:
        if args.only not in op:
            continue
        error = difference(ours, theirs)
        right = error == 0 if op in ("all_gather_2d", "ep_dispatch") else error < 1e-2
        wrong += not right
        times = [milliseconds(call, group, iters, warmup=3) for call in (theirs, ours)]
        if group.rank == 0:
            print(f"{op:18s} {size:>20s} {times[0]:10.4f} {times[1]:10.4f} {times[0] / times[1]:6.2f} {error:11.1e}"
                  + ("" if right else "  WRONG"), flush=True)
    triton_dist.finalize_distributed()
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())

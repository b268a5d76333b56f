# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A rank of tests/nvidia/aot.py: ops compiled as they are used, from the library, and in C, side by side."""
import ctypes
import faulthandler
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

AG = ((2048, 28672, 4096), (8192, 8192, 29568))  # M, N, K of the whole problem
RS = ((2048, 4096, 14336), (8192, 8192, 28672))
RANKS = int(os.environ.get("AOT_RANKS", "2"))
REDUCED = (4096, 1 << 20, 2 << 20, 16 << 20)  # elements
COMM_SMS = 4

class Host:
    """The ops in C, by ctypes, on torch's streams."""

    class Gemm(ctypes.Structure):
        _fields_ = [
            ("struct_size", ctypes.c_uint32),
            ("dtype", ctypes.c_uint32),
            ("m", ctypes.c_int64),
            ("n", ctypes.c_int64),
            ("k", ctypes.c_int64),
            ("has_bias", ctypes.c_int32),
            ("comm_sms", ctypes.c_int32),
            ("hop_dtype", ctypes.c_uint32),
            ("block_n", ctypes.c_int32),
            ("group_m", ctypes.c_int32),
            ("reserved", ctypes.c_int32),
        ]

    class Options(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_uint32), ("timeout_ms", ctypes.c_uint32), ("heap_bytes", ctypes.c_uint64)]

    BF16 = 11

    def __init__(self, library: Path, group):
        self.c = ctypes.CDLL(str(library / "libtriton_dist_aot.so"))
        self.c.tdist_last_error.restype = ctypes.c_char_p
        identity = (ctypes.c_ubyte * 64)()
        self.check(self.c.tdist_unique_id_create(identity))
        identity = (ctypes.c_ubyte * 64)(*group.all_gather_object(list(identity))[0])
        options = self.Options(ctypes.sizeof(self.Options), 30000, 6 << 30)
        self.world = ctypes.c_void_p()
        import torch

        self.check(
            self.c.tdist_world_create(
                ctypes.byref(self.world),
                identity,
                group.rank,
                group.size,
                torch.cuda.current_device(),
                ctypes.byref(options),
            )
        )

    def check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"status {code}: {self.c.tdist_last_error().decode()}")

    def gemm(self, op: str, m: int, n: int, k: int, comm_sms: int = 0, block_n: int = 0, group_m: int = 0):
        shape = self.Gemm(ctypes.sizeof(self.Gemm), self.BF16, m, n, k, 1, comm_sms, 0, block_n, group_m, 0)
        plan = ctypes.c_void_p()
        self.check(getattr(self.c, f"tdist_{op}_plan")(self.world, ctypes.byref(shape), ctypes.byref(plan)))
        run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 6)((f"tdist_{op}", self.c))

        def call(x, weight, bias, out):
            self.check(run(plan, stream(), x.data_ptr(), weight.data_ptr(), bias.data_ptr(), out.data_ptr()))

        return call

    def all_reduce(self, count: int, method: int):
        plan = ctypes.c_void_p()
        self.check(self.c.tdist_all_reduce_plan(self.world, self.BF16, ctypes.c_int64(count), method, ctypes.byref(plan)))
        run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(("tdist_all_reduce", self.c))
        return lambda x, out: self.check(run(plan, stream(), x.data_ptr(), out.data_ptr()))


def stream() -> int:
    import torch

    return torch.cuda.current_stream().cuda_stream


def rank_main(out: Path) -> None:
    import torch

    import triton_dist
    from triton_dist.runtime.groups import resolve
    from triton_dist.testing import random_tensor

    os.environ["TRITON_DIST_HEAP_SIZE"] = "6G"
    library, results = os.environ.pop("USE_TRITON_DISTRIBUTED_AOT"), {"bits": {}, "graphs": {}, "host_us": {}}

    def tensors(kind: str, shape: tuple):
        rank, world, (m, n, k) = resolve().rank, resolve().size, shape
        if kind == "ag":
            x, w, b = (m // world, k), (n // world, k), n // world
        else:
            x, w, b = (m, k // world), (n, k // world), n
        return (
            random_tensor(*x, dtype=torch.bfloat16, seed=rank),
            random_tensor(*w, dtype=torch.bfloat16, seed=100 + rank),
            random_tensor(b, dtype=torch.bfloat16, seed=200 + (rank if kind == "ag" else 0)),
        )

    def everything() -> dict:
        from triton_dist.ops import ag_gemm, all_reduce, gemm_rs

        found = {}
        for shape in AG:
            x, w, b = tensors("ag", shape)
            for sms in (None, COMM_SMS):
                found[f"ag_gemm {shape} comm_sms={sms}"] = ag_gemm(x, w, bias=b, method="ws", comm_sms=sms).cpu()
        for shape in RS:
            x, w, b = tensors("rs", shape)
            found[f"gemm_rs {shape}"] = gemm_rs(x, w, bias=b, method="ws").cpu()
        for count in REDUCED if RANKS > 1 else ():
            for method in ("one_shot", "two_shot", "push"):
                x = random_tensor(count, dtype=torch.bfloat16, seed=resolve().rank)
                found[f"all_reduce {count} {method}"] = all_reduce(x, method=method).cpu()
        triton_dist.synchronize()
        return found

    triton_dist.initialize_distributed(aot=False)
    compiled = everything()
    results["host_us"].update(launch_times(None))
    triton_dist.finalize_distributed()
    triton_dist.initialize_distributed(aot=library)
    group = resolve()
    prebuilt = everything()
    from triton_dist.runtime.backend import backend

    results["lacking"] = sorted(backend()._prebuilt._lacking)
    results["host_us"].update(launch_times(library))
    results["bits"]["ops from the library"] = {name: bool(torch.equal(compiled[name], prebuilt[name])) for name in compiled}

    host = Host(Path(library), group)
    in_c = {}
    for shape in AG:
        x, w, b = tensors("ag", shape)
        for sms in (None, COMM_SMS):
            call, y = (
                host.gemm("ag_gemm", x.shape[0], w.shape[0], x.shape[1], sms or 0),
                torch.empty(shape[0], w.shape[0], dtype=x.dtype, device=x.device),
            )
            for _ in range(3):
                y.fill_(float("nan"))
                call(x, w, b, y)
            in_c[f"ag_gemm {shape} comm_sms={sms}"] = y.cpu()
    for shape in RS:
        x, w, b = tensors("rs", shape)
        call, y = (
            host.gemm("gemm_rs", x.shape[0] // RANKS, w.shape[0], x.shape[1]),
            torch.empty(shape[0] // RANKS, w.shape[0], dtype=x.dtype, device=x.device),
        )
        for _ in range(3):
            y.fill_(float("nan"))
            call(x, w, b, y)
        in_c[f"gemm_rs {shape}"] = y.cpu()
    for count in REDUCED if RANKS > 1 else ():
        for number, method in enumerate(("one_shot", "two_shot", "push"), 1):
            x = random_tensor(count, dtype=torch.bfloat16, seed=group.rank)
            y, call = torch.full_like(x, float("nan")), host.all_reduce(count, number)
            for _ in range(3):
                call(x, y)
            in_c[f"all_reduce {count} {method}"] = y.cpu()
    results["bits"]["ops in C"] = {name: bool(torch.equal(compiled[name], in_c[name])) for name in compiled}
    if RANKS > 1:
        results["host_us"]["all_reduce in C, by ctypes"] = microseconds(lambda: call(x, y))
    print(json.dumps(results, indent=1), flush=True)
    graphs(host, tensors, results)
    wrong = [name for table in results["bits"].values() for name, same in table.items() if not same]
    everyone = group.all_gather_object((results, wrong))
    if group.rank == 0:
        (out / "ranks.json").write_text(json.dumps([r for r, _ in everyone], indent=1))
        print(
            json.dumps(results["host_us"], indent=1),
            json.dumps(results["graphs"], indent=1),
            f"lacking: {results['lacking']}",
        )
        print("differ:", [w for _, w in everyone])
    triton_dist.finalize_distributed()
    if wrong:
        raise SystemExit(1)


def microseconds(call, calls: int = 200, rounds: int = 11) -> float:
    """Median host time of a call."""
    import torch

    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return round(statistics.median(found[1:]), 2)


def launch_times(library: str | None) -> dict:
    """Host time of a launch of ag_gemm's kernel with its six tensor maps, of one rank alone, which waits for nobody."""
    import torch

    from triton_dist.cores.hopper import cores
    from triton_dist.runtime.backend import backend
    from triton_dist.runtime.capabilities import GemmConfig

    device = backend().device()

    def zeros(*shape, dtype=torch.bfloat16):
        return torch.zeros(*shape, dtype=dtype, device=device)

    config = GemmConfig(128, 256, 64, group_m=8, num_warps=8, num_stages=3)
    plan = SimpleNamespace(
        m=128,
        n=256,
        k=64,
        config=config,
        pitch=128,
        dtype=torch.bfloat16,
        columns=False,
        gated=False,
        group=SimpleNamespace(size=1, rank=0),
        gather=SimpleNamespace(programs=0, pieces=1, piece_tiles=1),
        halves=[zeros(128 * 64)] * 2,
        space=SimpleNamespace(flags=zeros(1024, dtype=torch.int32), derived=lambda key, make: make()),
    )
    bound = cores._AgGemm(plan, True)
    args = bound.described(zeros(128, 64), zeros(256, 64), zeros(256), zeros(128, 256), 1)
    launch = backend().prepare(bound.kernel, (2,), args, bound.options)
    if library is not None:
        key = type(launch).__name__
        if key != "PrebuiltLaunch":
            raise RuntimeError(f"the library lacks ag_gemm_ws: {key}")
        return {
            "library: all 17 arguments": microseconds(lambda: launch(*args)),
            "library: the same arguments": microseconds(launch.again),
        }
    from triton import knobs

    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    whole = tuple(args) + tuple(bound.options[name] for name in bound.kernel.arg_names[len(args) :])
    return {
        "Triton's launcher": microseconds(lambda: launch._by_triton(enter, leave, whole)),
        "ours: all 17 arguments": microseconds(lambda: launch(*args)),
        "ours: the same arguments": microseconds(launch.again),
    }


def config_of(op: str, weight) -> dict:
    """Tiling that Python has taken for a plan of `op` with this weight; nothing where there is none."""
    import gc

    for one in gc.get_objects():
        if type(one).__module__.startswith(f"triton_dist.ops.{op}.") and hasattr(one, "launch"):
            config = getattr(one, "config", None)
            if config is not None and (getattr(one, "n", 0), getattr(one, "k", 0)) == tuple(weight.shape):
                return dict(block_n=config.block_n, group_m=config.group_m)
    return {}


def graphs(host: Host, tensors, results: dict) -> None:
    """ms of a call in a graph of ten: Python's op, that in C, cuBLAS and NCCL; in a random order each round, medians."""
    import torch
    import torch.distributed as dist

    import triton_dist

    from triton_dist.ops import ag_gemm, gemm_rs

    for kind, shapes in (("ag", AG), ("rs", RS)):
        for shape in shapes:
            x, w, b = tensors(kind, shape)
            if kind == "ag":
                out = torch.empty(shape[0], w.shape[0], dtype=x.dtype, device=x.device)
                whole = torch.empty(shape[0], x.shape[1], dtype=x.dtype, device=x.device)
                python = lambda: ag_gemm(x, w, bias=b, out=out, method="ws", comm_sms=COMM_SMS)  # noqa: E731
                python()
                call = host.gemm("ag_gemm", x.shape[0], w.shape[0], x.shape[1], COMM_SMS, **config_of("ag_gemm", w))
                others = {
                    "cuBLAS": lambda: torch.mm(whole, w.t(), out=out),
                    "NCCL": lambda: dist.all_gather_into_tensor(whole, x),
                }
            else:
                out = torch.empty(shape[0] // RANKS, w.shape[0], dtype=x.dtype, device=x.device)
                whole = torch.empty(shape[0], w.shape[0], dtype=x.dtype, device=x.device)
                python = lambda: gemm_rs(x, w, bias=b, out=out, method="ws")  # noqa: E731
                python()
                call = host.gemm("gemm_rs", x.shape[0] // RANKS, w.shape[0], x.shape[1], **config_of("gemm_rs", w))
                others = {
                    "cuBLAS": lambda: torch.mm(x, w.t(), out=whole),
                    "NCCL": lambda: dist.reduce_scatter_tensor(out, whole),
                }
            ways = {"Python": python, "C": lambda: call(x, w, b, out), **others}
            captured = {}
            for name, way in ways.items():
                print(f"capturing {kind} {shape} {name}", flush=True)
                with triton_dist.prepare_graphs():
                    way()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(10):
                        way()
                captured[name] = graph
            times: dict = {name: [] for name in ways}
            order, shuffled = list(captured.items()), random.Random(7)      # the same orders on all ranks
            for _ in range(4 * len(order) + 1):
                shuffled.shuffle(order)                     # the clock depends on what ran before
                for name, graph in order:
                    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    dist.barrier()
                    torch.cuda.synchronize()
                    start.record()
                    graph.replay()
                    end.record()
                    torch.cuda.synchronize()
                    times[name].append(start.elapsed_time(end) / 10)
            found = {name: round(statistics.median(values[1:]), 4) for name, values in times.items()}
            limit = max(found["cuBLAS"], found["NCCL"])
            results["graphs"][f"{kind} {shape}"] = {
                **found,
                "T*/T Python": round(limit / found["Python"], 3),
                "T*/T C": round(limit / found["C"], 3),
                "C over Python": round(found["C"] / found["Python"], 4),
            }


if __name__ == "__main__":
    faulthandler.dump_traceback_later(150, exit=True)       # kernels of a library wait without a bound: say where
    rank_main(Path(sys.argv[1]))
    faulthandler.cancel_dump_traceback_later()

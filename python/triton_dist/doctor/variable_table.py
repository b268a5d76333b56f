# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every environment variable that matters, once: what it does, what it may hold, and what holds where it is unset.

`triton-dist env` prints the table, the doctor checks values by it, docs/write_environment.py writes docs/environment.md of it.
Effects and defaults are Markdown.
"""
from dataclasses import dataclass
from typing import Callable

from triton_dist.doctor.variable_checks import flag, folder, mode, nothing, number, one_of, program, read_by
from triton_dist.runtime.backend import backends
from triton_dist.runtime.environment import parse_autotune, parse_logs, parse_nodes, parse_size


def _ptx_version(text: str) -> int:
    from triton_dist.backends.nvidia.options import parse_ptx_version
    return parse_ptx_version(text)


@dataclass(frozen=True)
class Variable:
    """One variable. check: what is wrong with a value, "" where nothing is."""
    name: str
    effect: str
    default: str
    check: Callable[[str], str] = nothing

    @property
    def ours(self) -> bool:
        return self.name.startswith("TRITON_DIST_")


_v = Variable
_UNSET, _OFF = "unset", "off"

MACHINE = (
    _v("TRITON_DIST_BACKEND",
       "`nvidia`, `amd`, `emulator` or `auto`", "`auto`: what the machine has", one_of("auto", *backends())),
    _v("TRITON_DIST_HEAP_SIZE",
       "bytes of symmetric heap per rank, with `K`, `M` or `G` after the number; the same on all ranks",
       "`2G` on GPUs, `1G` emulated (only touched pages cost memory)", read_by(parse_size)),
    _v("TRITON_DIST_ROCSHMEM", "path of the library that `shmem/rocshmem_bind/build.sh` builds",
       "`libtdist_rocshmem.so`, where the loader finds it"),
    _v("TRITON_DIST_HEAP", "where symmetric tensors live on GPUs, the same on all ranks: `p2p`, `nvshmem` (NVIDIA; "
       "[shmem.md](shmem.md)), `ipc` and `rocshmem` (AMD; never run) or `auto`", "`auto`: `p2p` where all ranks are on one host",
       one_of("auto", "p2p", "nvshmem", "ipc", "rocshmem")),
    _v("TRITON_DIST_NODES",
       "divides the ranks into nodes: nodes x ranks of each, such as `2x2`, the same on all ranks. Loads and stores do not "
       "reach other nodes, as if they were hosts without NVLink between them ([nodes](shmem.md#nodes))", "the hosts that the "
       "ranks run on",
       read_by(parse_nodes)),
    _v("TRITON_DIST_SHARE_GPUS",
       "`1`: several ranks may run on one GPU, to try a program of many ranks. They take turns, so results are "
       "right, but times mean nothing. `bench` and `tune` refuse to run", "off: one rank on each GPU", one_of("0", "1")),
    _v("TRITON_DIST_WAIT_TIMEOUT",
       "seconds after which a device wait gives up. All ranks then report what they wait for, and end. Read "
       "when a process first uses its backend", "none: waits are unbounded, and the generated code is the same as without the "
       "feature", number(float, 0)),
    _v("TRITON_DIST_DEBUG",
       "set and not `0`: every call of an op first compares its shapes, dtype and method over the ranks, by a "
       "collective, and names two ranks that differ. (The emulator always compares, without a collective.) Split sizes of "
       "`all_to_all_single` that do not match, and rows that `all_to_all_vdev` and `ep_dispatch` cut off, are errors too; "
       "to find such rows the host waits for the device", _UNSET),
    _v("TRITON_DIST_LOG",
       "`plans`: prints a line to stderr for each kind of call that an op plans: op, shape, ranks, method, "
       "tiling and the reason, also where a rank falls back on a slower way. Logger `triton_dist.plans` of Python's `logging`",
       _UNSET, read_by(parse_logs)),
    _v("TRITON_DIST_NVTX",
       "set and not `0` before the first call of an op: each call is a range with op, method and shape of the output, for NVTX "
       "or roctx on GPUs and for torch's profiler everywhere ([profiling.md](profiling.md))", _UNSET),
    _v("TRITON_DIST_TRACE",
       "set and not `0` when a process first uses its backend: kernels for GPUs are compiled to record what they do. "
       "`triton-dist trace` sets it ([profiling.md](profiling.md))", "unset: the code contains no recorder"),
    _v("TRITON_DIST_AUTOTUNE",
       "`1`: the first use of a shape that no table has measures the ways to run it; `force`: the first use of any shape does; "
       "`0`: nothing is measured, and shipped tables or a rule decide ([tuning.md](tuning.md)). Rank 0's value is used",
       "`0`", read_by(parse_autotune)),
    _v("TRITON_DIST_CACHE_DIR",
       "folder for the device runtime, the cut-down NVSHMEM device library, and measured times (`tuned.json`)",
       "`.triton_dist` in the user's home folder", folder),
    _v("TRITON_DIST_AOT_RECORD",
       "file to which rank 0 appends a line for each kernel that ops prepare on a GPU, for `triton-dist "
       "aot @FILE` ([aot.md](aot.md))", "none"),
    _v("TRITON_DIST_PTX_VERSION",
       "version of PTX that our kernels and those of `triton_dist.jit` are compiled to, such as `8.3`, for a driver older than "
       "Triton's ptxas. A launch may override it by `ptx_version`",
       "what Triton's ptxas has", read_by(_ptx_version)),
)

EMULATOR = (
    _v("TRITON_DIST_EMULATOR_MODE",
       "which program runs next and when copies complete: `eager`, `random`, `late`, `skew`, `priority`, `pct` or "
       "`round-robin`", "`random`", mode),
    _v("TRITON_DIST_EMULATOR_SEED", "whole number; with the mode it fixes the order on each rank", "`0`", number(int)),
    _v("TRITON_DIST_EMULATOR_SMS", "programs that can be resident at a time on a rank", "`8`", number(int, 1)),
    _v("TRITON_DIST_NODE_LATENCY",
       "turns of the scheduler that a SHMEM put, get or signal takes to another node, in addition to "
       "the delay of the mode", "`0`", number(int, 0)),
    _v("TRITON_DIST_HANG_SECONDS",
       "seconds without progress on any rank after which processes report a hang; eight times as many "
       "if all ranks are in collectives. On GPUs, where `0` turns it off, a collective of the host that waits for eight "
       "times as many is logged, with the lines that ranks are at", "`3`", number(float, 0)),
)

TOOLS = (
    _v("TRITON_DIST_PYTHON", "interpreter for `launch.sh` and `scripts/test.sh`; nothing is installed into it",
       "the current `python3` if it has what is needed, else `.venv`", program),
    _v("TRITON_DIST_DEV", "set: `scripts/setenv.sh` also installs what the tests need", _UNSET),
    _v("TRITON_DIST_COMMIT", "commit that a benchmark writes into its results, for machines without git", "what git says"),
)

OTHERS = (
    _v("USE_TRITON_DISTRIBUTED_AOT",
       "`1`, or the folder of a library: ops launch the kernels of this library, which were compiled ahead of time "
       "([aot.md](aot.md)), and compile the others", _UNSET),
    _v("RANK", "set by torchrun. Without it a process is a world of its own", _UNSET, number(int, 0)),
    _v("WORLD_SIZE", "set by torchrun: number of ranks in the world", _UNSET, number(int, 1)),
    _v("LOCAL_RANK", "set by torchrun: the rank's GPU on its machine", "torch's current device", number(int, 0)),
    _v("GROUP_RANK", "set by torchrun: number of the launcher. In the emulator each launcher is a node", _UNSET, number(int, 0)),
    _v("CUDA_VISIBLE_DEVICES", "the launcher counts only the GPUs that it names and that the machine has", _UNSET),
    _v("HIP_VISIBLE_DEVICES", "the same", _UNSET),
    _v("ROCR_VISIBLE_DEVICES", "the same", _UNSET),
    _v("NVSHMEM_HOME",
       "NVSHMEM's device bitcode is taken from its `lib` instead of the pip wheel; the doctor looks there as well",
       "the wheel", folder),
    _v("NVSHMEM_SYMMETRIC_SIZE", "set to a little more than the heap size, unless it is set already", _UNSET),
    _v("ROCSHMEM_HEAP_SIZE", "the same for rocSHMEM, which reads it in bytes", _UNSET),
    _v("ROCSHMEM_HOME", "rocSHMEM's device bitcode is taken from its `lib`", "`ROCM_PATH`, then `/opt/rocm`", folder),
    _v("TMPDIR", "folder for heap files of the emulator, if the system has no memfd", "the system's", folder),
    _v("CUDA_DEVICE_MAX_CONNECTIONS", "benchmarks record it in host.json", _UNSET, number(int, 1)),
    _v("NCCL_NVLS_ENABLE", "the same", _UNSET),
)

TRITON_CACHE = (
    _v("TRITON_HOME", "folder in which Triton makes `.triton`", "the user's home folder", folder),
    _v("TRITON_CACHE_DIR",
       "where compiled kernels are kept; the launcher and the doctor report where it cannot be written",
       "`.triton/cache`", folder),
    _v("TRITON_ALWAYS_COMPILE",
       "`1`: compile even what the cache has. Dumps and overrides need this, or an empty cache", _OFF, flag),
    _v("TRITON_STORE_BINARY_ONLY", "`1`: the cache keeps the binary alone, no IR and no assembly", _OFF, flag),
    _v("TRITON_PRINT_AUTOTUNING",
       "`1`: `triton.autotune` prints what it has chosen; rank 0 also prints what our ops have tried, "
       "with times", _OFF, flag),
    _v("TRITON_CACHE_AUTOTUNING", "`1`: `triton.autotune` keeps its choices on disk", _OFF, flag),
)

TRITON_COMPILE = (
    _v("TRITON_OVERRIDE_ARCH",
       "`sm80`, `gfx942`: the architecture to compile for, in place of the device's. Kernels of `triton_dist.jit` are compiled "
       "for it entirely; stock Triton keeps the PTX version of the device. A binary for another architecture compiles "
       "(`kernel.warmup`) but does not load", "the device's"),
    _v("TRITON_INTERPRET", "set and not `0`: the emulator is the backend", _OFF,
       one_of("0", "1", "true", "false", "on", "off", "y", "n", "yes", "no")),
    _v("TRITON_DEBUG",
       "`1`: `tl.device_assert` and overflow checks are compiled, so times mean nothing", _OFF, flag),
    _v("TRITON_FRONT_END_DEBUGGING", "`1`: errors of kernels keep Triton's own traceback", _OFF, flag),
    _v("TRITON_ALLOW_NON_CONSTEXPR_GLOBALS", "`1`: kernels may read globals that are not constexpr", _OFF, flag),
    _v("TRITON_DISABLE_LINE_INFO",
       "`1`: no line numbers in the code, for smaller binaries and for comparing code", _OFF, flag),
    _v("USE_IR_LOC",
       "`ttir`, `ttgir`, `ptx`, ...: debuggers and profilers show lines of that stage, not of the source", _UNSET),
    _v("TRITON_F32_DEFAULT", "`ieee`, `tf32`, `tf32x3`: precision of `tl.dot` on float32", "`tf32` where the GPU has it"),
    _v("TRITON_DEFAULT_FP_FUSION", "`0`: a multiplication and an addition are not fused", "`1`", flag),
    _v("TRITON_PTXAS_PATH", "ptxas for GPUs before sm_100 (3.6) or sm_90 (3.9)", "Triton's own", program),
    _v("TRITON_PTXAS_BLACKWELL_PATH", "ptxas for the newer ones", "Triton's own", program),
    _v("PTXAS_OPTIONS", "further options for ptxas, such as `-v`", "none"),
    _v("DISABLE_PTXAS_OPT", "`1`: ptxas does not optimise, so that cuda-gdb can step", _OFF, flag),
    _v("TRITON_LIBDEVICE_PATH", "libdevice's bitcode", "Triton's own"),
    _v("TRITON_LIBCUDA_PATH", "folder of libcuda, where the loader does not find it", _UNSET),
    _v("TRITON_LIBHIP_PATH", "folder of libamdhip64, where the loader does not find it", _UNSET),
    _v("AMDGCN_USE_BUFFER_OPS", "`0`: AMD kernels use no buffer instructions", "`1`", flag),
    _v("TRITON_HIP_USE_BLOCK_PINGPONG",
       "`1` or `0`: AMD: two waves take turns at compute and memory", "Triton's choice", flag),
    _v("TRITON_HIP_USE_ASYNC_COPY", "`1`: AMD: loads go to LDS without passing through registers", "Triton's choice", flag),
)

TRITON_DUMP = (
    _v("TRITON_KERNEL_DUMP",
       "`1`: each stage of each kernel is written under `TRITON_DUMP_DIR`. Without a GPU, for any target: "
       "`triton-dist dump` ([debugging.md](debugging.md))", _OFF, flag),
    _v("TRITON_DUMP_DIR", "where dumps go, a folder for each kernel's hash", "`.triton/dump`"),
    _v("TRITON_KERNEL_OVERRIDE",
       "`1`: a stage that lies under `TRITON_OVERRIDE_DIR` takes the place of the compiled one", _OFF, flag),
    _v("TRITON_OVERRIDE_DIR", "edited stages, in the folders of a dump", "`.triton/override`"),
    _v("TRITON_REPRODUCER_PATH",
       "`p`: `p.make_ttir.repro.mlir` and so on: a stage's module and its pipeline, also after a crash", _UNSET),
    _v("MLIR_ENABLE_DUMP", "`1`, or a kernel's name: the IR before each pass, to stderr", _OFF),
    _v("MLIR_DUMP_PATH", "file for those dumps", "stderr"),
    _v("LLVM_IR_ENABLE_DUMP", "`1`: LLVM IR before each of LLVM's passes", _OFF, flag),
    _v("NVPTX_ENABLE_DUMP", "`1`: prints PTX", _OFF, flag),
    _v("AMDGCN_ENABLE_DUMP", "`1`: prints AMD assembly", _OFF, flag),
    _v("TRITON_DUMP_PTXAS_LOG", "`1`: prints what ptxas says: registers, spills", _OFF, flag),
    _v("MLIR_ENABLE_TIMING", "`1`: how long each MLIR pass takes", _OFF, flag),
    _v("LLVM_ENABLE_TIMING", "`1`: how long each LLVM pass takes", _OFF, flag),
    _v("TRITON_ENABLE_LLVM_DEBUG", "`1`: all debug output of LLVM", _OFF, flag),
    _v("TRITON_LLVM_DEBUG_ONLY", "names of passes, separated by commas, whose debug output is printed", _UNSET),
    _v("MLIR_ENABLE_DIAGNOSTICS", "`warnings`, `remarks`, `stacktraces`, `operations`, separated by commas", _UNSET),
    _v("LLVM_EXTRACT_DI_LOCAL_VARIABLES",
       "`1`: names of local variables for debuggers; the code is then not optimised", _OFF, flag),
)

TRITON_PROFILE = (
    _v("TRITON_PROTON_DISABLE", "`1`: Proton records nothing", _OFF, flag),
    _v("TRITON_ENABLE_NVTX", "`0`: Proton's scopes do not become NVTX ranges", "`1`", flag),
    _v("TRITON_CUPTI_LIB_PATH", "folder of CUPTI for Proton", "Triton's own", folder),
    _v("TRITON_INSTRUMENTATION_MODE",
       "a sanitizer or recorder that changes kernels (`consan`, ...); our own launcher then leaves "
       "the launch to Triton's", _UNSET),
)

SECTIONS: dict[str, tuple] = {
    "On every machine": MACHINE,
    "In the emulator": EMULATOR,
    "For the launcher, the scripts and the benchmark": TOOLS,
    "Of other projects": OTHERS,
    "Of Triton: cache and tuning": TRITON_CACHE,
    "Of Triton: compiling": TRITON_COMPILE,
    "Of Triton: dumps": TRITON_DUMP,
    "Of Triton: profiles": TRITON_PROFILE,
}
VARIABLES: dict[str, Variable] = {variable.name: variable for section in SECTIONS.values() for variable in section}

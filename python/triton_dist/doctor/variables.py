# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The variables that matter, and what is wrong with their values. docs/environment.md says what each one does."""
import math
import shutil
from pathlib import Path
from typing import Callable, Mapping

from triton_dist.doctor.report import BAD, NOTE, OK, WARN, Finding
from triton_dist.runtime.backend import backends
from triton_dist.runtime.environment import parse_autotune, parse_logs, parse_nodes, parse_number, parse_size


def _one_of(*allowed: str) -> Callable:
    return lambda text: "" if text.lower() in allowed else f"expected one of {', '.join(allowed)}"


def _read_by(parse: Callable) -> Callable:
    """What the runtime's own reader of such a value says."""
    def problem(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            return str(error)
        return ""
    return problem


def _number(kind: Callable, least: float = -math.inf) -> Callable:
    return _read_by(lambda text: parse_number(text, least, kind))


def _mode(text: str) -> str:
    try:
        from triton_dist.backends.emulator.engine.order import MODES
    except ImportError:             # greenlet is missing, which the versions report
        return ""
    return _one_of(*MODES)(text)


def _folder(text: str) -> str:
    place = Path(text).expanduser()
    while not place.exists():
        place = place.parent
    return "" if place.is_dir() else f"{place} is not a folder"


def _program(text: str) -> str:
    return "" if shutil.which(text) else "no such program"


def _nothing(text: str) -> str:
    return ""


# What each may hold. Those of others are shown when set, since they change what we do.
CHECKS: dict[str, Callable[[str], str]] = {
    "TRITON_DIST_BACKEND": _one_of("auto", *backends()),
    "TRITON_DIST_HEAP_SIZE": _read_by(parse_size),
    "TRITON_DIST_NODES": _read_by(parse_nodes),
    "TRITON_DIST_NODE_LATENCY": _number(int, 0),
    "TRITON_DIST_HEAP": _one_of("auto", "p2p", "nvshmem", "ipc", "rocshmem"),
    "TRITON_DIST_WAIT_TIMEOUT": _number(float, 0),
    "TRITON_DIST_CACHE_DIR": _folder,
    "TRITON_DIST_DEBUG": _nothing,
    "TRITON_DIST_AUTOTUNE": _read_by(parse_autotune),
    "TRITON_DIST_LOG": _read_by(parse_logs),
    "TRITON_DIST_EMULATOR_MODE": _mode,
    "TRITON_DIST_EMULATOR_SEED": _number(int),
    "TRITON_DIST_EMULATOR_SMS": _number(int, 1),
    "TRITON_DIST_HANG_SECONDS": _number(float, 0),
    "TRITON_DIST_PYTHON": _program,
    "TRITON_DIST_DEV": _nothing,
    "TRITON_DIST_COMMIT": _nothing, "TRITON_DIST_ROCSHMEM": _nothing, "TRITON_DIST_AOT_RECORD": _nothing,
    "CUDA_DEVICE_MAX_CONNECTIONS": _number(int, 1),
    "CUDA_VISIBLE_DEVICES": _nothing, "HIP_VISIBLE_DEVICES": _nothing, "ROCR_VISIBLE_DEVICES": _nothing,
    "TRITON_INTERPRET": _one_of("0", "1", "true", "false", "on", "off", "y", "n", "yes", "no"),
    "TRITON_CACHE_DIR": _folder, "TRITON_PTXAS_PATH": _program, "TRITON_PTXAS_BLACKWELL_PATH": _program,
    "NCCL_NVLS_ENABLE": _nothing, "NVSHMEM_HOME": _folder, "TMPDIR": _folder,
    "RANK": _number(int, 0), "WORLD_SIZE": _number(int, 1), "LOCAL_RANK": _number(int, 0),
}
# Set under a launcher only; a wrong one makes this process wait for a world that was never started.
_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def examine(environ: Mapping[str, str]) -> list[Finding]:
    """A line for each variable that is set, and one for each of ours that is not read."""
    found = []
    for name, check in CHECKS.items():
        text = environ.get(name, "").strip()
        if text:
            problem = check(text)
            ours = name.startswith("TRITON_DIST_")
            found.append(Finding(name, f"{text!r}: {problem}" if problem else text, (BAD if ours else WARN) if problem else OK,
                                 f"unset {name}, or give it a value that it can have" if problem else ""))
    for name in sorted(environ):
        if name.startswith("TRITON_DIST_") and name not in CHECKS and name != "TRITON_DIST_ROOT":
            found.append(Finding(name, "set, but nothing reads it", WARN, "see docs/environment.md for the names"))
    missing = [name for name in _LAUNCHER if not environ.get(name)]
    if "RANK" in environ and missing:
        found.append(Finding("RANK", f"set without {', '.join(missing)}", BAD, "unset RANK, or start with launch.sh or torchrun"))
    if "RANK" not in environ and environ.get("MASTER_ADDR"):
        found.append(Finding("MASTER_ADDR", f"{environ['MASTER_ADDR']}, without a launcher's RANK: on one node launch.sh does "
                             "not use it", NOTE))
    return found or [Finding("none is set", "", NOTE)]

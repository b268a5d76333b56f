# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The variables that matter, and what is wrong with their values. docs/environment.md says what each one does."""
import shutil
from pathlib import Path
from typing import Callable, Mapping

from triton_dist.doctor.report import BAD, NOTE, OK, WARN, Finding

_BACKENDS = ("auto", "nvidia", "amd", "emulator")
_MODES = ("eager", "random", "late", "skew", "priority")


def _one_of(*allowed: str) -> Callable:
    return lambda text: "" if text.lower() in allowed else f"expected one of {', '.join(allowed)}"


def _number(kind: Callable, least: float) -> Callable:
    def problem(text: str) -> str:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        words = "a whole number" if kind is int else "a number"
        return "" if least <= value < float("inf") else f"expected {words}" + (f" of at least {least:g}" if least > -1e9 else "")
    return problem


def _size(text: str) -> str:
    digits = text.lower().removesuffix("b").removesuffix("i").rstrip("kmg")
    return _number(float, 1e-9)(digits) and "expected a positive size such as 512M or 4G"


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
    "TRITON_DIST_BACKEND": _one_of(*_BACKENDS),
    "TRITON_DIST_HEAP_SIZE": _size,
    "TRITON_DIST_WAIT_TIMEOUT": _number(float, 0),
    "TRITON_DIST_CACHE_DIR": _folder,
    "TRITON_DIST_DEBUG": _nothing,
    "TRITON_DIST_EMULATOR_MODE": _one_of(*_MODES),
    "TRITON_DIST_EMULATOR_SEED": _number(int, -1e18),
    "TRITON_DIST_EMULATOR_SMS": _number(int, 1),
    "TRITON_DIST_HANG_SECONDS": _number(float, 0),
    "TRITON_DIST_PYTHON": _program,
    "TRITON_DIST_DEV": _nothing,
    "TRITON_DIST_COMMIT": _nothing,
    "CUDA_DEVICE_MAX_CONNECTIONS": _number(int, 1),
    "CUDA_VISIBLE_DEVICES": _nothing, "HIP_VISIBLE_DEVICES": _nothing, "ROCR_VISIBLE_DEVICES": _nothing,
    "TRITON_INTERPRET": _one_of("0", "1", "true", "false", "on", "off", "y", "n", "yes", "no"),
    "TRITON_CACHE_DIR": _folder, "TRITON_PTXAS_PATH": _program, "TRITON_PTXAS_BLACKWELL_PATH": _program,
    "NCCL_NVLS_ENABLE": _nothing, "TMPDIR": _folder,
    "RANK": _number(int, 0), "WORLD_SIZE": _number(int, 1), "LOCAL_RANK": _number(int, 0),
}
# Set under a launcher only; a wrong one makes this process wait for a world that nobody started.
_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def examine(environ: Mapping[str, str]) -> list[Finding]:
    """A line for each variable that is set, and one for each of ours that nobody reads."""
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
    return found or [Finding("none is set", "", NOTE)]

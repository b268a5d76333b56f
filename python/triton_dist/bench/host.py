# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a figure must be read with: the machine, the versions, the commit."""
import datetime
import math
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from triton_dist.runtime.backend import backend
from triton_dist.runtime.streams import device

_CLOCKS = "clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"


def describe(world: int) -> dict:
    """host.json. Names no host, user or path."""
    gpu = device().type == "cuda"
    properties = torch.cuda.get_device_properties(device()) if gpu else None
    return {
        "kind": kind(world),
        "date": datetime.date.today().isoformat(),
        "device": properties.name if gpu else "emulator",
        "device_count": torch.cuda.device_count() if gpu else world,
        "memory_gib": round(properties.total_memory / 2**30, 1) if gpu else None,
        "multiprocessors": properties.multi_processor_count if gpu else None,
        "l2_bytes": l2_bytes() if gpu else None,
        "driver": _first(_smi("driver_version")) if gpu else None,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "nccl": _nccl() if gpu else None,
        "torch": torch.__version__,
        "triton": _triton(),
        "python": platform.python_version(),
        "clocks": _clocks() if gpu else None,
        "link": _link() if gpu else None,
        "environment": {name: os.environ[name] for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_NVLS_ENABLE",
                                                            "TRITON_DIST_WAIT_TIMEOUT") if name in os.environ},
        "commit": commit(),
        "comparable": gpu,              # times of the emulator say nothing about a GPU
    }


def kind(world: int) -> str:
    """Such as 4xH100-80GB: what the machine is, not which one."""
    if device().type != "cuda":
        return f"{world}xemulator"
    properties = torch.cuda.get_device_properties(device())
    return f"{torch.cuda.device_count()}x{short_name(properties.name, properties.total_memory)}"


def short_name(name: str, memory_bytes: int) -> str:
    """'NVIDIA H100 80GB HBM3' -> 'H100-80GB'. Where the name has no size, the memory's GiB, rounded up."""
    words = [w for w in re.split(r"[\s-]+", name) if w.lower() not in ("nvidia", "amd", "instinct", "tesla", "geforce")]
    sizes = [w for w in words if re.fullmatch(r"\d+GB", w)]
    model = next((w for w in words if re.search(r"\d", w) and w not in sizes), "GPU")
    return re.sub(r"[^\w.-]", "", f"{model}-{sizes[0] if sizes else f'{math.ceil(memory_bytes / 2**30)}GB'}")


def device_name() -> str:
    """The device column of a row."""
    return torch.cuda.get_device_properties(device()).name if device().type == "cuda" else backend().name


def l2_bytes() -> int:
    """Size of the cache that inputs must exceed; 50 MB where the device does not tell."""
    return getattr(torch.cuda.get_device_properties(device()), "L2_cache_size", 0) or 50 << 20


def commit() -> str | None:
    """TRITON_DIST_COMMIT, or git's word, with -dirty where files differ; None where neither is there."""
    given = os.environ.get("TRITON_DIST_COMMIT")
    return given or _run("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12",
                         "--exclude=*")


def _smi(query: str) -> list:
    text = _run("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits")
    return text.splitlines() if text else []


def _clocks() -> list:
    """A dict of MHz, watt and degrees for each GPU, as they are when asked."""
    return [dict(zip(_CLOCKS.split(","), (value.strip() for value in line.split(",")))) for line in _smi(_CLOCKS)]


def _link() -> str | None:
    """How GPU 0 reaches the others, by the driver's matrix: such as 'NV18 NV18 NV18'."""
    rows = [line.split() for line in (_run("nvidia-smi", "topo", "-m") or "").splitlines() if line.startswith("GPU0")]
    return " ".join(word for word in rows[-1] if re.fullmatch(r"NV\d+|PIX|PXB|PHB|NODE|SYS", word)) if rows else None


def _nccl() -> str | None:
    try:
        version = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError):
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _triton() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return triton.__version__


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _first(values: list) -> Any:
    return values[0] if values else None

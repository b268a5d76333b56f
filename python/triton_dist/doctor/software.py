# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Versions: of what triton_dist stands on, of what a vendor brings, and of what may be installed beside it."""
import ctypes.util
import glob
import importlib.metadata
import importlib.util
import os
import re
import subprocess
from pathlib import Path

from triton_dist.doctor.report import BAD, NOTE, OK, WARN, Finding
from triton_dist.runtime.versions import PYTHON, TORCH, TRITON, installed, parse


def supported() -> list[Finding]:
    """Python, torch and triton against the ranges that triton_dist is made for."""
    found, lines = installed(), []
    for item in (PYTHON, TORCH, TRITON):
        version = found[item.name]
        problem = item.problem(version) if version else "missing"
        status = OK if not problem else BAD if parse(version) < item.least else WARN
        lines.append(Finding(item.name, f"{version or 'missing'}  (supported: {item})", status, item.remedy() if problem else ""))
    return lines


def package(name: str, purpose: str, extra: str, needed: bool = False) -> Finding:
    """A Python package by the name it is imported by."""
    if importlib.util.find_spec(name) is None:
        return Finding(name, f"missing; {purpose}", BAD if needed else NOTE, f"pip install 'triton_dist[{extra}]'")
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = "installed"
    return Finding(name, f"{version}; {purpose}")


def toolkit() -> Finding:
    """What torch was built for."""
    import torch
    if torch.version.hip:
        return Finding("ROCm", f"{torch.version.hip}, by torch")
    return Finding("CUDA", f"{torch.version.cuda}, by torch") if torch.version.cuda else Finding(
        "CUDA, ROCm", "none: this torch is built for the CPU", NOTE)


def driver() -> Finding:
    """The kernel driver's version; reading it starts no driver."""
    for place, pattern in (("/proc/driver/nvidia/version", r"Module\s+(?:for \S+\s+)?([\d.]+)"),
                           ("/sys/module/amdgpu/version", r"(\S+)")):
        if os.path.exists(place) and (match := re.search(pattern, Path(place).read_text())):
            return Finding("driver", f"{match[1]}  ({place})")
    told = run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return Finding("driver", told.splitlines()[0]) if told else Finding("driver", "none", NOTE)


def nccl() -> Finding:
    """The collective library inside torch."""
    import torch
    import torch.distributed as dist
    if not dist.is_nccl_available():
        return Finding("NCCL, RCCL", "not in this torch", NOTE)
    version = torch.cuda.nccl.version()
    name = "RCCL" if torch.version.hip else "NCCL"
    return Finding(name, ".".join(map(str, version)) if isinstance(version, tuple) else str(version))


def nvshmem() -> list[Finding]:
    """Host library, device bitcode and Python bindings: what TRITON_DIST_HEAP=nvshmem takes."""
    folders = [folder for name in ("cu12", "cu13") for folder in _nvshmem_folders(name)]
    host = sorted(path for folder in folders for path in glob.glob(f"{folder}/lib/libnvshmem_host.so*"))
    device = sorted(path for folder in folders for path in glob.glob(f"{folder}/lib/libnvshmem_device*.bc"))
    version = next((f"{name} {importlib.metadata.version(name)}" for name in ("nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13")
                    if _has(name)), "")
    bindings = next((f"{name} {importlib.metadata.version(name)}" for name in ("nvshmem4py-cu12", "nvshmem4py-cu13")
                     if _has(name)), "")
    return [
        Finding("NVSHMEM host library", f"{Path(host[0]).name}, {version}".strip(", ") if host else "none", OK if host else NOTE),
        Finding("NVSHMEM device bitcode", ", ".join(Path(path).name for path in device) or "none", OK if device else NOTE),
        Finding("nvshmem4py", bindings or "none", OK if bindings else NOTE),
    ]


def rocshmem() -> list[Finding]:
    """The binding to the host library, and the device bitcode: what TRITON_DIST_HEAP=rocshmem takes. On ROCm, or where named."""
    import torch
    binding, home = os.environ.get("TRITON_DIST_ROCSHMEM"), os.environ.get("ROCSHMEM_HOME") or os.environ.get("ROCM_PATH")
    if not (torch.version.hip or binding or home):
        return []
    found = binding or ctypes.util.find_library("tdist_rocshmem")
    device = sorted(glob.glob(f"{home or '/opt/rocm'}/lib/librocshmem_device_*.bc"))
    missing = binding is not None and not os.path.exists(binding)
    return [
        Finding("rocSHMEM binding", f"{binding}, which does not exist" if missing else found or "none",
                BAD if missing else OK if found else NOTE,
                "build it with shmem/rocshmem_bind/build.sh" if missing or not found else ""),
        Finding("rocSHMEM device bitcode", ", ".join(Path(path).name for path in device) or "none", OK if device else NOTE),
    ]


def _nvshmem_folders(name: str) -> list[str]:
    try:
        files = importlib.metadata.files(f"nvidia-nvshmem-{name}") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = {str(Path(str(file.locate())).parents[1]) for file in files if file.name.startswith("libnvshmem_host.so")}
    home = os.environ.get("NVSHMEM_HOME")
    return sorted(found) + ([home] if home else [])


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def run(*command: str) -> str:
    """Output of a command; '' where there is none or it fails or takes more than 20 seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

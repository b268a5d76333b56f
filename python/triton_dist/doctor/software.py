# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Versions: of what triton_dist stands on, of what a vendor brings, and of what may be installed beside it."""
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
    return Finding("NCCL", ".".join(map(str, version)) if isinstance(version, tuple) else str(version))


def nvshmem() -> list[Finding]:
    """Host library, device bitcode and Python bindings. No heap provider uses them yet, so absence is no fault."""
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

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The examination: every section guarded, so that what fails is a line of the report and not its end."""
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Mapping

from triton_dist.doctor import software, variables
from triton_dist.doctor.report import BAD, NOTE, OK, WARN, Finding, Report
from triton_dist.runtime.backend import device_nodes
from triton_dist.runtime.console import printable
from triton_dist.runtime.folders import own_cache, triton_cache, unwritable

Trial = Callable[..., dict]
_DRIVER = ("install the vendor's driver, or show the devices to this container (docker: --gpus all; ROCm: --device /dev/kfd "
           "/dev/dri)")

_AMD = ("gfx90a", "gfx942", "gfx950")               # what kernels are compiled for in the tests
_TOPOLOGY = {"nvidia": ("nvidia-smi", "topo", "-m"), "amd": ("rocm-smi", "--showtopotype")}
_RENUMBER = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")      # then the tool's numbers are others


def examine(environ: Mapping[str, str], trial: Trial) -> Report:
    """The whole report. trial: doctor.trials.attempt, or a stand-in for it."""
    report, emulator = Report(), dict(ranks=2, TRITON_DIST_BACKEND="emulator")
    with ThreadPoolExecutor() as pool:              # importing torch takes seconds, in each trial: they run beside each other
        early = {"chosen": pool.submit(trial, "chosen", seconds=60),      # a broken driver may never answer
                 "gpus": pool.submit(trial, "gpus") if device_nodes() else None,
                 "emulator": pool.submit(trial, "world", TRITON_DIST_WAIT_TIMEOUT="20", **emulator),
                 **{name: pool.submit(trial, name, **emulator) for name in ("memfd", "file")}}
        _examine(report, environ, trial, lambda name: early[name].result() if early[name] else trial(name))
    return report


def _examine(report: Report, environ: Mapping[str, str], trial: Trial, early: Callable[[str], dict]) -> None:
    guarded(report, "backend", lambda: _backend(report, environ, early))
    emulated = report.backend == "emulator"
    for look in (software.supported, software.toolkit, software.driver, software.nccl, software.nvshmem, software.rocshmem,
                 lambda: software.package("numpy", "needed by the emulator and the benchmark", "emulator", needed=emulated),
                 lambda: software.package("greenlet", "the emulator's programs", "emulator", needed=emulated),
                 lambda: software.package("matplotlib", "pictures of a checked schedule", "plot")):
        guarded(report, "versions", look)
    guarded(report, "GPUs", lambda: _gpus(report, environ, early))
    guarded(report, "symmetric heap, tried", lambda: _heap(report, trial, early, unwritable(environ, emulated)))
    guarded(report, "shell", lambda: shell(environ, emulated))
    guarded(report, "variables that are set", lambda: variables.examine(environ))


def guarded(report: Report, section: str, look: Callable) -> None:
    """Adds what `look` finds, a Finding or several; an error of its own is a finding too."""
    try:
        found = look()
        report.add(section, *(found if isinstance(found, list) else [found]))
    except Exception as error:      # whatever it is, the report goes on and shows it
        report.add(section, Finding("cannot tell", f"{type(error).__name__}: {error}", BAD))


def _backend(report: Report, environ: Mapping[str, str], early: Callable[[str], dict]) -> Finding:
    found = early("chosen")
    if "error" in found:
        report.backend = "emulator"                 # so that the rest of the report says what works without a GPU
        return Finding("unknown", found["error"], BAD, f"set TRITON_DIST_BACKEND to a backend that there is, or {_DRIVER}")
    report.backend = found["backend"]
    asked = environ.get("TRITON_DIST_BACKEND", "").lower()
    if asked and asked != "auto":
        return Finding(report.backend, f"TRITON_DIST_BACKEND={asked}")
    if environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return Finding(report.backend, "TRITON_INTERPRET is set")
    if report.backend != "emulator":
        return Finding(report.backend, "torch sees a GPU")
    if device_nodes():
        return Finding("emulator", "torch sees no GPU, but there are device files of a driver", BAD,
                       "install a torch that is built for this GPU and its driver (python -c 'import torch; torch.cuda.init()' "
                       "says what is wrong), or set TRITON_DIST_BACKEND=emulator")
    return Finding("emulator", "torch sees no GPU")


def _gpus(report: Report, environ: Mapping[str, str], early: Callable[[str], dict]) -> list[Finding]:
    if report.backend == "emulator":
        report.peers = [["", *(f"rank {i}" for i in range(4))],
                        *([f"rank {i}", *(["emulated"] * 4)] for i in range(4))]
        return [Finding("none in use", "ranks are processes on this CPU; streams and copy engines are emulated", NOTE)]
    found = early("gpus")
    if "error" in found:
        return [Finding("devices", found["error"], BAD, _DRIVER)]
    count = len(found["devices"])
    lines = []
    for i, (known, flag) in enumerate(zip(found["devices"], found["stream_memory_ops"])):
        lines.append(Finding(f"GPU {i}", f"{known['name']}, {known['arch']}, {known['memory_gib']} GiB, {known['sms']} SMs"))
        lines.append(Finding("", "stream memory operations: " + (f"no: {flag}" if flag else "work"), NOTE if flag else OK,
                             "ops run unfused here" if flag else ""))
        if report.backend == "amd" and known["arch"].split(":")[0] not in _AMD:
            lines.append(Finding("", f"kernels are compiled for {', '.join(_AMD)} only in the tests", WARN,
                                 "see docs/amd.md for what has been checked"))
    renumbered = any(environ.get(name) for name in _RENUMBER)
    links = {} if renumbered else _links(software.run(*_TOPOLOGY[report.backend])) if report.backend in _TOPOLOGY else {}
    report.peers = [["", *(f"GPU {j}" for j in range(count))]]
    for i in range(count):
        report.peers.append([f"GPU {i}", *("self" if i == j else (links.get((i, j)) or "yes") if found["access"][i][j] else "no"
                                           for j in range(count))])
    return lines or [Finding("devices", "none visible", BAD, _DRIVER)]


def _links(topology: str) -> dict:
    """{(i, j): "NV18" or "XGMI"} of the matrix that the vendor's tool prints."""
    text = re.sub(r"\x1b\[[\d;]*m", "", topology)
    rows = {int(match[1]): line.split()[1:] for line in text.splitlines() if (match := re.match(r"GPU(\d+)\s", line.lstrip()))
            and not re.match(r"GPU\d+\s+GPU\d+", line.lstrip())}
    return {(i, j): row[j] for i, row in rows.items() for j in range(min(len(rows), len(row))) if row[j] not in ("X", "0")}


def shell(environ: Mapping[str, str], emulated: bool) -> list[Finding]:
    """Where a command is started: folders that are written to, the working directory, the terminal."""
    lines = []
    for line in unwritable(environ, emulated):
        problem, remedy = line.split("; ", 1)
        lines.append(Finding("caches", problem, BAD, remedy))
    if not lines:
        lines.append(Finding("caches", f"{triton_cache(environ)}, {own_cache(environ)}"))
    try:
        lines.append(Finding("working directory", os.getcwd()))
    except FileNotFoundError:
        lines.append(Finding("working directory", "it has been deleted", BAD, "cd to another one"))
    signs = printable("✅")
    lines.append(Finding("terminal", f"prints {signs}" if signs else "cannot print signs beyond its encoding; they are left out",
                         OK if signs else NOTE))
    return lines


def _heap(report: Report, trial: Trial, early: Callable[[str], dict], caches: list) -> list[Finding]:
    lines, no_cache = [], "; ".join(caches)
    if report.backend != "emulator":
        count = max(1, len(report.peers) - 1)
        found = trial("world", ranks=count, TRITON_DIST_BACKEND=report.backend, TRITON_DIST_WAIT_TIMEOUT="20")
        what = f"{count} ranks map each other's memory, a kernel on each stores, notifies and waits"
        lines.append(_tried("p2p" if count > 1 else "one GPU", what, found, True,
                            no_cache or "GPUs of one host with peer access are needed: see the matrix above; in containers also "
                            "--ipc=host and NVLink or PCIe without ACS"))
    emulated = report.backend == "emulator"
    lines.append(_tried("emulator", "2 ranks map each other's memory, a kernel on each stores, notifies and waits",
                        early("emulator"), emulated, no_cache or "pip install 'triton_dist[emulator]'"))
    heaps = {name: early(name) for name in ("memfd", "file")}
    works = any("error" not in found for found in heaps.values())
    lines += [_tried(f"  by {name}", "shared between 2 processes", found, emulated and not works,
                     "set TMPDIR to a folder that all ranks can write") for name, found in heaps.items()]
    return lines + [Finding("nvshmem, rocshmem", "not tried; TRITON_DIST_HEAP takes one of them", NOTE)]


def _tried(name: str, what: str, found: dict, needed: bool, remedy: str) -> Finding:
    if "error" in found:
        return Finding(name, f"does not work: {found['error']}", BAD if needed else NOTE, remedy)
    return Finding(name, f"works: {what}")

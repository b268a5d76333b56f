# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The doctor's report, over trials that are answers in a dict, and the real trials in the emulator."""
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launched import python

from triton_dist.doctor import examine, list_variables, software, trials, variables
from triton_dist.doctor.report import BAD, NOTE, OK, WARN
from triton_dist.doctor.variable_table import SECTIONS, VARIABLES

ROOT = Path(__file__).resolve().parents[2]
H100 = dict(name="H100", arch="sm_90", memory_gib=79.1, sms=132)
TOPOLOGY = """\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-7
GPU1\tNV18\t X \tSYS\tPIX\t0-7
GPU2\tSYS\tSYS\t X \tPIX\t0-7
NIC0\tPIX\tPIX\tPIX\t X
"""


def trial(**answers):
    """Answers by name of the trial; {} is success."""
    asked = []

    def run(name, ranks=1, seconds=90, **environ):
        asked.append((name, ranks, environ.get("TRITON_DIST_BACKEND")))
        answer = answers.get(name, {})
        return answer(environ) if callable(answer) else answer

    run.asked = asked
    return run


def line(report, name):
    return next(f for f in report.findings() if f.name.strip() == name)


def gpus(count, access=None, flags=None):
    return dict(devices=[H100] * count, access=access or [[True] * count] * count, stream_memory_ops=flags or [""] * count)


@pytest.fixture
def nvidia(monkeypatch):
    """What a machine with three GPUs answers; `nvidia(environ, name=answer)` examines it."""
    monkeypatch.setattr(software, "run", lambda *command: TOPOLOGY if "topo" in command else "580.1")
    return lambda environ=None, **answers: examine.examine(
        environ or {}, trial(**{"chosen": {"backend": "nvidia"}, "gpus": gpus(3), **answers}))


def test_three_gpus_that_all_reach_each_other(nvidia):
    report = nvidia()
    assert (report.backend, report.exit_code) == ("nvidia", 0)
    assert [f.value for f in report.sections["GPUs"][::2]] == ["H100, sm_90, 79.1 GiB, 132 SMs"] * 3
    assert report.peers == [["", "GPU 0", "GPU 1", "GPU 2"], ["GPU 0", "self", "NV18", "SYS"],
                            ["GPU 1", "NV18", "self", "SYS"], ["GPU 2", "SYS", "SYS", "self"]]
    assert line(report, "p2p").status == OK
    assert "  GPU 1  NV18   self   SYS" in report.to_text().splitlines() and "nothing to fix" in report.to_text()


def test_devices_that_are_renumbered_have_no_link_names(nvidia):
    assert nvidia({"CUDA_VISIBLE_DEVICES": "4,5,6"}).peers[1] == ["GPU 0", "self", "yes", "yes"]


ROCM_TOPOLOGY = """
============================ ROCm System Management Interface ============================
================================ Link Type between two GPUs ================================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            XGMI
GPU2   PCIE         XGMI         0
================================== End of ROCm SMI Log ===================================
"""
MI300X = dict(name="AMD Instinct MI300X", arch="gfx942:sramecc+:xnack-", memory_gib=191.5, sms=304)


def amd(monkeypatch, device=MI300X, environ=None):
    """The report on a machine with three AMD GPUs."""
    monkeypatch.setattr(software, "run", lambda *command: ROCM_TOPOLOGY if command[0] == "rocm-smi" else "")
    known = dict(gpus(3), devices=[device] * 3)
    return examine.examine(environ or {}, trial(chosen={"backend": "amd"}, gpus=known))


def test_three_amd_gpus(monkeypatch):
    report = amd(monkeypatch)
    assert (report.backend, report.exit_code) == ("amd", 0)
    assert report.peers[1:] == [["GPU 0", "self", "XGMI", "PCIE"], ["GPU 1", "XGMI", "self", "XGMI"],
                                ["GPU 2", "PCIE", "XGMI", "self"]]
    assert "gfx942" in report.to_text() and "only in the tests" not in report.to_text()
    assert amd(monkeypatch, environ={"ROCR_VISIBLE_DEVICES": "4,5,6"}).peers[1] == ["GPU 0", "self", "yes", "yes"]


def test_an_amd_gpu_that_kernels_were_never_compiled_for_is_told(monkeypatch):
    report = amd(monkeypatch, dict(MI300X, arch="gfx1100"))
    assert report.exit_code == 0 and "compiled for gfx90a, gfx942, gfx950 only in the tests" in report.to_text()


def test_rocshmem_is_looked_for_where_it_is_named(monkeypatch, tmp_path):
    for name in ("TRITON_DIST_ROCSHMEM", "ROCSHMEM_HOME", "ROCM_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert software.rocshmem() == []
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "librocshmem_device_gfx942.bc").touch()
    monkeypatch.setenv("ROCSHMEM_HOME", str(tmp_path))
    binding, bitcode = software.rocshmem()
    assert (binding.status, bitcode.status, bitcode.value) == (NOTE, OK, "librocshmem_device_gfx942.bc")
    monkeypatch.setenv("TRITON_DIST_ROCSHMEM", str(tmp_path / "gone.so"))
    assert software.rocshmem()[0].status == BAD and "does not exist" in software.rocshmem()[0].value
    (tmp_path / "gone.so").touch()
    assert software.rocshmem()[0].status == OK


def test_a_pair_that_cannot_reach_each_other_and_a_heap_that_fails(nvidia):
    access = [[True, True, False], [True, True, True], [False, True, True]]
    report = nvidia(gpus=gpus(3, access), world=lambda env: {} if env["TRITON_DIST_BACKEND"] == "emulator" else
                    {"error": "UnsupportedFeature: cannot map"})
    assert report.peers[1] == ["GPU 0", "self", "NV18", "no"]
    assert line(report, "p2p").status == BAD and "cannot map" in line(report, "p2p").value and line(report, "p2p").remedy
    assert line(report, "emulator").status == OK and report.exit_code == 1


def test_streams_that_cannot_write_flags_are_no_fault(nvidia):
    report = nvidia(gpus=gpus(3, flags=["", "not offered by the driver", ""]))
    assert report.exit_code == 0 and "stream memory operations: no: not offered by the driver" in report.to_text()


def test_a_driver_that_never_answers_is_a_finding(nvidia):
    report = nvidia(chosen={"error": "did not end within 30 seconds"})
    assert report.exit_code == 1 and "did not end within 30 seconds" in report.to_text()
    assert line(report, "emulator").status == OK, "the rest is examined all the same"
    report = nvidia(gpus={"error": "ended with code -11: Segmentation fault"})
    assert report.exit_code == 1 and "Segmentation fault" in report.to_text()


def test_device_files_without_a_gpu_in_torch(monkeypatch):
    monkeypatch.setattr(examine, "device_nodes", lambda: True)
    report = examine.examine({}, trial(chosen={"backend": "emulator"}))
    assert report.exit_code == 1 and "built for this GPU" in report.to_text()
    report = examine.examine({"TRITON_DIST_BACKEND": "emulator"}, trial(chosen={"backend": "emulator"}))
    assert report.exit_code == 0, "asked for"


def test_the_emulator_needs_greenlet_and_one_way_to_share_memory(monkeypatch):
    find = software.importlib.util.find_spec
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: None if name == "greenlet" else find(name))
    report = examine.examine({}, trial(chosen={"backend": "emulator"}))
    assert line(report, "greenlet").status == BAD and "pip install 'triton_dist[emulator]'" in report.to_text()
    monkeypatch.setattr(software.importlib.util, "find_spec", find)
    broken = {"error": "no"}
    assert examine.examine({}, trial(chosen={"backend": "emulator"}, memfd=broken)).exit_code == 0
    assert examine.examine({}, trial(chosen={"backend": "emulator"}, memfd=broken, file=broken)).exit_code == 1
    assert examine.examine({}, trial(chosen={"backend": "emulator"}, world=broken)).exit_code == 1


def test_a_probe_that_raises_is_shown_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setattr(software, "nvshmem", lambda: 1 / 0)
    report = examine.examine({}, trial(chosen={"backend": "emulator"}))
    assert "ZeroDivisionError: division by zero" in report.to_text() and line(report, "emulator").status == OK


@pytest.mark.parametrize("name, found, status", [("triton", "3.5.0", BAD), ("torch", "", BAD), ("triton", "3.11.0", WARN),
                                                 ("torch", "2.12.1+rocm7", OK)])
def test_versions_outside_the_range(monkeypatch, name, found, status):
    monkeypatch.setattr(software, "installed", lambda: {"Python": "3.12.0", "torch": "2.11.0", "triton": "3.6.0", name: found})
    finding = next(f for f in software.supported() if f.name == name)
    assert finding.status == status and bool(finding.remedy) == (status != OK)


# -- variables ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name, good, bad", [
    ("TRITON_DIST_BACKEND", ["nvidia", "AUTO"], ["cuda", "gpu"]),
    ("TRITON_DIST_HEAP_SIZE", ["2G", "512m", "1GiB", "1.5g", "100000"], ["2T", "-1G", "big", "G"]),
    ("TRITON_DIST_WAIT_TIMEOUT", ["0", "2.5"], ["-1", "soon", "nan", "inf"]),
    ("TRITON_DIST_EMULATOR_MODE", ["late"], ["slow"]),
    ("TRITON_DIST_EMULATOR_SEED", ["-3", "7"], ["1.5"]),
    ("TRITON_DIST_EMULATOR_SMS", ["1"], ["0"]),
    ("CUDA_DEVICE_MAX_CONNECTIONS", ["1", "32"], ["many"]),
    ("TRITON_DIST_CACHE_DIR", ["~nobody/x"], [f"{__file__}/x"]),
    ("TRITON_DIST_PYTHON", [sys.executable], ["nosuchpython"]),
])
def test_values_that_make_no_sense_are_flagged(name, good, bad):
    for text in good:
        assert variables.examine({name: text})[0].status == OK, text
    for text in bad:
        finding = variables.examine({name: text})[0]
        assert finding.status == (BAD if name.startswith("TRITON_DIST") else WARN) and finding.remedy, text


def test_misspelt_variables_and_half_a_launcher_are_flagged():
    found = {f.name: f for f in variables.examine({"TRITON_DIST_HEAPSIZE": "2G", "RANK": "0", "WORLD_SIZE": "2"})}
    assert "nothing reads it" in found["TRITON_DIST_HEAPSIZE"].value
    assert variables.examine({"RANK": "0"})[-1].value == "set without WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
    assert variables.examine({})[0].status == NOTE


def test_the_page_of_variables_is_what_its_script_writes(tmp_path):
    script = ROOT / "docs" / "write_environment.py"
    python(str(script), str(tmp_path / "page.md")).check_returncode()
    written = (tmp_path / "page.md").read_text()
    assert (ROOT / "docs" / "environment.md").read_text() == written, "write it again: python docs/write_environment.py"
    assert set(re.findall(r"^\| `(\w+)`", written, re.M)) == set(VARIABLES)


def test_env_shows_values_effects_and_what_is_wrong(monkeypatch, capsys):
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "a lot")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(ROOT))
    assert list_variables.main(["--set", "TRITON_CACHE_DIR"]) == 1, "another one is wrong"
    assert f"TRITON_CACHE_DIR  {ROOT}\n" in capsys.readouterr().out
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "64M")
    assert list_variables.main([]) == 0
    text = capsys.readouterr().out
    assert "TRITON_DIST_HEAP_SIZE  64M\n" in text and "(unset: the device's)" in text and all(name in text for name in VARIABLES)
    assert "`" not in text and "](" not in text
    assert list_variables.main(["no such thing"]) == 2 and "no variable has" in capsys.readouterr().err
    assert "! expected a positive size" in list_variables.listing({"TRITON_DIST_HEAP_SIZE": "a lot"}, "HEAP_SIZE")


def test_tritons_variables_are_tritons():
    """Each is one that its knobs read, or a word of its compiled part."""
    import triton
    knobs = Path(triton.knobs.__file__).read_text()
    in_the_library = {"MLIR_ENABLE_DUMP", "MLIR_DUMP_PATH", "LLVM_IR_ENABLE_DUMP", "MLIR_ENABLE_TIMING", "LLVM_ENABLE_TIMING",
                      "TRITON_ENABLE_LLVM_DEBUG", "TRITON_LLVM_DEBUG_ONLY", "MLIR_ENABLE_DIAGNOSTICS", "TRITON_REPRODUCER_PATH"}
    by_tool = {"TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"}              # TRITON_{tool}_PATH
    for title, section in SECTIONS.items():
        for variable in section if title.startswith("Of Triton") else ():
            assert f'"{variable.name}"' in knobs or variable.name in in_the_library | by_tool, variable.name


@pytest.mark.full
def test_words_of_tritons_library_are_there():
    import triton
    path = next(Path(triton.__file__).parent.glob("_C/libtriton*.so"))
    import mmap
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as words:
        for name in ("MLIR_ENABLE_DUMP", "MLIR_DUMP_PATH", "LLVM_IR_ENABLE_DUMP", "MLIR_ENABLE_TIMING", "LLVM_ENABLE_TIMING",
                     "TRITON_ENABLE_LLVM_DEBUG", "TRITON_LLVM_DEBUG_ONLY", "MLIR_ENABLE_DIAGNOSTICS", "TRITON_REPRODUCER_PATH"):
            assert words.find(name.encode()) >= 0, name


# -- trials ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("script, words", [
    ("sleep 60", "did not end within 0.5 seconds"),
    ("kill -SEGV $$", "ended with code -11"),
    ("echo some text; echo RuntimeError: no luck; exit 3", "ended with code 3: RuntimeError: no luck"),
    ('echo \'triton_dist-doctor:{"error": "told"}\'; exit 1', "told"),
])
def test_a_trial_that_hangs_or_dies_is_an_error(monkeypatch, tmp_path, script, words):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(trials.sys, "executable", str(program))
    begun = time.monotonic()
    assert words in trials.attempt("world", seconds=0.5 if "sleep" in script else 20)["error"]
    assert time.monotonic() - begun < 10


@pytest.mark.full
def test_the_command_on_this_machine():
    """For real: every trial of the emulator, as JSON."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    environment.update(TRITON_DIST_BACKEND="emulator", PYTHONPATH=f"{ROOT / 'python'}:{os.environ.get('PYTHONPATH', '')}")
    done = subprocess.run([sys.executable, "-m", "triton_dist", "doctor", "--json"], env=environment, capture_output=True,
                          text=True, timeout=120, check=False)
    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] == 0, done.stdout
    heaps = {f["name"].strip(): f for f in report["sections"]["symmetric heap, tried"]}
    assert all(heaps[name]["status"] == OK for name in ("emulator", "by memfd", "by file")), heaps
    assert report["backend"] == "emulator" and report["peers"][1][1:] == ["emulated"] * 4

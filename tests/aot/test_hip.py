# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A library's code for AMD devices on a mock of HIP's driver; no AMD device has run it."""

import os
import shutil
import struct
import subprocess
import sys
from functools import partial

import pytest
from aot_mock import HERE, HIP_INCLUDE, Mock, compile_c, parameters

from triton_dist.aot.library import LIBRARY


@pytest.fixture(scope="module")
def hip(library, tmp_path_factory):
    """Runs Python on the library, where HIP's driver is the only one."""
    driver = tmp_path_factory.mktemp("hip") / "libamdhip64.so"
    compile_c(
        driver,
        "-std=gnu11",
        "-O0",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libamdhip64.so",
        "-w",
        "-Werror=incompatible-pointer-types",
        f"-I{HIP_INCLUDE}",
        HERE / "mock_hip.c",
    )
    return partial(Mock(driver).python, library=library)


def build(driver):
    compile_c(driver, "-std=gnu11", "-O0", "-shared", "-fPIC", f"-Wl,-soname,{driver.name}", "-w", f"-I{HIP_INCLUDE}",
              HERE / "mock_hip.c")


@pytest.mark.parametrize("loaded", [True, False])
def test_the_copy_of_a_process_is_taken_or_the_one_of_the_system_whatever_its_number(library, tmp_path, loaded):
    """torch has a copy of its own, whose streams another one would not know; without headers no file is without a number."""
    system, torchs = tmp_path / "system" / "libamdhip64.so.7", tmp_path / "torch" / "libamdhip64.so.6"
    for driver in (system, torchs):
        driver.parent.mkdir()
    build(system)
    shutil.copy(system, torchs)                 # with another file's name inside, as wheels have it
    if loaded:
        shutil.copy(system, system.with_suffix(""))
    code = ("import ctypes, sys\n"
            f"ctypes.CDLL({str(torchs)!r}) if {loaded} else None\n"
            f"library = ctypes.CDLL({str(library / LIBRARY)!r})\n"
            "assert library.tdist_set_world(None, 0) == 0\n"
            "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libamdhip64' in line})")
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "LD_LIBRARY_PATH": str(system.parent)})
    assert done.stdout.split() == [str(torchs if loaded else system)], done.stdout + done.stderr


def test_kernels_are_loaded_and_launched_with_64_lanes_a_warp(hip):
    done = hip(
        """
lib.launch("add_fp32", 0x99, [0x1000, 0x2000, 0x3000, 4096])
lib.launch("fill", 0, [0x100, 100000])
print(code(lib.launch, "fill_in_clusters", 0, [0x100, 5], grid=(1,)))
print(code(lib.launch, "who_am_i", 0, [0x100, 0x200], grid=(1,)))
from triton_dist.runtime.context import Context
lib.set_world(Context(rank=1, world_size=2, bases=[1, 2]).pack())
lib.launch("who_am_i", 0, [0x100, 0x200], grid=(1,))
""",
        TDIST_MOCK_PARAMS="2",
    )
    launches = [line for line in done.calls if "Launch" in line]
    assert launches[0].startswith("hipModuleLaunchKernel add_kernel grid=4 block=256") and "stream=0x99" in launches[0]
    assert parameters(launches[0]) == [struct.pack("<Q", 0x1000), struct.pack("<Q", 0x2000)]
    assert launches[1].startswith("hipModuleLaunchCooperativeKernel fill grid=304 block=256"), (
        "as many as there are compute units"
    )
    first, second = done.out.splitlines()
    assert first.startswith("(2, 'NOT_BUILT") and second.startswith("(7, 'NO_WORLD")
    assert len(launches) == 3 and done.named("hipMemcpyHtoDAsync 560")


def test_descriptors_are_taken_apart(hip):
    import triton

    more = [] if triton.__version__.startswith("3.6") else [0]
    done = hip(
        """
import torch
lib.launch("copy_box", 0, [torch.empty(128, 256, dtype=torch.bfloat16)] * 2 + [64], grid=(2,))
""",
        TDIST_MOCK_PARAMS=str(2 * (10 + len(more)) + 3),
    )
    (launch,) = [line for line in done.calls if "Launch" in line]
    found = [struct.unpack("<q", word)[0] for word in parameters(launch)]
    one = [128, 256, 256, 1, 0, *more, 128, 256, 256, 1]
    assert found[1 : 1 + len(one)] == one and found[2 + len(one) : 2 + 2 * len(one)] == one and found[-3:] == [64, 0, 0]


def test_another_architecture_has_no_kernel(hip):
    done = hip('print(code(lib.launch, "add_fp32", 0, [0x1000, 0x2000, 0x3000, 4096]))', TDIST_MOCK_GFX="gfx90a")
    assert done.out.startswith("(3, 'WRONG_ARCH") and "gfx90a" in done.out

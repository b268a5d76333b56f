# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A library of the kernels beside this file, and a driver that records: built once a session, without a GPU."""

from pathlib import Path

import pytest
from aot_mock import CURRENT_DEVICE, HERE, INCLUDE, KERNELS, TARGETS, Mock, compile_c


@pytest.fixture(scope="session", autouse=True)
def _all_have_own_caches(own_caches):
    """So has every test of this folder."""


@pytest.fixture(scope="session")
def mock(tmp_path_factory) -> Mock:
    driver = tmp_path_factory.mktemp("mock") / "libcuda.so.1"
    compile_c(
        driver,
        "-std=gnu11",
        "-O0",
        "-g",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{INCLUDE}",
        HERE / "mock_cuda.c",
        "-lpthread",
    )
    return Mock(driver, CURRENT_DEVICE)


@pytest.fixture(scope="session")
def library(own_caches, tmp_path_factory) -> Path:
    """The library's folder, built by the command."""
    from triton_dist.aot.command import main

    folder = tmp_path_factory.mktemp("aot") / "library"
    assert (
        main(
            [
                *(f"{HERE / 'aot_kernels.py'}:{name}" for name in KERNELS),
                "--target",
                TARGETS,
                "--out",
                str(folder),
                "-j",
                "1",
            ]
        )
        == 0
    )
    return folder

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The folder of a library: when it is written, when it is replaced, and what is left alone."""

import os

import pytest
from aot_mock import HERE

from triton_dist.aot.library import LIBRARY, write


def test_a_library_stays_until_another_one_is_there(tmp_path, capsys):
    """Also where the C compiler fails; and a folder that is a link stays one."""
    from triton_dist.aot.command import main

    real, linked = tmp_path / "disk", tmp_path / "home"
    real.mkdir()
    linked.symlink_to(real)
    words = [f"{HERE / 'aot_kernels.py'}:fill", "--target", "cuda:80", "--out", str(linked), "-j", "1"]
    assert main(words) == 0 and linked.is_symlink() and (real / LIBRARY).exists()
    before = (real / LIBRARY).stat().st_ino
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nhead -c 200000 /dev/zero | tr '\\0' x\nexit 1\n")
    broken.chmod(0o755)
    assert main([*words, "-j", "4", "--compiler", str(broken)]) == 1 and "xxx" in capsys.readouterr().err
    assert (real / LIBRARY).stat().st_ino == before and [path.name for path in tmp_path.iterdir()].count(".disk") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cc", "disk", "home"], "nothing is left behind"
    assert main([*words, "--compiler", "no-such-compiler -O1"]) == 2 and "found no 'no-such-compiler" in capsys.readouterr().err
    assert main([*words, "--compiler", "env cc"]) == 0 and (real / LIBRARY).stat().st_ino != before


def test_a_library_is_back_where_another_one_cannot_take_its_place(tmp_path, monkeypatch):
    write(folder := tmp_path / "library", {})
    (folder / "mark").touch()
    replace, moves = os.replace, []

    def interrupted(a, b):
        moves.append(b)
        if len(moves) == 2:
            raise KeyboardInterrupt
        replace(a, b)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(folder, {})
    assert (folder / "mark").exists() and [path.name for path in tmp_path.iterdir()] == ["library"]


def test_a_folder_of_something_else_is_left_alone(tmp_path, capsys):
    from triton_dist.aot.command import main

    (tmp_path / "precious").write_text("mine")
    assert (
        main([f"{HERE / 'aot_kernels.py'}:fill", "--target", "cuda:80", "--out", str(tmp_path), "--compiler", "none"]) == 2
    )
    assert (tmp_path / "precious").read_text() == "mine" and "another with --out" in capsys.readouterr().err


def test_an_architecture_that_no_kernel_is_for_is_refused(tmp_path, capsys):
    from triton_dist.aot.command import main

    assert main(["triton_dist.aot.ours:gemm_rs", "--target", "cuda:80", "--out", str(tmp_path / "one")]) == 2
    assert "none of these kernels" in capsys.readouterr().err and not (tmp_path / "one").exists()

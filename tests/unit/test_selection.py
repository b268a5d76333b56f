# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which items run every time (tests/conftest.py): of each family one mode and two sizes, the same in each run; mutants all."""
import re
from pathlib import Path

import pytest
from conftest import here
from launched import python

TESTS = Path(__file__).resolve().parents[1]
FILE = '''
import pytest

@pytest.mark.parametrize("mode", ["eager", "random", "late", "skew", "priority", "pct", "round-robin"])
@pytest.mark.parametrize("call", [print, object(), 3])
def test_modes(call, mode):
    pass

@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("m, n", [(1, 2), (1, 3), (2, 2), (2, 3)])
@pytest.mark.parametrize("bias", [False, pytest.param(True, marks=pytest.mark.full)])
def test_products(dtype, m, n, bias):
    pass

@pytest.mark.every("world")
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_every_world(world):
    pass

@pytest.mark.one
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_one(world, dtype):
    pass

@pytest.mark.every("kernel", "target")
@pytest.mark.parametrize("kernel", ["gather", "reduce"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_pair(kernel, target, dtype):
    pass

@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_worlds(world):
    pass

@pytest.mark.parametrize("mode", ["flat", "steep"])
def test_modes_of_something_else(mode):
    pass

@pytest.mark.parametrize("mode", ["eager", "random", "late"])
def test_mutant(mode):
    pass
'''


def selected(folder, *words):
    done = python("-m", "pytest", "--co", "-q", *words, "-c", str(folder / "pytest.ini"), str(folder), cwd=folder)
    done.check_returncode()
    return sorted(line.split("::")[1] for line in done.stdout.splitlines() if "::" in line)


def write(folder):
    marks = "    full: all\n    every(*names): these\n    one: one\n"
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\nmarkers =\n{marks}")
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "test_some.py").write_text(FILE)


@pytest.mark.full
def test_each_run_has_the_same_items(tmp_path):
    write(tmp_path)
    assert selected(tmp_path, "-m", "not full") == selected(tmp_path, "-m", "not full")


def test_a_few_items_of_each_test_have_all_values(tmp_path):
    write(tmp_path)
    found = selected(tmp_path, "-m", "not full")
    items = {}
    for name, words in (re.fullmatch(r"(\w+)\[(.*)\]", item).groups() for item in found):
        items.setdefault(name, []).append(words.split("-"))
    assert len(items["test_modes"]) == 3 and len(items["test_mutant"]) == 3 and len(items["test_modes_of_something_else"]) == 2
    assert ["2"] in items["test_worlds"] and 1 <= len(items["test_worlds"]) <= 2 and ["8"] not in items["test_worlds"]
    assert len(items["test_every_world"]) == 4 and len(items["test_one"]) == 1
    products = items["test_products"]
    assert len(products) == 4 and {bias for bias, *_ in products} == {"False"}
    assert {(m, n) for _, m, n, _ in products} == {("1", "2"), ("1", "3"), ("2", "2"), ("2", "3")}
    assert {dtype for *_, dtype in products} == {"bf16", "fp16", "fp32"}
    pairs = items["test_every_pair"]
    assert len(pairs) == len({(kernel, target) for _, target, kernel in pairs}) == 5 and len({dtype for dtype, *_ in pairs}) == 2
    assert sorted(target for _, target, _ in pairs) == ["gfx942", "gfx942", "sm_80", "sm_90", "sm_90"]


def test_what_only_compiles_runs_under_one_triton_or_under_both(collected):
    compiling = [item for item in collected if item.path.parent.name == "compile"]
    if not compiling:
        pytest.skip("only where tests that compile are collected")
    under = {item: (here(item, False), here(item, True)) for item in compiling}
    for item, found in under.items():
        assert sum(found) == (2 if item.get_closest_marker("every") else 1), item.nodeid
    assert {(False, True), (True, False), (True, True)} <= {*under.values()} or len(under) < 100


# Mutants that take long, and changes that are no faults: under --full alone.
LONG = {"test_every_mutant_is_reported", "test_mutant_that_few_schedules_show_is_reported",
        "test_a_mutant_that_is_right_is_clean"}


def test_no_mutant_is_lost(collected):
    """Each is reported every time. A mutant that is added raises the number."""
    files = {item.path for item in collected}
    if not files >= {*TESTS.glob("checker/test_*.py"), *TESTS.glob("emulator/test_*mutants.py")}:
        pytest.skip("only where all mutants are collected")
    mutants = [item for item in collected if "mutant" in getattr(item, "originalname", "") and item.originalname not in LONG]
    assert not [item.nodeid for item in mutants if item.get_closest_marker("full")]
    assert len(mutants) >= 285, len(mutants)

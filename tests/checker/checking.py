# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How tests of mutants ask the checker."""
from typing import Any, Callable
from unittest import mock

import pytest
from mutants import edited, load, source_of
from scenarios import overtaking

from triton_dist.checker import check_kernel
from triton_dist.checker.report import Report

MODES = ("late", "random", "skew", "priority")          # in which ranks run apart
SCHEDULES = pytest.mark.parametrize("schedules", [1, pytest.param(12, marks=pytest.mark.full)])     # of what is to be clean


def check_edited(user: Any, kernel: str, edits: list, calls: Callable, folder: Any, schedules: int, under: str | None = None,
                 world: int = 3, **options: Any) -> Report:
    """What is found in `calls` on `world` ranks, where the module `user` has its kernel of that name with `edits` in its source.

    under: the edits are in the source of this module, from which the kernel's module imports.
    """
    if under is not None:
        module = load(under.split(".")[-1], edited(source_of(under), edits), folder)
        edits = [(f"from {under} import", f"from {module.__name__} import")]
    changed = load(kernel, edited(source_of(getattr(user, kernel).__module__), edits), folder)
    with mock.patch.object(user, kernel, getattr(changed, kernel)):
        return check_kernel(calls, world, schedules, modes=MODES, **options)


def clean_on_schedules(calls: list, few: int) -> tuple:
    """(All `calls` are clean on many schedules, the first `few` on one): two tests for a module to have.

    With 2, 4 and 8 ranks test_moe_schedules.py runs as many.
    """
    @pytest.mark.full
    def all_are_clean_on_many_schedules():
        report = check_kernel(lambda: overtaking(calls, slow=0, repeat=1), 3, 100)
        assert report.clean and report.schedules == 100, str(report)

    def some_are_clean():
        report = check_kernel(lambda: overtaking(calls[:few], slow=0, repeat=1), 2, 1, modes=["random"])
        assert report.clean and report.accesses, str(report)
    return all_are_clean_on_many_schedules, some_are_clean


def checks_of(mutants: dict[str, tuple], check: Callable) -> tuple:
    """(The kernel itself is clean, each of `mutants`, (old, new) by name, is not): two tests for a module to have.

    check: from edits, a folder and, for the first one, a number of schedules to a report.
    """
    @SCHEDULES
    def unchanged_it_is_clean(schedules, tmp_path):
        report = check([], tmp_path, schedules)
        assert report.clean and report.accesses, str(report)

    @pytest.mark.parametrize("name", mutants)
    def a_mutant_is_reported(name, tmp_path):
        assert not check([mutants[name]], tmp_path).clean, f"survived: {name}"
    return unchanged_it_is_clean, a_mutant_is_reported

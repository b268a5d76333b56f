# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Figures of the labelled suite, printed at the end of a run."""
from collections import defaultdict

import pytest

TALLY = pytest.StashKey[list]()


@pytest.fixture(scope="session")
def tally(request):
    """Outcomes of the labelled cases: (case, schedules, whether anything was reported, whether a report was right)."""
    return request.config.stash.setdefault(TALLY, [])


def pytest_terminal_summary(terminalreporter, config):
    outcomes = config.stash.get(TALLY, [])
    for schedules in sorted({schedules for _, schedules, _, _ in outcomes}):
        rows = defaultdict(list)
        for case, count, reported, right in outcomes:
            if count == schedules:
                for name in ("all", *case.classes):
                    rows[name].append((case, reported, right))
        terminalreporter.section(f"labelled suite of the checker, {schedules} schedules a case")
        for name in sorted(rows, key=lambda name: (name == "all", name)):
            terminalreporter.line(figures(name, rows[name]))


def figures(name, row):
    """One line: recall = faults found of those there are, precision = right reports of all."""
    faulty = sum(case.faulty for case, _, _ in row)
    found, reports = sum(right for _, _, right in row), sum(reported for _, reported, _ in row)
    return (f"{name:12} recall {share(found, faulty)} ({found} of {faulty} faulty cases found), "
            f"precision {share(found, reports)} ({reports - found} wrong reports, {len(row) - faulty} clean cases)")


def share(part, whole):
    return f"{100 * part / whole:5.1f} %" if whole else "   -   "

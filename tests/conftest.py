# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which items of a test run every time, and which under --full alone.

A test that is repeated over the delivery modes, or over sizes of the world, is one family of items for each combination of its
other parameters. Each time one mode of a family runs, and two sizes of the world. A hash of the family's name picks them, so
that all modes and sizes meet all other parameters somewhere in the suite, and a run repeats. The rest is marked `full`.
Tests of mutants are left alone: they choose their schedules by themselves.

Of what is only compiled, each test takes each kernel with TWO combinations of target, dtype and so on for each vendor. They are
other ones for another Triton.
"""
import re
import zlib

import pytest
import triton
from hypothesis import HealthCheck, settings
from process_state import changes, process_state

from triton_dist.backends.emulator.engine.order import MODES

LARGEST = 8                     # ranks: only under --full
TWO = 2
KERNELS = ("kernel", "name", "which", "hops", "hop")           # parameters by which a test of tests/compile names a kernel

# The time of one example says how busy the machine is. It does not say whether the example is right.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.fixture(autouse=True)
def leaves_the_process_as_it_was():
    """Else another test fails, in some orders only."""
    before = process_state()
    yield
    left = changes(before, process_state())
    assert not left, "\n".join(["left behind by the test (use monkeypatch, or config.patch for settings of torch):", *left])


@pytest.fixture(scope="session")
def own_caches(tmp_path_factory):
    """Every session compiles afresh and writes the device runtime anew: nothing that other runs have left is used."""
    root = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(root / "triton"))
        patch.setenv("TRITON_DIST_CACHE_DIR", str(root / "triton_dist"))
        yield


@pytest.hookimpl(tryfirst=True)         # before pytest looks at -m
def pytest_collection_modifyitems(items):
    for items_alike, values in families(items, "mode").values():
        if set(values) <= set(MODES):
            keep(items_alike, "mode", {picked(items_alike[0], "mode", values)})
    for items_alike, values in families(items, "world").values():
        small = [value for value in values if value != LARGEST] or values
        keep(items_alike, "world", {picked(items_alike[0], "world", small), *({2} & set(small))})
    for items_alike in compiled(items).values():
        for item in sorted(items_alike, key=lambda item: zlib.crc32(f"{item.nodeid} {triton.__version__}".encode()))[TWO:]:
            item.add_marker(pytest.mark.full)


def compiled(items: list) -> dict:
    """{(test, kernel, vendor): items} of tests/compile."""
    found: dict = {}
    for item in items:
        if item.path.parent.name == "compile" and hasattr(item, "callspec") and not item.get_closest_marker("full"):
            kernel = [words(item, key) for key in KERNELS if key in item.callspec.params]
            vendor = str(item.callspec.params.get("target", ""))[:2]
            found.setdefault((item.path.name, item.originalname, *kernel, vendor), []).append(item)
    return found


def families(items: list, name: str) -> dict:
    """{(test, its other parameters): (items, their values of parameter `name`)}, where there are several."""
    found: dict = {}
    for item in items:
        params = getattr(item, "callspec", None) and item.callspec.params
        if params and name in params and "mutant" not in item.nodeid and not item.get_closest_marker("full"):
            members, values = found.setdefault(family(item, name), ([], []))
            members.append(item)
            values.append(params[name])
    return {key: (members, values) for key, (members, values) in found.items() if len({*values}) > 1}


def family(item, name: str) -> tuple:
    """The test, and the words that pytest has for its parameters but `name`."""
    return (item.path.name, item.originalname, *(f"{key}={words(item, key)}" for key in item.callspec.params if key != name))


def words(item, key: str) -> str:
    """A value of a parameter, without addresses, which differ from process to process."""
    value = item.callspec.params[key]
    return getattr(value, "__qualname__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def picked(item, name: str, values: list):
    """One of `values`, by a hash of the family."""
    return values[zlib.crc32("/".join(family(item, name)).encode()) % len(values)]


def keep(items: list, name: str, chosen: set) -> None:
    """Marks the items whose value of `name` has not been chosen."""
    for item in items:
        if item.callspec.params[name] not in chosen:
            item.add_marker(pytest.mark.full)

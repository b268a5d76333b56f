# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which items of a test run every time, and which under --full alone.

A test that is repeated over the delivery modes, or over sizes of the world, is one family of items for each combination of its
other parameters. Each time one mode of a family runs, and two sizes of the world. Of what is left of a test with several
parameters as few items run as show each value of each parameter once. A hash of names picks all these, so that modes, sizes and
other values meet each other somewhere in the suite, and a run repeats. The rest is marked `full`.

`@pytest.mark.every("world")` asks for all values of a parameter, `every("kernel", "dtype")` for all combinations of two, and
`one` for a single item. Of `every("kernel", "target")` each kernel runs for one GPU of each vendor, and some kernel for each
other GPU. Tests of mutants are left alone: they choose their schedules by themselves.

A test that only compiles has one item. It runs under one Triton, the newest or the other, by a hash of its name. Those with
`every` run under both: all their items under the newest, one item under the other.
"""
import gc
import os
import re
import zlib

import launched
import pytest
import triton
from front_end import shown_what_is_new
from hypothesis import HealthCheck, settings
from process_state import changes, process_state

from triton_dist.backends.emulator.engine.order import MODES

gc.disable()                    # while tests are imported: they stay
LARGEST = 8                     # ranks: only under --full
NEWEST = (3, 9)                 # Triton
OF_VENDORS = ("sm_90", "gfx942")
COLLECTED = pytest.StashKey[list]()

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


@pytest.fixture(scope="session", autouse=True)
def front_end(request, shared):
    """Without --full Triton's front end sees no kernel twice with the same values (front_end.py)."""
    if request.config.option.markexpr != "not full":
        yield
        return
    with shown_what_is_new(shared / "shown"), launched.no_longer():
        yield


@pytest.fixture(scope="module")
def few_objects():
    """For modules that run the collector often: it leaves alone what is there now, which would take it 0.2 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that all workers of the session have."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@pytest.fixture(scope="session")
def own_caches(shared):
    """Every session compiles afresh and writes the device runtime anew: nothing that other runs have left is used."""
    root = shared / "caches"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(root / "triton"))
        patch.setenv("TRITON_DIST_CACHE_DIR", str(root / "triton_dist"))
        yield


@pytest.fixture(scope="session")
def collected(request):
    """All items, those that -m leaves out too."""
    return request.config.stash[COLLECTED]


@pytest.hookimpl(tryfirst=True)         # before pytest looks at -m
def pytest_collection_modifyitems(config, items):
    config.stash[COLLECTED] = list(items)
    for items_alike, values in families(items, "mode").values():
        if set(values) <= set(MODES):
            keep(items_alike, "mode", {picked(items_alike[0], "mode", values)})
    for items_alike, values in families(items, "world").values():
        if any("world" in mark.args for mark in items_alike[0].iter_markers("every")):
            continue
        small = [value for value in values if value != LARGEST] or values
        keep(items_alike, "world", {picked(items_alike[0], "world", small), *({2} & set(small))})
    newest = tuple(map(int, triton.__version__.split(".")[:2])) >= NEWEST
    keep_some(items, [item for item in items if here(item, newest)])
    for (path, _), items_alike in of_tests(items).items():
        every = items_alike[0].get_closest_marker("every")
        if items_alike[0].get_closest_marker("one") or path.parent.name == "compile" and not (every and newest):
            keep_some(items_alike, sorted(items_alike, key=drawn)[:1])
        else:
            keep_some(items_alike, covering(items_alike))


def pytest_collection_finish():
    """The collector leaves alone what is imported: the modules of tests, torch and Triton. So ended worlds go soon.

    It looks for garbage less often than usual: launches and syntax trees make many objects, of which few are in cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20000, 10, 10)
    gc.enable()


def pytest_sessionfinish():
    """Once is enough: pytest runs the collector five times more, and Python when it ends."""
    gc.collect()
    gc.freeze()


def here(item, newest: bool) -> bool:
    """Whether an item's test runs under this Triton at all."""
    if item.path.parent.name != "compile" or item.get_closest_marker("every"):
        return True
    return zlib.crc32(f"{item.path.name}/{item.originalname}".encode()) % 2 == newest


def of_tests(items: list) -> dict:
    """{test: its items that run so far}, of tests with parameters that are not of mutants."""
    found: dict = {}
    for item in items:
        if hasattr(item, "callspec") and "mutant" not in item.originalname and not item.get_closest_marker("full"):
            found.setdefault((item.path, item.originalname), []).append(item)
    return found


def covering(items: list) -> list:
    """A few items of a test that have all values of its parameters among them."""
    values = {item: values_of(item) for item in sorted(items, key=drawn)}
    left, found = set().union(*values.values()), []
    while left:
        best = max(values, key=lambda item: len(left & values[item]))
        found.append(best)
        left -= values[best]
    return found


def values_of(item) -> set:
    """(names, which values) for each `parametrize`, fixture with parameters, and `every` of an item."""
    params = item.callspec.params
    groups = [re.split(r"\W+", names) if isinstance(names, str) else names
              for names in (mark.args[0] for mark in item.iter_markers("parametrize"))]
    groups += [[name] for name in params if not any(name in group for group in groups)]
    groups += [mark.args for mark in item.iter_markers("every")
               if mark.args == ("target",) or params.get("target", "sm_90") in OF_VENDORS]
    return {(tuple(names), tuple(id(params[name]) for name in names)) for names in groups}


def keep_some(items: list, chosen: list) -> None:
    """Marks the items that are not among the chosen."""
    kept = set(chosen)
    for item in items:
        if item not in kept:
            item.add_marker(pytest.mark.full)


def drawn(item) -> int:
    """The place of an item in an order that is random, the same in each run, and another one for another Triton."""
    return zlib.crc32(f"{item.nodeid} {triton.__version__}".encode())


def families(items: list, name: str) -> dict:
    """{(test, its other parameters): (items, their values of parameter `name`)}, where there are several."""
    found: dict = {}
    for item in items:
        params = getattr(item, "callspec", None) and item.callspec.params
        if params and name in params and "mutant" not in item.originalname and not item.get_closest_marker("full"):
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

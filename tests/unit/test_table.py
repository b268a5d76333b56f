# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tables of measured times: what is written is read, by whom it may be used, and what becomes of bad files."""
import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_dist.ops import OPS
from triton_dist.ops.calls import decide
from triton_dist.ops.tuning import sources, table
from triton_dist.ops.tuning.table import Choice, Entry, Place, Shape
from triton_dist.runtime.backend import BACKENDS, backend
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.files import locked

PLACE = Place("Some GPU", 4, "4", "3.6.0", "abc")
SHAPE = Shape("ag_gemm", "bfloat16", 2048, 4096, 1024)
WS, WIDE = Choice("ws", GemmConfig(128, 128, 64, 8, 8, 5), 2), Choice("ws", GemmConfig(128, 256, 64, 8, 8, 3))
BY_SMS = Choice("ws", GemmConfig(128, 256, 64, 8, 8, 3), comm_sms=4)
UNFUSED = Choice("unfused")
ENTRY = Entry(PLACE, SHAPE, "2026-01-31", {WS: 0.25, BY_SMS: 0.3, UNFUSED: 0.5}, {WIDE: "rank 1: OutOfResources"})


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "deep" / "tuned.json"
    assert table.read(path) == []
    table.add(path, [ENTRY])
    assert table.read(path) == [ENTRY]


def test_an_entry_replaces_that_of_its_place_and_shape_alone(tmp_path):
    path = tmp_path / "tuned.json"
    others = [replace(ENTRY, place=replace(PLACE, world=2)), replace(ENTRY, shape=replace(SHAPE, m=4096))]
    table.add(path, [ENTRY, *others])
    newer = Entry(PLACE, SHAPE, "2026-02-01", {UNFUSED: 0.4})
    table.add(path, [newer])
    assert {entry.date for entry in table.read(path)} == {"2026-01-31", "2026-02-01"}
    assert sorted(map(str, table.read(path))) == sorted(map(str, [newer, *others]))


def _writer(path, m):
    for n in range(10):
        table.add(path, [replace(ENTRY, shape=replace(SHAPE, m=m, n=n + 1))])


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    path, spawn = tmp_path / "tuned.json", multiprocessing.get_context("fork")
    writers = [spawn.Process(target=_writer, args=(path, m)) for m in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert {(e.shape.m, e.shape.n) for e in table.read(path)} == {(m, n + 1) for m in (1, 2) for n in range(10)}
    assert not list(tmp_path.glob("*.tmp"))


def test_a_lock_that_nobody_gives_back_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_LOCK_SECONDS", 0.05)
    path = tmp_path / "tuned.json"
    with locked(path, 1.0), pytest.raises(OSError, match="another process has held it"):
        table.add(path, [ENTRY])
    table.add(path, [ENTRY])
    assert table.read(path) == [ENTRY]


def _spoilt(change) -> str:
    content = {"format": 1, "entries": [table._record(ENTRY)]}
    change(content)
    return json.dumps(content)


BAD = {
    "cut off": '{"format": 1, "entries": [',
    "no object": "[1, 2]",
    "another program's": '{"settings": {}}',
    "a later format": _spoilt(lambda c: c.update(format=2)),
    "no entries": '{"format": 1}',
    "a size that is a word": _spoilt(lambda c: c["entries"][0].update(m="many")),
    "no device": _spoilt(lambda c: c["entries"][0].pop("device")),
    "a negative time": _spoilt(lambda c: c["entries"][0]["tried"][0].update(ms=-1)),
    "half a tiling": _spoilt(lambda c: c["entries"][0]["tried"][0]["config"].pop("block_m")),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_file_that_is_no_table_is_refused_and_moved_aside(text, tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tuned\.json is no table of measured times: "):
        table.read(path)
    table.add(path, [ENTRY])
    assert table.read(path) == [ENTRY] and (tmp_path / "tuned.json.bad").read_text() == text


def test_a_shape_takes_its_own_figures_before_those_of_its_class():
    near, far = replace(SHAPE, m=1800), replace(SHAPE, m=1500)
    entries = {shape: replace(ENTRY, shape=shape) for shape in (far, near)}
    assert table.find(entries, replace(SHAPE, m=2000)).shape == near
    assert table.find(entries, far).shape == far
    for other in (replace(SHAPE, m=4096), replace(SHAPE, dtype="float16"), replace(SHAPE, op="gemm_rs")):
        assert table.find(entries, other) is None


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=5), st.integers(1, 1 << 20))
def test_the_order_of_a_table_does_not_decide(sizes, m):
    shapes = [replace(SHAPE, m=size) for size in sizes]
    one, other = ({shape: shape for shape in order} for order in (shapes, shapes[::-1]))
    assert table.find(one, replace(SHAPE, m=m)) == table.find(other, replace(SHAPE, m=m))


def test_the_fastest_is_taken_and_of_equals_the_first():
    ways, rule = [WS, WIDE, UNFUSED], (WIDE, "the rule")

    def taken(ms, failed=()):
        entries = {SHAPE: Entry(PLACE, SHAPE, "2026-01-31", ms, dict.fromkeys(failed, "why"))}
        return decide.from_table(ways, rule, SHAPE, entries).choice
    assert taken({WS: 2.0, WIDE: 1.0, UNFUSED: 1.5}) == WIDE
    assert taken({WS: 1.005, WIDE: 1.0, UNFUSED: 1.5}) == WS
    assert taken({WS: 2.0, WIDE: 2.0, UNFUSED: 1.0}) == UNFUSED
    assert taken({UNFUSED: 1.0}, failed=[WS, WIDE]) == UNFUSED
    assert taken({UNFUSED: 1.0}) == WIDE, "figures that do not tell of every method decide nothing"
    assert taken({}, failed=[WS, WIDE, UNFUSED]) == WIDE
    assert taken({Choice("ws", GemmConfig(1, 1, 1, 1, 1, 1)): 0.1, UNFUSED: 1.0}) == UNFUSED, "a tiling that no longer exists"


def test_newer_figures_go_over_older_ones():
    newer = Entry(PLACE, SHAPE, "2026-02-01", {WIDE: 0.2}, {WS: "rank 0: no"})
    assert ENTRY.with_more(newer) == Entry(PLACE, SHAPE, "2026-02-01", {UNFUSED: 0.5, BY_SMS: 0.3, WIDE: 0.2},
                                            {WS: "rank 0: no"})


def test_shipped_tables_can_be_read():
    from importlib import import_module
    from pathlib import Path
    folders = [Path(import_module(name).__file__).parent for name in BACKENDS.values()]
    for path in [path for folder in folders for path in folder.glob("tuned_*.json")]:
        for entry in table.read(path):
            assert entry.ms and entry.place.device and entry.place.world > 1
    assert backend().tables() == ()                     # times of an emulator are nobody's


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.timed])
def test_figures_hold_for_the_files_that_an_ops_kernels_import(op, monkeypatch):
    """For each of them, and for no other op's: a change of all_to_all_vdev leaves figures of GEMMs as they are."""
    version = sources.kernels_version.__wrapped__
    op, name_of_op = OPS[op], op
    first, read = version(op), Path.read_bytes
    assert first == version(op) and len(first) == 12
    of_gemms = "ops/device/gemm.py", "ops/device/packets.py", "ops/exchange/kernels.py", "language/memory.py"
    of_experts = "ops/grouped_gemm/kernels.py", "cores/hopper/grouped_gemm_ws.py"
    others = {"grouped_gemm": of_experts, "dispatch_grouped_gemm": ("ops/ep/device.py", "language/memory.py", *of_experts)}
    used = others.get(name_of_op, of_gemms)
    for name in (f"ops/{name_of_op}/op.py", f"ops/{name_of_op}/kernels.py", *used, "language/sync.py", "language/abi.py",
                 "cores/hopper/hopper_prims.py"):
        monkeypatch.setattr(Path, "read_bytes", lambda path, name=name: read(path) + b"#" * str(path).endswith(name))
        assert version(op) != first, name
    for name in ("all_to_all_vdev/kernels.py", "gemm_ar/kernels.py", "bench/measure.py", "ops/explain.py"):
        monkeypatch.setattr(Path, "read_bytes", lambda path, name=name: read(path) + b"#" * str(path).endswith(name))
        assert version(op) == first, name


def test_figures_of_a_gpu_hold_for_its_device_functions():
    from triton_dist.backends.nvidia.backend import NvidiaBackend
    with mock.patch.object(sources, "backend", lambda: NvidiaBackend.__new__(NvidiaBackend)), \
            mock.patch.object(NvidiaBackend, "core", lambda self, op: None):
        names = {str(path.relative_to(sources.ROOT)) for path in sources.sources(OPS["gemm_rs"])}
    assert {"backends/gpu/common.ll", "backends/nvidia/device.ll", "backends/gpu/device_runtime.py"} <= names


@pytest.mark.parametrize("name, known", [
    ("NVIDIA H100 80GB HBM3", True), ("NVIDIA H200", True), ("NVIDIA H20", False), ("NVIDIA H100 PCIe", False),
    ("NVIDIA GH200 480GB", False)])
def test_rates_are_those_of_the_device_they_were_measured_on(name, known, monkeypatch):
    from triton_dist.backends.nvidia.backend import NvidiaBackend
    monkeypatch.setattr(NvidiaBackend, "device_name", lambda self: name)
    assert (NvidiaBackend.__new__(NvidiaBackend).machine_model() is not None) is known


def test_h100_and_h200_are_alike(monkeypatch):
    from triton_dist.backends.nvidia.backend import NvidiaBackend
    here = NvidiaBackend.__new__(NvidiaBackend)
    monkeypatch.setattr(NvidiaBackend, "device_name", lambda self: "NVIDIA H200")
    assert [here.alike(name) for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe")] == [True, True, False]
    monkeypatch.setattr(NvidiaBackend, "device_name", lambda self: "NVIDIA H100 PCIe")
    assert [here.alike(name) for name in ("NVIDIA H200", "NVIDIA H100 PCIe")] == [False, True]

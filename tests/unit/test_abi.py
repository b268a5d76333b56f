# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The ABI table, the context struct and the device runtimes agree."""
import re
import struct
from dataclasses import replace

import pytest

from triton_dist.backends.gpu.device_runtime import library, render
from triton_dist.language import shmem_abi, sync
from triton_dist.language._call import LIBRARY, STAND_IN
from triton_dist.language._linked import Statement, statement
from triton_dist.language.abi import ROWS, TAKE
from triton_dist.runtime import context, heap

VENDORS = ["nvidia", "amd"]
LLVM = {"int32": "i32", "int64": "i64"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", str(tmp_path))
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("vendor", VENDORS)
def test_every_row_is_defined_with_its_types_and_nothing_else_is_exported(vendor, bounded):
    defined = {}
    for result, symbol, arguments in re.findall(r"^define (i\d+) @(\w+)\((.*)\)", render(vendor, bounded), re.M):
        assert symbol not in defined, f"{symbol} is defined twice"
        defined[symbol] = (result, [argument.split()[0] for argument in arguments.split(",") if argument])
    assert defined == {row.symbol: (LLVM[row.result], [LLVM[ty] for ty in row.args]) for row in ROWS.values()
                       if row.library == LIBRARY and (vendor == "amd" or not row.optional)}


@pytest.mark.parametrize("vendor", VENDORS)
def test_context_and_record_have_the_layout_that_the_host_writes(vendor):
    structs = dict(re.findall(r"^%tdist\.(\w+) = type \{ (.*) \}", render(vendor), re.M))
    formats = {"i32": "i", "i64": "q"}
    fields = structs["context"].replace(f"[{context.MAX_WORLD} x i64]", ", ".join(["i64"] * context.MAX_WORLD))
    assert struct.calcsize("<" + "".join(formats[field] for field in fields.split(", "))) == context.SIZE
    record = "<" + "".join(formats[field] for field in structs["record"].split(", "))
    assert struct.calcsize(record) == context.DIAG_RECORD_SIZE
    raw = struct.pack(record, 1, 3, 7, 4, 0xABC, 9, 8, 1, 2, 3, 31, 5, 0) + bytes(63 * context.DIAG_RECORD_SIZE)
    assert context.unpack_records(raw) == [context.WaitRecord(3, 7, 4, 0xABC, 9, 8, (1, 2, 3), 31, 5)]


@pytest.mark.parametrize("vendor", VENDORS)
def test_rank_minus_one_has_no_base(vendor):
    """With the barrier pad before the bases, symm_at(ptr, -1) was an address in this rank's own heap."""
    text = render(vendor)
    fields = re.search(r"^%tdist\.context = type \{ (.*), \[", text, re.M)[1].split(", ")
    assert {int(n) for n in re.findall(r"@tdist_ctx, i32 0, i32 (\d+), i32 %(?:me|rank)\b", text)} == {len(fields)}
    begin = struct.calcsize("<" + "".join({"i32": "i", "i64": "q"}[field] for field in fields))
    raw = context.Context(1, 2, 11, 12, 13, [14, 15]).pack(16)
    assert struct.unpack_from("<3q", raw, begin - 8) == (0, 14, 15)


def test_world_barrier_pad_has_room_for_every_rank():
    assert sync._PAD_RANKS.value == context.MAX_WORLD and 4 * sync._PAD_FLAGS.value == heap._PAD_FLAGS
    assert 4 * (sync._PAD_FLAGS.value + sync._PAD_RANKS.value) <= heap.RESERVED


def test_library_is_named_by_its_content_and_written_once(tmp_path):
    paths = {library(vendor, bounded) for vendor in VENDORS for bounded in (False, True)}
    assert len(paths) == 4
    assert {str(path) for path in tmp_path.rglob("*.ll")} == paths
    assert not list(tmp_path.rglob("*.tmp"))
    for path in paths:
        with open(path) as file:
            assert file.read() in [render(vendor, bounded) for vendor in VENDORS for bounded in (False, True)]


def test_a_changed_primitive_changes_the_library(tmp_path, monkeypatch):
    from triton_dist.backends.gpu import device_runtime
    before = library("nvidia")
    copy = tmp_path / "language"
    copy.mkdir()
    (copy / "sync.py").write_text("a new select function")
    monkeypatch.setattr(device_runtime, "_LANGUAGE", copy)
    library.cache_clear()
    assert library("nvidia") != before


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_library_states_its_backend_and_what_shmem_calls_take(vendor):
    stated = statement(library(vendor))
    assert stated.backend == vendor and (stated.assembly.get(TAKE) is not None) == (vendor == "nvidia")
    for row in ROWS.values():
        assert (stated.why_not(row.symbol) is not None) == (row.library == shmem_abi.LIBRARY), row.symbol
    assert "set TRITON_DIST_HEAP" in stated.why_not(f"{shmem_abi.LIBRARY}_my_pe")
    assert "no such function" in stated.why_not(f"{shmem_abi.LIBRARY}_putmem_rma_warp"), "a heap would not help"


def test_a_file_that_states_nothing_refuses_nothing(tmp_path):
    (tmp_path / "users.bc").write_bytes(b"BC\xc0\xde")
    for path in (tmp_path / "users.bc", STAND_IN):
        assert statement(str(path)) == Statement() and statement(str(path)).why_not("tdist_shmem_my_pe") is None


def test_a_changed_statement_changes_the_library(monkeypatch):
    from triton_dist.backends.nvidia import device_target
    before = library("nvidia")
    changed = replace(device_target.TARGET, states=replace(device_target.TARGET.states, assembly={TAKE: ("nothing", "r")}))
    monkeypatch.setattr(device_target, "TARGET", changed)
    library.cache_clear()
    assert library("nvidia") != before and statement(library("nvidia")).assembly == {TAKE: ["nothing", "r"]}


@pytest.mark.parametrize("vendor", VENDORS)
def test_only_the_bounded_variant_reads_the_clock_in_waits(vendor):
    polling = r"tdist_wait\w+|tdist_ll_load(?:_pair)?|tdist_sf_take_pair"
    body = re.compile(rf"^define i\d+ @(?:{polling})\(.*?^}}", re.M | re.S)
    plain, bounded = body.findall(render(vendor)), body.findall(render(vendor, True))
    assert len(plain) == len(bounded) == 19
    assert not [text for text in plain if re.search("tdist_(expired|clock_ns|give_up)", text)]
    assert all("tdist_expired" in text and "tdist_give_up" in text for text in bounded)
    for text in bounded:            # reading the clock takes longer than a poll, so a short wait must not do it
        blocks = dict(re.findall(r"^([\w.]+):\n(.*?)(?=^[\w.]+:\n|\Z)", text, re.M | re.S))
        assert [name for name, body in blocks.items() if "tdist_clock_ns" in body] == ["look"]
        assert "and i32 %misses.next, 63" in blocks["miss"] and "label %look, label %spin" in blocks["miss"]

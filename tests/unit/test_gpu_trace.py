# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The GPU side of the recorder without a GPU: which modules get a buffer, and how buffers are read."""
import json
import struct
from types import SimpleNamespace

import pytest
import torch
import triton

from triton_dist.backends.gpu import tracing
from triton_dist.backends.gpu.trace_library import render
from triton_dist.language.trace_abi import CLOCK, EVENT, EVENTS, LAPS, LIBRARY, PROGRAMS, SYMBOL, WORDS
from triton_dist.runtime.environment import traced
from triton_dist.runtime.spans import Span


class Driver:
    def __init__(self):
        self.written = {}

    def module_global(self, module, name):
        return None if module == "unused" else (4096 + module, 16)

    def copy_to_device(self, address, raw, stream):
        self.written[address] = raw


@pytest.fixture
def buffers(monkeypatch):
    """TraceBuffers over host memory, and the hook that a load calls."""
    hooks = SimpleNamespace(kernel_load_end_hook=triton.knobs.HookChain())
    monkeypatch.setattr(tracing, "knobs", SimpleNamespace(runtime=hooks))
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None, wait_stream=lambda other: None)
    cuda = SimpleNamespace(Stream=lambda: stream, current_stream=lambda: stream, synchronize=lambda: None)
    zeros = lambda *size, dtype, device: torch.zeros(*size, dtype=dtype)        # noqa: E731
    monkeypatch.setattr(tracing, "torch", SimpleNamespace(cuda=cuda, zeros=zeros, int64=torch.int64))
    return tracing.TraceBuffers(Driver()), hooks.kernel_load_end_hook


def files(folder, records: bool) -> dict:
    (folder / "k.json").write_text(json.dumps({"extern_libs": [[LIBRARY, "trace.ll"]] if records else []}))
    (folder / "k.cubin").write_bytes(b"\x7fELF" + SYMBOL.encode())
    return {name: str(folder / name) for name in ("k.json", "k.cubin")}


def test_modules_that_record_are_told_where(buffers, tmp_path):
    made, loaded = buffers
    loaded(7, None, "records", files(tmp_path, True), "hash")
    loaded(8, None, "does_not", files(tmp_path, False), "hash")
    loaded("unused", None, "dropped", files(tmp_path, True), "hash")
    (name, buffer), = made._buffers
    assert name == "records" and buffer.shape == (PROGRAMS, len(EVENTS), LAPS, WORDS)
    assert made._driver.written == {4103: struct.pack("<qii", buffer.data_ptr(), PROGRAMS, LAPS)}


def test_whole_spans_are_read_and_cleared(buffers, tmp_path):
    made, loaded = buffers
    loaded(1, None, "records", files(tmp_path, True), "hash")
    buffer = made._buffers[0][1]
    buffer[3, EVENTS.index("mma"), 5] = torch.tensor([100, 140, -2, 0])
    buffer[4, EVENTS.index("wait"), 0, 0] = 90                 # began, and has not ended
    assert made.read(6) == [Span(6, "records", 3, "mma", 5, -2, 100, 140)]
    made.clear()
    assert made.read(6) == []


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_the_library_defines_both_rows_and_the_layout_that_the_host_reads(vendor):
    text = render(vendor)
    assert f"define i32 @{EVENT}(i32 %event, i32 %stop, i32 %lap, i32 %number)" in text and f"define i64 @{CLOCK}()" in text
    assert f"mul i32 %program, {len(EVENTS)}" in text and f"mul i64 %index, {8 * WORDS}" in text
    assert f"@{SYMBOL} = addrspace(4) externally_initialized global" in text and "{{" not in text


def test_the_variable(monkeypatch):
    for text, on in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("TRITON_DIST_TRACE", text)
        assert traced() is on

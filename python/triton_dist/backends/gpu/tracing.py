# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Buffers that kernels record to while a process traces, one for each loaded kernel. Compiled and checked; never run on a GPU."""
import struct
from typing import Any

import torch
from triton import knobs

from triton_dist.backends.gpu.context import holds
from triton_dist.backends.gpu.driver import GpuDriver
from triton_dist.language.trace_abi import EVENTS, LAPS, LIBRARY, PROGRAMS, SYMBOL, WORDS
from triton_dist.runtime.backend import backend
from triton_dist.runtime.spans import Span


class TraceBuffers:
    """Sits in Triton's load hooks, and gives each kernel that records a buffer in device memory."""

    def __init__(self, driver: GpuDriver):
        self._driver = driver
        self._buffers: list[tuple[str, torch.Tensor]] = []
        knobs.runtime.kernel_load_end_hook.add(self._after_load)

    def _after_load(self, module: Any, function: Any, name: str, metadata_group: dict, _hash: str) -> None:
        if not holds(metadata_group, LIBRARY, SYMBOL):
            return
        found = self._driver.module_global(module, SYMBOL)
        if found is None:
            return
        buffer = backend().outside_pools(
            lambda: torch.zeros(PROGRAMS, len(EVENTS), LAPS, WORDS, dtype=torch.int64, device="cuda"))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        raw = struct.pack("<qii", buffer.data_ptr(), PROGRAMS, LAPS)
        self._driver.copy_to_device(found[0], raw, stream.cuda_stream)
        stream.synchronize()                           # `raw` must live until here
        self._buffers.append((name, buffer))

    def clear(self) -> None:
        """Forgets what has been recorded."""
        torch.cuda.synchronize()
        for _, buffer in self._buffers:
            buffer.zero_()
        torch.cuda.synchronize()

    def read(self, rank: int) -> list[Span]:
        """What has been recorded since `clear`, of whole spans. A lap that was recorded twice has its last times."""
        torch.cuda.synchronize()
        spans = []
        for name, buffer in self._buffers:
            words = buffer.cpu()
            for program, event, lap in ((words[..., 0] != 0) & (words[..., 1] != 0)).nonzero().tolist():
                start, stop, number, _ = words[program, event, lap].tolist()
                spans.append(Span(rank, name, program, EVENTS[event], lap, number, start, stop))
        return spans

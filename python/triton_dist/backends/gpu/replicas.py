# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Refuses kernels in which several threads hold the same self-flagged slot.

Triton copies an element to several threads where a block has fewer elements than there are threads. All copies of a load
or a store do the same, which is harmless; but a slot that one thread has taken and emptied never fills for its copy, and
the kernel hangs. The layouts are known once a kernel is compiled, so it is refused before it runs.
"""
import math
import re

from triton_dist.runtime.errors import UnsupportedFeature

_ACCESS = re.compile(r"tdist_sf_(?:store|take_pair)|elementwise_inline_asm .*ld\.relaxed\.sys\.global\.v4\.b32")
_TYPE = re.compile(r"tensor<(\d+)xi\d+, (#[\w.]+(?:<\{[^}]*\}>)?)>")
_NAMED = re.compile(r"^(#\w+) = (#\S+<\{.*\}>)", re.M)


def refuse_replicas(name: str, ttgir: str) -> None:
    """Raises UnsupportedFeature where kernel `name`, as Triton's GPU dialect, accesses a slot by more than one thread."""
    if "tdist_sf_" not in ttgir:
        return
    layouts = dict(_NAMED.findall(ttgir))
    for line in ttgir.splitlines():
        if _ACCESS.search(line):
            found = _TYPE.search(line, line.rindex(" : "))
            if found is not None and _replicates(int(found[1]), layouts.get(found[2], found[2]), layouts):
                raise UnsupportedFeature(
                    f"{name}: sf_store and sf_take of {found[1]} elements, some held by several threads; give the block "
                    "at least as many elements as the kernel has threads (num_warps times 32, or 64 on AMD)")


def _replicates(elements: int, layout: str, layouts: dict) -> bool:
    if layout.startswith("#ttg.slice"):
        dim, parent = re.search(r"dim = (\d+), parent = (#\w+)", layout).groups()
        size, threads, warps = _blocked(layouts.get(parent, ""))
        if not threads or threads.pop(int(dim)) * warps.pop(int(dim)) > 1:
            return bool(threads)
        size.pop(int(dim))
        return elements < math.prod(size + threads + warps)
    if layout.startswith("#ttg.blocked"):
        return elements < math.prod(sum(_blocked(layout), []))
    if layout.startswith("#ttg.linear"):
        bases = re.search(r"lane = \[(.*?)\], warp = \[(.*?)\], block", layout)
        return bases is not None and re.search(r"\[0(?:, 0)*\]", bases[1] + bases[2]) is not None
    return False


def _blocked(layout: str) -> tuple[list, list, list]:
    """(elements of a thread, threads of a warp, warps) along each dimension; empty for another layout."""
    found = [re.search(rf"{key} = \[([\d, ]+)\]", layout) for key in ("sizePerThread", "threadsPerWarp", "warpsPerCTA")]
    return tuple([int(number) for number in match[1].split(",")] if match else [] for match in found)

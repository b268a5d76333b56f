# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What memory order looks like in the code of AMD GPUs, and what must hold of every kernel."""
import re
from typing import NamedTuple

from compile_util import code, instructions, position

LDS = {"gfx90a": 64 << 10, "gfx942": 64 << 10, "gfx950": 160 << 10}       # bytes a compute unit has


class Scope(NamedTuple):
    """Regular expressions of one scope: a poll, what an acquire drops, what a release writes back, stores and adds of a flag.

    Matched against whole lines from the operands on, so that a bit too many is found as well as one too few. `back` is None
    where nothing need be written back: one L2 serves the whole device."""
    load: str
    drop: tuple
    back: str | None
    store: str
    add: str


_PLAIN = r"[^;]*(off|\])( offset:\d+)?$"


def _bits(bits: str) -> str:
    return rf"[^;]*(off|\])( offset:\d+)? {bits}$" if bits else _PLAIN


_GFX90A = {
    "gpu": Scope(_bits("glc"), ("buffer_wbinvl1_vol$",), None, _PLAIN, _PLAIN),
    "sys": Scope(_bits("glc"), ("buffer_invl2$", "buffer_wbinvl1_vol$"), "buffer_wbl2$", _PLAIN, _PLAIN),
}
_GFX942 = {
    "gpu": Scope(_bits("sc1"), ("buffer_inv sc1$",), "buffer_wbl2 sc1$", _bits("sc1"), _PLAIN),
    "sys": Scope(_bits("sc0 sc1"), ("buffer_inv sc0 sc1$",), "buffer_wbl2 sc0 sc1$", _bits("sc0 sc1"), _bits("sc1")),
}
ISA = {"gfx90a": _GFX90A, "gfx942": _GFX942, "gfx950": _GFX942}

# A flag's access: one word of 4 or 8 bytes. A poll of a packet is 8 or 16 bytes with the same bits.
WORDS = {32: "dword", 64: "dwordx2"}
PAIR_STORE = {"gfx90a": "global_store_dwordx4" + _PLAIN, "gfx942": r"global_store_dwordx4 .* sc0 sc1$",
              "gfx950": r"global_store_dwordx4 .* sc0 sc1$"}
PAIR_LOAD = {"gfx90a": r"global_load_dwordx4 .* glc$", "gfx942": r"global_load_dwordx4 .* sc0 sc1$",
             "gfx950": r"global_load_dwordx4 .* sc0 sc1$"}
DONE = r"s_waitcnt .*vmcnt\(0\)"


def poll(target: str, scope: str, bits: int = 32) -> str:
    """Regular expression of one poll of a flag."""
    return rf"global_load_{WORDS[bits]} {ISA[target][scope].load}"


def flag_write(target: str, scope: str, op: str = "set", bits: int = 32) -> str:
    """Regular expression of the store or add that sets a flag."""
    if op == "set":
        return rf"global_store_{WORDS[bits]} {ISA[target][scope].store}"
    return rf"global_atomic_add{'_x2' if bits == 64 else ''} {ISA[target][scope].add}"


def acquire(lines: list[str], target: str, scope: str, start: int = 0) -> int:
    """Index of the last instruction of the first acquire from `start`."""
    for pattern in ISA[target][scope].drop:
        start = position(lines, pattern, start)
    return start


def release_before(lines: list[str], flag: int, target: str, scope: str) -> int:
    """Index of the barrier before the flag's store at `flag`; AssertionError unless all stores are released in between.

    Every wave waits for its stores, all meet, one writes its L2 back, waits for that, and stores the flag."""
    back = ISA[target][scope].back
    waited = max(i for i in range(flag) if re.match(DONE, lines[i]))
    if back is not None:
        written = max((i for i in range(flag) if re.match(back, lines[i])), default=-1)
        assert 0 <= written < waited, f"no write-back, or none that was waited for, before {lines[flag]!r}"
        waited = written
    barrier = max((i for i in range(waited) if lines[i].startswith("s_barrier")), default=-1)
    assert barrier > 0, f"no barrier before the write-back of {lines[flag]!r}"
    before = [line for line in lines[max(0, barrier - 4):barrier]]
    assert any(re.match(DONE, line) for line in before), f"waves reach the barrier with stores under way: {before}"
    between = [line for line in lines[barrier:flag] if re.match(r"(global|buffer|flat)_store", line)]
    assert not between, f"data stored after the barrier: {between}"
    return barrier


def resources(kernel) -> dict:
    """Registers, spilled registers, LDS and scratch bytes, from a code object's own notes."""
    notes = dict(re.findall(r"\.(vgpr_count|agpr_count|sgpr_count|vgpr_spill_count|sgpr_spill_count|group_segment_fixed_size|"
                            r"private_segment_fixed_size|wavefront_size):\s+(\d+)", code(kernel)))
    return {**{name: int(value) for name, value in notes.items()}, "lds": kernel.metadata.shared}


def assert_sound(kernel, target: str) -> list[str]:
    """What must hold of every kernel's code; its instructions."""
    lines, used = instructions(kernel), resources(kernel)
    assert used["private_segment_fixed_size"] == used["vgpr_spill_count"] == 0, used      # scalars spill to vector registers
    assert used["wavefront_size"] == 64
    assert max(used["lds"], used["group_segment_fixed_size"]) <= LDS[target], used
    for line in lines:
        assert not re.match(r"scratch_|s_swappc|flat_(load|store|atomic)", line), f"spill, call or generic access: {line}"
    _assert_flags_are_not_cached(with_labels(kernel), target)
    _assert_loads_of_memory_are_not_scalar(lines)
    _assert_released(lines, target)
    return lines


def with_labels(kernel) -> list[str]:
    """Instructions and the labels among them, as "name:"."""
    lines = [re.sub(r"(//|;).*$", "", line).strip() for line in code(kernel).splitlines()]
    return [line for line in lines if line and (line[0] != "." or line.startswith(".LBB"))]


def loops(lines: list[str]) -> list[tuple[int, int]]:
    """(first, last) instruction of every loop: a branch to a label before it."""
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    targets = [(i, labels.get(line.split()[-1])) for i, line in enumerate(lines) if re.match(r"s_c?branch", line)]
    return [(to, i) for i, to in targets if to is not None and to <= i]


def _assert_flags_are_not_cached(lines: list[str], target: str) -> None:
    """A loop that rests between polls loads past the caches of its scope, and drops them only once it is over."""
    coherent, around = "glc" if target == "gfx90a" else "sc1", loops(lines)
    for i, line in enumerate(lines):
        if not line.startswith("s_sleep"):
            continue
        outwards = sorted(((a, b) for a, b in around if a <= i <= b), key=lambda loop: loop[1] - loop[0])
        bodies = [[other for other in lines[a:b] if re.match(r"(global|buffer|flat)_load", other)] for a, b in outwards]
        (first, last), loads = next(((loop, body) for loop, body in zip(outwards, bodies) if body), ((i, i), []))
        assert loads and all(coherent in load.split() for load in loads), f"a poll through a cache: {lines[first:last]}"
        assert not any(re.match(r"buffer_(inv|wb)", other) for other in lines[first:last]), "caches dropped at each poll"


def _registers(operand: str) -> list[int]:
    """Numbers of the scalar registers of an operand such as s7 or s[8:11]."""
    found = re.fullmatch(r"s(\d+)|s\[(\d+):(\d+)\]", operand)
    if found is None:
        return []
    return [int(found[1])] if found[1] else list(range(int(found[2]), int(found[3]) + 1))


def _assert_loads_of_memory_are_not_scalar(lines: list[str]) -> None:
    """After an acquire nothing that an argument points to is loaded through the scalar cache, which no fence drops.

    Followed in order, branches aside: a register holds an argument if it was loaded from the argument block at s[0:1] (or came
    with the wave), or was computed from one that does."""
    entry = next((i for i, line in enumerate(lines) if line.startswith("s_branch")), 0)
    first = next((i for i, line in enumerate(lines) if re.match(r"buffer_(inv|wbinvl1)", line)), len(lines))
    pointers: set = set()
    spilled: dict = {}                  # (vector register, lane) -> whether the scalar register that was put there holds one
    for i, line in enumerate(lines):
        name, _, rest = line.partition(" ")
        operands = [operand.strip() for operand in rest.split(",")]
        result, sources = _registers(operands[0]), {n for operand in operands[1:] for n in _registers(operand)}
        if name.startswith("v_writelane"):
            spilled[operands[0], operands[2]] = bool(sources & pointers)
            continue
        if name.startswith("v_readlane"):
            taken = spilled.get((operands[1], operands[2]), False)
        elif name.startswith("s_load"):
            assert i <= first or not sources & pointers, f"a scalar load after an acquire: {line}"
            taken = operands[1] == "s[0:1]" and i <= entry or bool(sources & pointers)
        elif name.startswith("s_getpc"):
            taken = False
        elif name.startswith(("s_", "v_readfirstlane")) and not name.startswith(("s_cmp", "s_cbranch", "s_waitcnt", "s_bit")):
            taken = bool(sources & pointers)
        else:
            continue
        pointers = pointers | set(result) if taken else pointers - set(result)


def _assert_released(lines: list[str], target: str) -> None:
    """Each write-back is waited for before the next store."""
    for i, line in enumerate(lines):
        if line.startswith("buffer_wbl2"):
            rest = lines[i + 1:]
            waited = next((at for at, other in enumerate(rest) if re.match(DONE, other)), len(rest))
            stored = next((at for at, other in enumerate(rest) if re.match(r"(global|buffer)_(store|atomic)", other)), len(rest))
            assert waited < stored, f"a store overtakes the write-back at {i}: {rest[:8]}"

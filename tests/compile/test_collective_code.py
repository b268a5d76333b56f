# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The collectives' kernels compiled for every target, and what must hold of the code for them to be fast."""
import re

import amd_isa
import pytest
from compile_util import CUDA, HIP, PAIR, PLAIN_RELEASE, TARGETS, compile_kernel, instructions, position

from triton_dist.ops.exchange.kernels import one_hop_packets, one_hop_push
from triton_dist.ops.all_reduce.kernels import push_kernel, two_shot_kernel

POINTERS = {"slots": "*i64", "flags": "*i32", "control": "*i32", "team": "*i32"}
ALIGNED = ("x", "out", "data", "slots", "flags", "control", "team", "half", "n")


def compiled(kernel, target: str, dtype: str = "bf16", world: int = 4, whole: bool = True, warps: int = 8,
             scatter: bool = False, op: str | None = "sum"):
    """`kernel` with x and out of `dtype`, n divisible by 16."""
    types = {name: "constexpr" if name.isupper() else POINTERS.get(name, "i32") for name in kernel.arg_names}
    types.update({name: f"*{dtype}" for name in ("x", "out", "data") if name in types})
    lanes = 64 if target in HIP else 32
    known = dict(WORLD=world, RANKS=1 << (world - 1).bit_length(), THREADS=lanes * warps, WHOLE=whole, BLOCK=4096,
                 SCATTER=scatter, OP=op)
    return compile_kernel(kernel, types, {name: value for name, value in known.items() if name in types}, target,
                          divisible=ALIGNED, num_warps=warps, num_stages=1)


PACKETS = [one_hop_packets, two_shot_kernel]


@pytest.mark.parametrize("target", CUDA)
@pytest.mark.parametrize("kernel, hops", [(one_hop_packets, 1), (two_shot_kernel, 2)], ids=["one_shot", "two_shot"])
def test_a_thread_stores_and_polls_one_pair_a_hop(kernel, hops, target):
    """All peers' latencies pass at once; nothing goes through shared memory, and no barrier but that of the count."""
    built = compiled(kernel, target)
    lines = instructions(built)
    assert sum(bool(re.match(f"st{PAIR}", line)) for line in lines) == hops
    assert sum(bool(re.match(f"ld{PAIR}", line)) for line in lines) == hops
    assert sum("bar.sync" in line for line in lines) == 1 and built.metadata.shared == 0
    assert not [line for line in lines if re.search(r"\b(atom|red|fence|membar)\b", line)]
    assert sum("shfl.sync" in line for line in lines) == 2 * 4      # log2 of four ranks, for each of four elements


def parameters_behind(lines: list, operands: str) -> set:
    """Positions of the kernel's parameters that registers named in `operands` were computed from, by `lines`."""
    found, registers = set(), set(re.findall(r"%\w+", operands))
    for line in reversed(lines):
        result, *rest = re.findall(r"%\w+|\w+_param_\d+", line) or [""]
        if result in registers:
            found.update(int(word.rpartition("_")[2]) for word in rest if "_param_" in word)
            registers.update(rest)
    return found


@pytest.mark.every("kernel", "target")
@pytest.mark.parametrize("target", CUDA)
@pytest.mark.parametrize("kernel", [*PACKETS, one_hop_push, push_kernel], ids=lambda k: k.__name__)
def test_only_the_team_is_read_before_the_kernel_ahead_has_ended(kernel, target):
    """Nobody writes it. Launches overlap from sm_90 on."""
    lines = instructions(compiled(kernel, target))
    if target == "sm_80":
        assert not [line for line in lines if "griddepcontrol" in line]
        return
    wait = position(lines, r"griddepcontrol\.wait")
    position(lines, r"griddepcontrol\.launch_dependents", wait)
    early = [(i, line) for i, line in enumerate(lines[:wait]) if ".global" in line]
    assert early
    for i, line in early:
        assert line.startswith("ld.")
        assert parameters_behind(lines[:i], line.partition("[")[2]) == {kernel.arg_names.index("team")}


@pytest.mark.parametrize("target", HIP)
@pytest.mark.parametrize("kernel", PACKETS, ids=lambda k: k.__name__)
def test_pairs_are_whole_on_hip_too(kernel, target):
    lines = instructions(compiled(kernel, target))
    position(lines, amd_isa.PAIR_STORE[target])
    position(lines, amd_isa.PAIR_LOAD[target])


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("kernel", PACKETS, ids=lambda k: k.__name__)
def test_packet_kernels_keep_their_layout(kernel, dtype, world, whole):
    """Whatever the dtype, the number of ranks and the alignment."""
    built = compiled(kernel, "sm_90", dtype, world, whole)
    assert "convert_layout" not in built.asm["ttgir"] and built.metadata.shared == 0


@pytest.mark.parametrize("target", TARGETS)
def test_push_moves_sixteen_bytes_at_a_time_and_fences_once_a_hop(target):
    lines = instructions(compiled(push_kernel, target, warps=16 if target in CUDA else 8))
    if target in HIP:
        position(lines, r"(global|buffer)_store_dwordx4")
        return
    text = "\n".join(lines)
    assert not re.search(r"(ld|st)\.global\S*\.b16", text), "scalar accesses"
    assert len(re.findall(r"st\.global\.v4\.b32", text)) == 3 + 3 + 1 + 3       # terms, sums, own part, others' parts
    assert len(re.findall(r"atom\.global\.sys\.release", text)) == 2            # all peers' flags in one instruction
    assert len(re.findall(r"bar\.sync", text)) == 1 + 2 * (2 if PLAIN_RELEASE else 1)      # Triton 3.9: the exchange has its own


@pytest.mark.parametrize("scatter, op", [(False, None), (True, None), (True, "sum")])
def test_one_hop_moves_sixteen_bytes_at_a_time_and_fences_once(scatter, op):
    text = "\n".join(instructions(compiled(one_hop_push, "sm_90", warps=16, scatter=scatter, op=op)))
    assert not re.search(r"(ld|st)\.global\S*\.b16", text), "scalar accesses"
    assert len(re.findall(r"st\.global\.v4\.b32", text)) == 3 + (1 if op else 4)
    assert len(re.findall(r"atom\.global\.sys\.release", text)) == 1
    pairs = instructions(built := compiled(one_hop_packets, "sm_90", scatter=scatter, op=op))
    assert sum(bool(re.match(f"st{PAIR}", line)) for line in pairs) == 1 and built.metadata.shared == 0
    assert "convert_layout" not in built.asm["ttgir"]


@pytest.mark.parametrize("op", ["avg", "max", "min"])
@pytest.mark.parametrize("dtype", ["bf16", "fp64", "i32", "i64"])
@pytest.mark.parametrize("kernel", [*PACKETS, one_hop_push, push_kernel], ids=lambda k: k.__name__)
def test_every_reduction_compiles_for_each_vendor(kernel, dtype, op):
    """Three ranks: a lane of packets has no rank."""
    for target in (CUDA[-1], HIP[-1]):
        built = compiled(kernel, target, dtype, world=3, op=op)
        if kernel in PACKETS and target in CUDA:
            assert "convert_layout" not in built.asm["ttgir"]


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64"])
def test_bytes_move_in_vectors_whatever_they_stand_for(dtype):
    text = "\n".join(instructions(compiled(one_hop_push, "sm_90", dtype, scatter=True, op=None)))
    assert not re.search(r"(ld|st)\.global\S*\.b8", text), "scalar accesses"
    built = compiled(one_hop_packets, "sm_90", dtype, scatter=True, op=None)
    assert "convert_layout" not in built.asm["ttgir"]
    if dtype != "i64":
        compiled(one_hop_packets, "sm_90", dtype, scatter=True, op=None, whole=False)

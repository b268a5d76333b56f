# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A first model of time: what each method of an op should take on a machine, from rates measured on it.

Sources: a backend gives a MachineModel from measurements (benchmarks/results). Communication is bytes over a link rate plus
a fixed cost; a GEMM is waves of tiles. It is right to about 20 %; `ERROR` says so to whoever compares.
"""
from dataclasses import dataclass

from triton_dist.runtime.capabilities import GemmConfig, MachineModel

ERROR = 0.20


@dataclass(frozen=True)
class Estimate:
    """Predicted time of one method, in milliseconds, and what it is made of."""
    method: str
    ms: float
    note: str


def gemm_us(machine: MachineModel, m: int, n: int, k: int, itemsize: int, block_m: int, block_n: int,
            ratio: float) -> float:
    """A GEMM [m, k] x [n, k]: whole waves of tiles on all SMs at `ratio` of the library's rate."""
    rate = machine.gemm_tflops * ratio * (1.0 if itemsize == 2 else 0.5) * 1e6      # flop per microsecond
    tiles = -(-m // block_m) * -(-n // block_n)
    waves = -(-tiles // machine.sms)
    per_tile = 2.0 * block_m * block_n * max(k, 1) / (rate / machine.sms)
    return waves * per_tile


def library_gemm_us(machine: MachineModel, m: int, n: int, k: int, itemsize: int) -> float:
    """The vendor library picks its tiles: the best of three sizes."""
    return min(gemm_us(machine, m, n, k, itemsize, bm, bn, 1.0) for bm, bn in ((128, 256), (128, 128), (64, 128)))


def _collective_us(machine: MachineModel, part: int, world: int) -> float:
    """An all-gather or reduce-scatter that brings `part` bytes from every peer."""
    return machine.collective_us + (world - 1) * part / (machine.collective_gbs * 1e3) if world > 1 else 0.0


def ag_gemm_estimates(machine: MachineModel, m: int, n: int, k: int, world: int, itemsize: int, config: GemmConfig,
                      core: bool) -> list[Estimate]:
    """Methods of ag_gemm for x [m, k] a rank and weight [n, k], the best first."""
    shard = m * k * itemsize
    gather = _collective_us(machine, shard, world)
    library = library_gemm_us(machine, m * world, n, k, itemsize)
    fused = {}
    for method, ratio in _fused_methods(machine, core):
        part = gemm_us(machine, m * world, n, k, itemsize, config.block_m, config.block_n, ratio) / world
        time = 0.0
        for step in range(world):       # a chunk starts when the chunk before is done and its data is there
            links_in_turn = step if machine.switched else min(step, 1)
            arrival = links_in_turn * (shard / (machine.link_gbs * 1e3)) + (machine.signal_us if step else 0.0)
            time = max(time, arrival) + part
        fused[method] = max(time, machine.fused_us)
    note = f"all-gather {gather / 1e3:.3f} + GEMM {library / 1e3:.3f}"
    return _sorted(max(gather + library, 2 * machine.launch_us), note, fused, "gather behind the GEMM")


def gemm_rs_estimates(machine: MachineModel, m: int, n: int, k: int, world: int, itemsize: int, config: GemmConfig,
                      core: bool) -> list[Estimate]:
    """Methods of gemm_rs for x [m * world, k] and weight [n, k] a rank, the best first."""
    chunk = m * n * itemsize
    scatter = _collective_us(machine, chunk, world)
    library = library_gemm_us(machine, m * world, n, k, itemsize)
    fused = {}
    for method, ratio in _fused_methods(machine, core):
        whole = gemm_us(machine, m * world, n, k, itemsize, config.block_m, config.block_n, ratio)
        # A wave of tiles leaves in a burst; the next rank has hidden it if it is there before its own tiles are nearly done.
        tiles = -(-m // config.block_m) * -(-n // config.block_n)
        burst = min(tiles, machine.sms) * config.block_m * config.block_n * itemsize / (machine.link_gbs * 1e3)
        slack = 0.85 * tiles / machine.sms * (whole / -(-tiles * world // machine.sms))
        exposed = max(0.0, burst + machine.signal_us - slack)
        time = max(whole, (world - 1) * chunk / (machine.link_gbs * 1e3)) + (world - 1) * exposed
        fused[method] = max(time, machine.fused_us)
    fused["scatter"] = max(_scatter_us(machine, m, n, k, world, itemsize, config), machine.fused_us)
    note = f"GEMM {library / 1e3:.3f} + reduce-scatter {scatter / 1e3:.3f}"
    return _sorted(max(library + scatter, 2 * machine.launch_us), note, fused, "ring inside the GEMM",
                   scatter="tiles sent to their owners inside the GEMM")


def _scatter_us(machine: MachineModel, m: int, n: int, k: int, world: int, itemsize: int, config: GemmConfig) -> float:
    """gemm_rs whose tiles go straight to their owners: all but the own chunk travels while the GEMM runs, then is read."""
    whole = gemm_us(machine, m * world, n, k, itemsize, config.block_m, config.block_n, machine.portable_ratio)
    chunk, peers = m * n * itemsize, world - 1
    links = max(1, 1 if machine.switched else peers)
    sent = peers * chunk / (links * machine.link_gbs * 1e3)
    return max(whole, sent) + (machine.signal_us + peers * chunk / (machine.memory_gbs * 1e3) if peers else 0.0)


def gemm_ar_estimates(machine: MachineModel, m: int, n: int, k: int, world: int, itemsize: int) -> list[Estimate]:
    """Methods of gemm_ar for x [m, k] and weight [n, k] a rank, the best first, as calls in a graph."""
    stream = machine.kernel_us + n * k * itemsize / (machine.memory_gbs * 1e3)
    library = max(library_gemm_us(machine, m, n, k, itemsize), stream)
    size = m * n * itemsize
    packets, push = _packets_us(machine, size, world), 2 * machine.signal_us + _two_hops_us(machine.collective_gbs, size, world)
    reduce = machine.kernel_us + min(packets, push) if world > 1 else 0.0
    found = [Estimate("unfused", (library + reduce) / 1e3, f"GEMM {library / 1e3:.4f} + all-reduce {reduce / 1e3:.4f}"),
             Estimate("packets", (library + packets) / 1e3, f"GEMM {library / 1e3:.4f} + packets {packets / 1e3:.4f}")]
    return sorted(found, key=lambda estimate: estimate.ms)


def _packets_us(machine: MachineModel, size: int, world: int) -> float:
    """The sum of `size` bytes over ranks, in one hop or two of packets, which are half flags."""
    one = machine.hop_us + 2 * (world - 1) * size / (machine.link_gbs * 1e3)
    return min(one, 2 * machine.hop_us + 2 * _two_hops_us(machine.link_gbs, size, world))


def _two_hops_us(gbs: float, size: int, world: int) -> float:
    return 2 * (world - 1) / world * size / (gbs * 1e3)


def _fused_methods(machine: MachineModel, core: bool) -> list:
    return ([("ws", machine.core_ratio)] if core else []) + [("portable", machine.portable_ratio)]


def _sorted(unfused: float, unfused_note: str, fused: dict, fused_note: str, **notes: str) -> list[Estimate]:
    """notes: of methods to which `fused_note` does not apply."""
    found = [Estimate("unfused", unfused / 1e3, unfused_note)]
    found += [Estimate(method, us / 1e3, notes.get(method, fused_note)) for method, us in fused.items()]
    return sorted(found, key=lambda estimate: estimate.ms)

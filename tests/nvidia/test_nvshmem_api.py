# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every function of libshmem_device, one tick each. A script and a pytest module.

    bash launch.sh test_nvshmem_api.py [--functions putmem_block,signal_op]

On GPUs it runs on the NVSHMEM heap, elsewhere by the emulator's twins. Each rank sends to the next one or gets from it.
"""
import argparse
import os

import torch
import triton.language as tl

import triton_dist
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.runtime.console import printable
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import create_symm_tensor, free_symm_tensor

N = 1000                    # float32 words a rank sends; no multiple of a warp's accesses
BLOCK = 1024
ROUNDS = 3
WORLD = shmem.NVSHMEM_TEAM_WORLD


@triton_dist.jit
def put_kernel(dst, src, nbytes, OP: tl.constexpr):
    """Puts src into the next rank's dst; a barrier completes it."""
    peer = (shmem.my_pe() + 1) % shmem.n_pes()
    if OP == "putmem":
        shmem.putmem(dst, src, nbytes, peer)
    elif OP == "putmem_warp":
        shmem.putmem_warp(dst, src, nbytes, peer)
    elif OP == "putmem_block":
        shmem.putmem_block(dst, src, nbytes, peer)
    elif OP == "putmem_wave":
        shmem.putmem_wave(dst, src, nbytes, peer)
    elif OP == "putmem_wg":
        shmem.putmem_wg(dst, src, nbytes, peer)
    elif OP == "putmem_nbi":
        shmem.putmem_nbi(dst, src, nbytes, peer)
    elif OP == "putmem_nbi_warp":
        shmem.putmem_nbi_warp(dst, src, nbytes, peer)
    elif OP == "putmem_nbi_block":
        shmem.putmem_nbi_block(dst, src, nbytes, peer)
    elif OP == "putmem_nbi_wave":
        shmem.putmem_nbi_wave(dst, src, nbytes, peer)
    elif OP == "putmem_nbi_wg":
        shmem.putmem_nbi_wg(dst, src, nbytes, peer)
    shmem.barrier_all_block()


@triton_dist.jit
def put_signal_kernel(dst, src, nbytes, flag, value, out, n, BLOCK: tl.constexpr, OP: tl.constexpr):
    """Puts src into the next rank's dst and signals; out receives the first BLOCK words of what came in."""
    peer = (shmem.my_pe() + 1) % shmem.n_pes()
    if OP == "putmem_signal":
        shmem.putmem_signal(dst, src, nbytes, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "putmem_signal_warp":
        shmem.putmem_signal_warp(dst, src, nbytes, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "putmem_signal_block":
        shmem.putmem_signal_block(dst, src, nbytes, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "putmem_signal_wave":
        shmem.putmem_signal_wave(dst, src, nbytes, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "putmem_signal_wg":
        shmem.putmem_signal_wg(dst, src, nbytes, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "putmem_signal_nbi":
        shmem.putmem_signal_nbi(dst, src, nbytes, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "putmem_signal_nbi_warp":
        shmem.putmem_signal_nbi_warp(dst, src, nbytes, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "putmem_signal_nbi_block":
        shmem.putmem_signal_nbi_block(dst, src, nbytes, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "putmem_signal_nbi_wave":
        shmem.putmem_signal_nbi_wave(dst, src, nbytes, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "putmem_signal_nbi_wg":
        shmem.putmem_signal_nbi_wg(dst, src, nbytes, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    shmem.signal_wait_until(flag, shmem.NVSHMEM_CMP_GE, value)
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(dst + offsets, mask=offsets < n), mask=offsets < n)
    shmem.barrier_all_block()


@triton_dist.jit
def get_kernel(dst, src, nbytes, OP: tl.constexpr):
    """Gets the previous rank's src."""
    peer = (shmem.my_pe() + shmem.n_pes() - 1) % shmem.n_pes()
    if OP == "getmem":
        shmem.getmem(dst, src, nbytes, peer)
    elif OP == "getmem_warp":
        shmem.getmem_warp(dst, src, nbytes, peer)
    elif OP == "getmem_block":
        shmem.getmem_block(dst, src, nbytes, peer)
    elif OP == "getmem_wave":
        shmem.getmem_wave(dst, src, nbytes, peer)
    elif OP == "getmem_wg":
        shmem.getmem_wg(dst, src, nbytes, peer)
    elif OP == "getmem_nbi":
        shmem.getmem_nbi(dst, src, nbytes, peer)
    elif OP == "getmem_nbi_warp":
        shmem.getmem_nbi_warp(dst, src, nbytes, peer)
    elif OP == "getmem_nbi_block":
        shmem.getmem_nbi_block(dst, src, nbytes, peer)
    elif OP == "getmem_nbi_wave":
        shmem.getmem_nbi_wave(dst, src, nbytes, peer)
    elif OP == "getmem_nbi_wg":
        shmem.getmem_nbi_wg(dst, src, nbytes, peer)
    shmem.quiet()


@triton_dist.jit
def barrier_kernel(dst, src, out, n, BLOCK: tl.constexpr, COMPLETES: tl.constexpr, OP: tl.constexpr):
    """Puts src into the next rank's dst, meets all ranks, and copies its own dst to out."""
    shmem.putmem_nbi_block(dst, src, n * 4, (shmem.my_pe() + 1) % shmem.n_pes())
    if not COMPLETES:
        shmem.quiet()
    if OP == "barrier_all":
        shmem.barrier_all()
    elif OP == "barrier_all_warp":
        shmem.barrier_all_warp()
    elif OP == "barrier_all_block":
        shmem.barrier_all_block()
    elif OP == "barrier_all_wave":
        shmem.barrier_all_wave()
    elif OP == "barrier_all_wg":
        shmem.barrier_all_wg()
    elif OP == "barrier":
        shmem.barrier(0)
    elif OP == "barrier_warp":
        shmem.barrier_warp(0)
    elif OP == "barrier_block":
        shmem.barrier_block(0)
    elif OP == "sync_all":
        shmem.sync_all()
    elif OP == "sync_all_warp":
        shmem.sync_all_warp()
    elif OP == "sync_all_block":
        shmem.sync_all_block()
    elif OP == "team_sync_warp":
        shmem.team_sync_warp(0)
    elif OP == "team_sync_block":
        shmem.team_sync_block(0)
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(dst + offsets, mask=offsets < n), mask=offsets < n)
    shmem.barrier_all_block()


@triton_dist.jit
def collective_kernel(dst, src, n, root, OP: tl.constexpr):
    """Sends n words of src to all ranks: the root's to dst, or every rank's to its place in dst."""
    if OP == "broadcastmem":
        shmem.broadcastmem(0, dst, src, n * 4, root)
    elif OP == "broadcastmem_warp":
        shmem.broadcastmem_warp(0, dst, src, n * 4, root)
    elif OP == "broadcastmem_block":
        shmem.broadcastmem_block(0, dst, src, n * 4, root)
    elif OP == "broadcast":
        shmem.broadcast(0, dst, src, n, root)
    elif OP == "broadcast_warp":
        shmem.broadcast_warp(0, dst, src, n, root)
    elif OP == "broadcast_block":
        shmem.broadcast_block(0, dst, src, n, root)
    elif OP == "fcollectmem":
        shmem.fcollectmem(0, dst, src, n * 4)
    elif OP == "fcollectmem_warp":
        shmem.fcollectmem_warp(0, dst, src, n * 4)
    elif OP == "fcollectmem_block":
        shmem.fcollectmem_block(0, dst, src, n * 4)
    elif OP == "fcollect":
        shmem.fcollect(0, dst, src, n)
    elif OP == "fcollect_warp":
        shmem.fcollect_warp(0, dst, src, n)
    elif OP == "fcollect_block":
        shmem.fcollect_block(0, dst, src, n)


@triton_dist.jit
def signal_kernel(dst, src, longs, flag, value, out, n, BLOCK: tl.constexpr, OP: tl.constexpr):
    """Sends a word, some words and a signal, or a signal alone, to the next rank; waits for the previous one's."""
    peer = (shmem.my_pe() + 1) % shmem.n_pes()
    if OP == "int_p":
        shmem.int_p(dst.to(tl.pointer_type(tl.int32)), value, peer)
        shmem.quiet()
        shmem.signal_op(flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "ulong_put_signal":
        shmem.ulong_put_signal(longs, longs + 8, 8, flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif OP == "signal_op":
        shmem.signal_op(flag, 1, shmem.NVSHMEM_SIGNAL_ADD, peer)
    elif OP == "fence":
        shmem.putmem_nbi_block(dst, src, n * 4, peer)
        shmem.fence()
        shmem.signal_op(flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    else:
        shmem.putmem_nbi_warp(dst, src, n * 4, peer)
        if OP == "quiet_pe":
            shmem.quiet_pe(peer)
        else:
            shmem.quiet()
        shmem.signal_op(flag, value, shmem.NVSHMEM_SIGNAL_SET, peer)
    if OP == "uint64_wait_until_equals":
        shmem.uint64_wait_until_equals(flag, value)
    else:
        shmem.signal_wait_until(flag, shmem.NVSHMEM_CMP_EQ, value)
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(dst + offsets, mask=offsets < n), mask=offsets < n)
    shmem.barrier_all_block()


@triton_dist.jit
def wait_kernel(flag, out, start, value, seen, CMP: tl.constexpr):
    """Sets the next rank's flag to start, meets, sets it to seen; stores what a wait for `CMP value` returns."""
    peer = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.signal_op(flag, start, shmem.NVSHMEM_SIGNAL_SET, peer)
    shmem.barrier_all_block()
    shmem.signal_op(flag, seen, shmem.NVSHMEM_SIGNAL_SET, peer)
    tl.store(out, shmem.signal_wait_until(flag, CMP, value))
    shmem.barrier_all_block()


@triton_dist.jit
def identity_kernel(src, out, numbers, n, team, BLOCK: tl.constexpr):
    """numbers = what a rank knows of itself; out = the next rank's src, by loads."""
    me, size = shmem.my_pe(), shmem.n_pes()
    tl.store(numbers, me)
    tl.store(numbers + 1, size)
    tl.store(numbers + 2, shmem.team_my_pe(team))
    tl.store(numbers + 3, shmem.team_n_pes(team))
    tl.store(numbers + 4, shmem.team_translate_pe(team, size - 1, 0))
    tl.store(numbers + 5, (shmem.remote_ptr(src, me).to(tl.int64) == src.to(tl.int64)).to(tl.int32))
    tl.store(numbers + 6, (shmem.remote_mc_ptr(team, src).to(tl.int64) % 4).to(tl.int32))
    offsets = tl.arange(0, BLOCK)
    peer = shmem.remote_ptr(src, (me + 1) % size)
    tl.store(numbers + 7, (peer.to(tl.int64) != 0).to(tl.int32))          # 0 where it is on another node
    tl.store(out + offsets, tl.load(peer + offsets, mask=(offsets < n) & (peer.to(tl.int64) != 0)), mask=offsets < n)


class Bench:
    """Buffers of one rank, fresh for each round."""

    def __init__(self):
        self.group = resolve()
        self.me, self.size = self.group.rank, self.group.size
        self.dst = create_symm_tensor((N * self.size,), torch.float32, name="dst")
        self.src = create_symm_tensor((N,), torch.float32, name="src")
        self.flag = create_symm_tensor((1,), torch.int64, name="flag")
        self.longs = create_symm_tensor((16,), torch.int64, name="longs")
        self.out = torch.empty(N, device=triton_dist.device())
        self.seen = torch.empty(8, dtype=torch.int64, device=triton_dist.device())

    def value(self, rank: int, turn: int) -> torch.Tensor:
        """What rank sends in a round."""
        return torch.arange(N, dtype=torch.float32) * (turn + 1) + 7 * rank

    def renew(self, turn: int) -> None:
        self.dst.fill_(float("nan"))
        self.out.fill_(float("nan"))
        self.src.copy_(self.value(self.me, turn))
        self.longs.copy_(torch.arange(16) + 100 * self.me + turn)
        triton_dist.synchronize()
        self.group.barrier()

    def holds(self, tensor: torch.Tensor, rank: int, turn: int) -> bool:
        triton_dist.synchronize()
        return torch.equal(tensor[:N].cpu(), self.value(rank % self.size, turn))

    def free(self) -> None:
        for tensor in (self.dst, self.src, self.flag, self.longs):
            free_symm_tensor(tensor)


def put(b: Bench, op: str, turn: int) -> bool:
    put_kernel[(1,)](b.dst, b.src, N * 4, OP=op)
    return b.holds(b.dst, b.me - 1, turn)


def put_signal(b: Bench, op: str, turn: int) -> bool:
    put_signal_kernel[(1,)](b.dst, b.src, N * 4, b.flag, turn + 1, b.out, N, BLOCK=BLOCK, OP=op)
    return b.holds(b.out, b.me - 1, turn)


def get(b: Bench, op: str, turn: int) -> bool:
    get_kernel[(1,)](b.dst, b.src, N * 4, OP=op)
    return b.holds(b.dst, b.me - 1, turn)


def barrier(b: Bench, op: str, turn: int) -> bool:
    barrier_kernel[(1,)](b.dst, b.src, b.out, N, BLOCK=BLOCK, COMPLETES="barrier" in op, OP=op)
    return b.holds(b.out, b.me - 1, turn)


def collective(b: Bench, op: str, turn: int) -> bool:
    root = turn % b.size
    collective_kernel[(1,)](b.dst, b.src, N, root, OP=op)
    if "broadcast" in op:
        return b.holds(b.dst, root, turn)
    return all(b.holds(b.dst[N * rank:], rank, turn) for rank in range(b.size))


def signal(b: Bench, op: str, turn: int) -> bool:
    signal_kernel[(1,)](b.dst, b.src, b.longs, b.flag, turn + 1, b.out, N, BLOCK=BLOCK, OP=op)
    triton_dist.synchronize()
    if op == "int_p":
        return b.out[:1].view(torch.int32).item() == turn + 1
    if op == "ulong_put_signal":
        return b.longs[:8].tolist() == [8 + i + 100 * ((b.me - 1) % b.size) + turn for i in range(8)]
    return b.flag.item() == turn + 1 and (op == "signal_op" or b.holds(b.out, b.me - 1, turn))


# comparison -> values of the flag before and after, and what it is compared with; as unsigned numbers
WAITS = {"EQ": (3, 5, 5), "NE": (5, 3, 5), "GT": (5, -1, 5), "LE": (9, 5, 5), "LT": (-1, 4, 5), "GE": (4, 5, 5)}


def wait(b: Bench, op: str, turn: int) -> bool:
    start, seen, value = WAITS[op[-2:]]
    wait_kernel[(1,)](b.flag, b.seen, start, value, seen, CMP=getattr(shmem, f"NVSHMEM_CMP_{op[-2:]}"))
    triton_dist.synchronize()
    return b.seen[0].item() == seen


def identity(b: Bench, op: str, turn: int) -> bool:
    numbers = torch.full((8,), -9, dtype=torch.int32, device=triton_dist.device())
    identity_kernel[(1,)](b.src, b.out, numbers, N, WORLD, BLOCK=BLOCK)
    right = b.holds(b.out, b.me + 1, turn) if numbers[7] else (b.me + 1) % b.size not in b.group.nodes[b.group.node]
    return right and numbers[:7].tolist() == [b.me, b.size, b.me, b.size, b.size - 1, 1, 0]


_ALL, _OWN = ("", "_warp", "_block", "_wave", "_wg"), ("", "_warp", "_block")
CASES = {
    **{f"putmem{form}{scope}": put for form in ("", "_nbi") for scope in _ALL},
    **{f"getmem{form}{scope}": get for form in ("", "_nbi") for scope in _ALL},
    **{f"putmem_signal{form}{scope}": put_signal for form in ("", "_nbi") for scope in _ALL},
    **{f"barrier_all{scope}": barrier for scope in _ALL}, **{f"barrier{scope}": barrier for scope in _OWN},
    **{f"sync_all{scope}": barrier for scope in _OWN}, "team_sync_warp": barrier, "team_sync_block": barrier,
    **{f"{stem}{scope}": collective for stem in ("broadcastmem", "broadcast", "fcollectmem", "fcollect") for scope in _OWN},
    **{name: signal for name in ("int_p", "ulong_put_signal", "signal_op", "fence", "quiet", "quiet_pe",
                                 "uint64_wait_until_equals")},
    **{f"signal_wait_until {cmp}": wait for cmp in WAITS},
    "my_pe n_pes team_my_pe team_n_pes team_translate_pe remote_ptr remote_mc_ptr": identity,
}


def run(names: list) -> dict:
    """{name: whether it passed on this rank, in all rounds}."""
    passed = {}
    for name in names:
        bench = Bench()
        passed[name] = True
        for turn in range(ROUNDS):
            bench.renew(turn)
            passed[name] &= CASES[name](bench, name, turn)
            bench.group.barrier()
        bench.free()
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", default="", help="names, separated by commas; all if left out")
    asked = [name for name in parser.parse_args().functions.split(",") if name]
    names = [name for name in CASES if not asked or set(name.split()) & set(asked)]
    _ = names or parser.error(f"--functions: none of {', '.join(asked)} is tested here")
    os.environ.setdefault("TRITON_DIST_HEAP", "nvshmem" if triton_dist.device().type == "cuda" else "auto")
    triton_dist.initialize_distributed()
    group = resolve()
    failed = 0
    for name in names:
        answers = group.all_gather_object(run([name])[name])
        failed += not all(answers)
        if group.rank == 0:
            wrong = [rank for rank, right in enumerate(answers) if not right]
            print(printable(f"{'❌' if wrong else '✅'} {name}" + f": wrong on ranks {wrong}" * bool(wrong)), flush=True)
    if group.rank == 0:
        print(f"{len(names) - failed} of {len(names)} pass on {group.size} x {triton_dist.device().type}")
    triton_dist.finalize_distributed()
    raise SystemExit(failed > 0)


def test_every_function_on_emulated_ranks():
    from triton_dist.backends.emulator import run_ranks
    for mode in ("eager", "late", "random", "skew"):
        for passed in run_ranks(lambda: run(list(CASES)), 3, mode=mode, seed=3):
            assert [name for name, right in passed.items() if not right] == []


def test_the_checker_finds_nothing():
    from triton_dist.checker import check_kernel
    report = check_kernel(lambda: run(list(CASES)), 2, schedules=2)
    assert report.clean, str(report)


def test_every_function_that_a_gpu_has_is_tested():
    from triton_dist.backends.nvidia.nvshmem_functions import rows
    from triton_dist.language.shmem_abi import FUNCTIONS
    there, tested = {row.symbol for row in rows()}, {word for name in CASES for word in name.split()} - set(WAITS)
    words = {name for name, f in FUNCTIONS.items() if f.widths or "alltoall" in name or name == "signal_fetch"}  # another file's
    assert tested | words == {name for name, f in FUNCTIONS.items() if f.symbol in there}


if __name__ == "__main__":
    main()

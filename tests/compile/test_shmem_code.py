# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""libshmem_device compiled for GPUs: what each backend refuses, what is checked, and the code over a stand-in for NVSHMEM."""
import re

import fake_nvshmem
import pytest
import shmem_kernels
import triton.language as tl
from compile_util import compile_kernel
from kernels import world_barrier
from triton.compiler.errors import CompilationError
from triton.experimental import gluon

import triton_dist
from triton_dist.backends.gpu.thread_functions import library as thread_library
from triton_dist.backends.nvidia import nvshmem_library
from triton_dist.backends.nvidia.nvshmem_functions import function_of
from triton_dist.language._call import STAND_IN
from triton_dist.language.abi import ROWS
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.language.extra.language_extra import st, tid
from triton_dist.language.shmem_abi import FUNCTIONS, LIBRARY
from triton_dist.language.threads_abi import LIBRARY as THREADS
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import UnsupportedFeature

EXCHANGE = dict(dest="*fp32", source="*fp32", sig_addr="*i64", n="i32")
SCOPES = dict(dest="*fp32", source="*fp32", n="i32", pe="i32", SCOPE="constexpr")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An NVSHMEM installation of stand-ins, version 3.4.5."""
    fake_nvshmem.write(tmp_path)
    monkeypatch.setenv("NVSHMEM_HOME", str(tmp_path))
    nvshmem_library.library.cache_clear()
    yield tmp_path
    nvshmem_library.library.cache_clear()


def linked(target: str = "sm_90") -> dict:
    return dict(extern_libs={LIBRARY: nvshmem_library.library(int(target[3:]))[0]})


def refusal(kernel, signature: dict, target: str, constexprs: dict | None = None, **options) -> str:
    with pytest.raises(CompilationError) as caught:
        compile_kernel(kernel, signature, constexprs or {}, target, **options)
    error = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


# -- what a backend lacks ----------------------------------------------------------------------------------------------
def test_without_nvshmem_the_error_says_how_to_get_it():
    assert "libshmem_device.my_pe cannot be compiled by the nvidia backend: it takes NVSHMEM" in refusal(
        shmem_kernels.exchange, EXCHANGE, "sm_90")


def test_a_process_of_another_backend_compiles_for_the_target():
    """What a kernel may call, and who refuses it, is the target's affair: this process runs the emulator, which has all."""
    assert backend().name == "emulator"
    for target, name in (("sm_90", "nvidia"), ("gfx942", "amd")):
        assert f"cannot be compiled by the {name} backend" in refusal(shmem_kernels.exchange, EXCHANGE, target)


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - set(shmem_kernels.on_nvidia())))
def test_nvidia_refuses_what_nvshmem_has_not(name, tmp_path):
    text = refusal(shmem_kernels.make(tmp_path, name), shmem_kernels.SIGNATURE, "sm_90", **linked())
    assert f"libshmem_device.{name} cannot be compiled by the nvidia backend: NVSHMEM's device library has no" in text


def test_what_needs_a_newer_gpu_is_refused_on_an_older_one(home, tmp_path):
    fake_nvshmem.write(home, version=(3, 6, 5), multicast="nvshmemx_fcollectmem_warp")
    text = refusal(shmem_kernels.make(tmp_path, "fcollect_warp"), shmem_kernels.SIGNATURE, "sm_80", **linked("sm_80"))
    assert "libshmem_device.fcollect_warp cannot be compiled by the nvidia backend: this NVSHMEM's code of it needs" in text
    others = [name for name in shmem_kernels.on_nvidia() if name not in ("fcollect_warp", "fcollectmem_warp")]
    compile_kernel(shmem_kernels.make(tmp_path, *others), shmem_kernels.SIGNATURE, {}, "sm_80", **linked("sm_80"))
    nvshmem_library.library.cache_clear()
    kernel = compile_kernel(shmem_kernels.make(tmp_path, "fcollectmem_warp"), shmem_kernels.SIGNATURE, {}, "sm_90", **linked())
    assert "multimem.st" in kernel.asm["ptx"]


def test_a_gluon_kernel_is_refused():
    @gluon.jit
    def partitioned(n):
        shmem.barrier_all()
    assert "in a Gluon kernel" in refusal(partitioned, dict(n="i32"), "sm_90", **linked())


# -- arguments ---------------------------------------------------------------------------------------------------------
@triton_dist.jit
def misuse(p, q, flag, small, x, long, n, WHAT: tl.constexpr):
    if WHAT == "block of pointers":
        shmem.putmem(p + tl.arange(0, 16), q, 64, 1)
    elif WHAT == "no pointer":
        shmem.putmem_nbi_warp(p, n, 64, 1)
    elif WHAT == "float size":
        shmem.getmem(p, q, x, 1)
    elif WHAT == "negative size":
        shmem.getmem_block(p, q, -4, 1)
    elif WHAT == "negative pe":
        shmem.getmem_block(p, q, 4, -1)
    elif WHAT == "wide pe":
        shmem.putmem(p, q, 4, long)
    elif WHAT == "invalid team":
        shmem.barrier(shmem.NVSHMEM_TEAM_INVALID)
    elif WHAT == "small flag":
        shmem.putmem_signal(p, q, 4, small, 1, 9, 1)
    elif WHAT == "unknown op":
        shmem.signal_op(flag, 1, 3, 1)
    elif WHAT == "float op":
        shmem.signal_op(flag, 1, x, 1)
    elif WHAT == "unknown comparison":
        shmem.signal_wait_until(flag, 6, 1)
    elif WHAT == "two types":
        shmem.broadcast(0, p, small, 4, 0)
    elif WHAT == "int_p of floats":
        shmem.int_p(p, 1, 1)
    elif WHAT == "longs of floats":
        shmem.ulong_put_signal(p, q, 1, flag, 1, 9, 1)
    elif WHAT == "queue pair":
        shmem.putmem_nbi(p, q, 4, 1, 2)
    elif WHAT == "too few":
        shmem.putmem(p, q, 4)


TOLD = {
    "block of pointers": r"libshmem_device.putmem: dest must be a scalar or one pointer, got a block of shape \[16\]",
    "no pointer": r"libshmem_device.putmem_nbi_warp: source must be a pointer, got int32",
    "float size": r"libshmem_device.getmem: bytes must be an integer, got fp32",
    "negative size": r"libshmem_device.getmem_block: bytes must be at least 0, got -4",
    "negative pe": r"libshmem_device.getmem_block: pe must be at least 0, got -1",
    "wide pe": r"libshmem_device.putmem: pe must be an int32, got int64; convert it with .to\(tl.int32\)",
    "invalid team": r"libshmem_device.barrier: team must be at least 0, got -1",
    "small flag": r"libshmem_device.putmem_signal: sig_addr must point to a 64-bit integer, got pointer<int32>",
    "unknown op": r"libshmem_device.signal_op: sig_op must be a constexpr, NVSHMEM_SIGNAL_SET or NVSHMEM_SIGNAL_ADD, got 3",
    "float op": r"libshmem_device.signal_op: sig_op must be a constexpr, .*, got a runtime value, fp32",
    "unknown comparison": r"libshmem_device.signal_wait_until: cmp_ must be a constexpr, one of NVSHMEM_CMP_EQ.*, got 6",
    "two types": r"libshmem_device.broadcast: dest and source must be of one type, got pointer<fp32> and pointer<int32>",
    "int_p of floats": r"libshmem_device.int_p: dest must point to 32-bit integers, got pointer<fp32>",
    "longs of floats": r"libshmem_device.ulong_put_signal: dest and source must point to 64-bit integers, got pointer<fp32>",
    "queue pair": r"libshmem_device.putmem_nbi: qp_id must be a constexpr, 0: .*, got 2",
    "too few": r"libshmem_device.putmem\(dest, source, bytes, pe\): missing a required argument: 'pe'",
}


@pytest.mark.parametrize("what", TOLD)
def test_wrong_arguments_are_told_when_the_kernel_is_traced(what):
    signature = dict(p="*fp32", q="*fp32", flag="*i64", small="*i32", x="fp32", long="i64", n="i32", WHAT="constexpr")
    assert re.search(TOLD[what], refusal(misuse, signature, "sm_90", dict(WHAT=what), extern_libs={LIBRARY: STAND_IN}))


# -- code --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_every_function_compiles_to_a_call_of_nvshmem(target, tmp_path):
    names = shmem_kernels.on_nvidia()
    kernel = compile_kernel(shmem_kernels.make(tmp_path, *names), shmem_kernels.SIGNATURE, {}, target, **linked(target))
    called = [function_of(ROWS[FUNCTIONS[name].symbol]) for name in names]
    assert re.findall(r"// MARK (\w+)", kernel.asm["ptx"]) == called
    for symbol in (b"nvshmemi_device_state_d", b"nvshmemi_device_lib_version_d"):
        assert symbol in kernel.asm["cubin"]


@pytest.mark.parametrize("scope, limit", [("thread", 1), ("warp", 32), ("block", None)])
def test_who_calls(scope, limit):
    ptx = compile_kernel(shmem_kernels.scopes, SCOPES, dict(SCOPE=scope), "sm_90", **linked()).asm["ptx"]
    before, _, after = ptx.partition("// MARK nvshmem")
    assert before.count("bar.sync") == 1 and after.count("bar.sync") == 1
    guard = re.search(r"setp\.(ne|gt)\.[bus]32\s+%p\d+, (%r\d+), (\d+);\s+@%p\d+ bra", before[before.index("bar.sync"):])
    assert (guard is None) == (limit is None)
    if limit is not None:
        assert (guard[1], int(guard[3])) == (("ne", 0) if limit == 1 else ("gt", limit - 1))


@triton_dist.jit
def of_threads(dest, source, sig_addr, n, out):
    t = tid(0)
    if t == 0:
        shmem.putmem_nbi(dest, source, n, 1)
        shmem.fence()
        shmem.signal_op(sig_addr, 1, shmem.NVSHMEM_SIGNAL_ADD, 1)
    if t < n:
        shmem.signal_wait_until(sig_addr, shmem.NVSHMEM_CMP_EQ, 1)
        st(out + t, shmem.atomic_fetch_add(sig_addr, 1, 0))
    shmem.putmem_block(dest, source, n, 1)


def test_in_kernels_of_threads_a_thread_calls_for_itself():
    """No barrier in a branch that only some threads take; a call of block scope keeps its two."""
    signature = dict(dest="*fp32", source="*fp32", sig_addr="*i64", n="i32", out="*i64")
    both = {**linked()["extern_libs"], THREADS: thread_library("nvidia")}
    ptx = compile_kernel(of_threads, signature, {}, "sm_90", extern_libs=both).asm["ptx"]
    marks = re.findall(r"// MARK (\w+)", ptx)
    assert marks == ["nvshmem_putmem_nbi", "nvshmem_fence", "nvshmemx_signal_op", "nvshmem_signal_wait_until",
                     "nvshmem_uint64_atomic_fetch_add", "nvshmemx_putmem_block"]
    before, _, after = ptx.partition("// MARK nvshmem_uint64_atomic_fetch_add")
    assert "bar.sync" not in before and after.count("bar.sync") == 2


@triton_dist.jit
def by_address(address, n, op, out):
    """As torch's bindings pass them: addresses as integers, a signal operator known at run time."""
    shmem.putmem_block(address, address + 64, 16, n)
    shmem.signal_op(address, 5, op, n)
    tl.store(out, shmem.signal_wait_until(address, op, 1))


def test_addresses_may_be_integers_and_operators_values():
    ptx = compile_kernel(by_address, dict(address="i64", n="i32", op="i32", out="*i64"), {}, "sm_90", **linked()).asm["ptx"]
    assert re.findall(r"// MARK (\w+)", ptx) == ["nvshmemx_putmem_block", "nvshmemx_signal_op", "nvshmem_signal_wait_until"]


def test_sizes_are_multiplied_and_arguments_keep_their_places(tmp_path):
    kernel = shmem_kernels.make(tmp_path, "broadcast_block")
    ptx = compile_kernel(kernel, shmem_kernels.SIGNATURE, {}, "sm_90", **linked()).asm["ptx"]
    mark = re.search(r"// MARK nvshmemx_broadcastmem_block (\S+) (\S+) (\S+) (\S+) (\S+)", ptx)
    team, dest, source, count, root = mark.groups()
    parameter = dict(re.findall(r"ld\.param\.\w+\s+(%\w+), \[\w+_param_(\d+)\]", ptx))
    order = list(shmem_kernels.SIGNATURE)
    assert [order[int(parameter[register])] for register in (team, dest, source, root)] == ["team", "dest", "source", "pe"]
    made = re.search(rf"(?:shl\.b64|mul\.wide\.[su]32)\s+{count}, (%\w+), (\d+);", ptx)
    assert made and int(made[2]) in (2, 4)


def test_a_kernel_without_calls_is_not_changed():
    kernel = compile_kernel(world_barrier, dict(out="*i32"), {}, "sm_90", **linked())
    assert "nvshmem" not in kernel.asm["ptx"] and b"nvshmem" not in kernel.asm["cubin"]


def test_the_wait_comes_after_the_put():
    ptx = compile_kernel(shmem_kernels.exchange, EXCHANGE, {}, "sm_90", **linked()).asm["ptx"]
    marks = re.findall(r"// MARK (\w+)", ptx)
    assert marks == ["nvshmem_my_pe", "nvshmem_n_pes", "nvshmem_putmem_signal", "nvshmem_signal_wait_until"]


# -- the library -------------------------------------------------------------------------------------------------------
def test_the_library_is_made_once_for_each_content_and_architecture(home, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", str(home / "cache"))
    path, version = nvshmem_library.library(90)
    assert version == "3.4.5" and "tdist_shmem_3.4.5_sm90_" in path
    nvshmem_library.library.cache_clear()
    monkeypatch.setattr(nvshmem_library, "slim", lambda *_: pytest.fail("made again"))
    assert nvshmem_library.library(90) == (path, version)
    monkeypatch.setattr(nvshmem_library, "slim", lambda bitcode, capability: (f"{bitcode} {capability}", "3.4.6"))
    assert nvshmem_library.library(80)[0] != path
    fake_nvshmem.write(home, version=(3, 4, 6))
    nvshmem_library.library.cache_clear()
    assert nvshmem_library.library(90)[1] == "3.4.6"
    assert len(list((home / "cache").rglob("*.ll"))) == 3 and not list((home / "cache").rglob("*.tmp"))


def test_bitcode_is_found_by_architecture(home):
    assert nvshmem_library.find_bitcode(80) == home / "lib" / "libnvshmem_device.bc"
    (home / "lib" / "libnvshmem_device.bc").unlink()
    for arch in (70, 80, 90):
        fake_nvshmem.write(home, f"libnvshmem_device_sm_{arch}.bc")
    found = {capability: nvshmem_library.find_bitcode(capability).name for capability in (75, 80, 89, 90, 100)}
    assert found == {75: "libnvshmem_device_sm_70.bc", 80: "libnvshmem_device_sm_80.bc", 89: "libnvshmem_device_sm_80.bc",
                     90: "libnvshmem_device_sm_90.bc", 100: "libnvshmem_device_sm_90.bc"}
    with pytest.raises(UnsupportedFeature, match=f"for sm_60: found none in {home}"):
        nvshmem_library.find_bitcode(60)


def test_a_library_that_lacks_a_function_or_cannot_be_read_is_told(home):
    path = fake_nvshmem.write(home, without="nvshmemx_signal_op")
    with pytest.raises(UnsupportedFeature, match="none of its nvshmemx_signal_op"):
        nvshmem_library.slim(str(path), 90)
    path.write_bytes(b"BC\xc0\xde of another age")
    with pytest.raises(UnsupportedFeature, match="cannot read it"):
        nvshmem_library.slim(str(path), 90)

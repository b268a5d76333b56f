# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""libshmem_device compiled for AMD GPUs over a stand-in for rocSHMEM's device bitcode, and what is refused."""
import re
import struct

import fake_rocshmem
import pytest
import shmem_kernels
from compile_util import HIP, compile_kernel
from test_shmem_code import EXCHANGE, SCOPES, refusal

from triton_dist.backends.amd import rocshmem_library
from triton_dist.backends.amd.rocshmem_functions import function_of
from triton_dist.language.abi import ROWS
from triton_dist.language.shmem_abi import FUNCTIONS
from triton_dist.runtime.errors import UnsupportedFeature

THERE = [name for name, function in FUNCTIONS.items() if function_of(ROWS[function.symbol])]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A rocSHMEM installation of stand-ins."""
    fake_rocshmem.write(tmp_path)
    monkeypatch.setenv("ROCSHMEM_HOME", str(tmp_path))
    return tmp_path


def compiled(kernel, signature: dict, target: str, **constants):
    return compile_kernel(kernel, signature, constants, target, extern_libs=rocshmem_library.libraries(target))


def marks(kernel) -> list:
    """[(function, operands)] of the stand-in's calls, in order."""
    found = re.findall(r"; MARK (\w+) ?(.*)", kernel.asm["amdgcn"])
    return [(name, operands.split()) for name, operands in found]


def test_what_is_called_has_the_published_parameters():
    declared = re.findall(r"^declare (\w+) @(rocshmem_\w+)\((.*)\)$", rocshmem_library.text(), re.M)
    assert {name: (result, types.replace(",", "")) for result, name, types in declared} == fake_rocshmem.PUBLISHED


@pytest.mark.parametrize("target", HIP)
def test_every_function_compiles_and_calls_its_own(target, tmp_path):
    assert len(THERE) > 45
    rows = list({FUNCTIONS[name].symbol: name for name in THERE}.values())
    for names in (rows[i:i + 8] for i in range(0, len(rows), 8)):
        kernel = compiled(shmem_kernels.make(tmp_path, *names), shmem_kernels.SIGNATURE, target)
        called = [name for name, _ in marks(kernel)]
        for row in (ROWS[FUNCTIONS[name].symbol] for name in names):
            function = "rocshmem_ulong_atomic_add" if row.symbol.endswith("signal_op") else function_of(row)
            assert called.count(function) == 1 or row.pure and function in called, (function, called)
        assert kernel.asm["hsaco"] and rocshmem_library.STATE.encode() in kernel.asm["hsaco"]


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - set(THERE)))
def test_what_the_bitcode_has_not_is_refused_by_name(name, tmp_path):
    text = refusal(shmem_kernels.make(tmp_path, name), shmem_kernels.SIGNATURE, "gfx942",
                   extern_libs=rocshmem_library.libraries("gfx942"))
    assert f"libshmem_device.{name} cannot be compiled by the amd backend: rocSHMEM's device bitcode has no such" in text


def test_without_the_heap_the_error_says_how_to_get_it():
    text = refusal(shmem_kernels.exchange, EXCHANGE, "gfx942")
    assert "libshmem_device.my_pe cannot be compiled by the amd backend: it takes rocSHMEM" in text
    assert "TRITON_DIST_HEAP=rocshmem" in text


@pytest.mark.parametrize("target", HIP)
def test_numbers_are_rocshmems_own(target):
    """NVSHMEM's SET (9) is its 0; GE, NVSHMEM's 5, is its 3."""
    kernel = compiled(shmem_kernels.exchange, EXCHANGE, target)
    (put, operands), (wait, compared) = [mark for mark in marks(kernel) if mark[0] not in ("rocshmem_my_pe", "rocshmem_n_pes")]
    assert (put, wait) == ("rocshmem_putmem_signal", "rocshmem_uint64_wait_until")
    assert value_of(kernel, operands[5], put) == 0 and value_of(kernel, compared[1], wait) == 3


@pytest.mark.parametrize("teams", ["C", "C++", ""])
@pytest.mark.parametrize("scope", ["thread", "block"])
def test_a_module_has_the_teams_that_newer_releases_fill(home, teams, scope):
    fake_rocshmem.write(home, teams=teams)
    binary = compiled(shmem_kernels.scopes, SCOPES, "gfx942", SCOPE=scope).asm["hsaco"]
    assert all(defines(binary, name) == (teams == "C") for name in rocshmem_library.TEAMS)
    assert defines(binary, rocshmem_library.STATE)


def defines(binary: bytes, name: str) -> bool:
    """Whether the ELF file's dynamic symbols have a definition of `name`."""
    start, = struct.unpack_from("<Q", binary, 40)
    size, count = struct.unpack_from("<HH", binary, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", binary, start + i * size) for i in range(count)]
    table = next(section for section in sections if section[1] == 11)               # SHT_DYNSYM
    names = sections[table[6]][4]
    for at in range(table[4], table[4] + table[5], table[9]):
        offset, _, _, section = struct.unpack_from("<IBBH", binary, at)
        if binary[names + offset:binary.index(0, names + offset)] == name.encode():
            return section != 0
    return False


def value_of(kernel, register: str, function: str) -> int:
    """The constant that a vector register holds at a call."""
    lines = kernel.asm["amdgcn"].splitlines()
    at = next(i for i, line in enumerate(lines) if f"; MARK {function} " in line)
    found = [re.search(rf"v_mov_b32_e32 {register}, (-?\w+)$", line.strip()) for line in lines[:at]]
    return int([match[1] for match in found if match][-1], 0)


@pytest.mark.parametrize("target", HIP)
def test_all_waves_stores_are_written_back_before_a_put_and_caches_dropped_after_it(target):
    kernel = compiled(shmem_kernels.exchange, EXCHANGE, target)
    lines = [line.strip() for line in kernel.asm["amdgcn"].splitlines()]
    put = next(i for i, line in enumerate(lines) if "MARK rocshmem_putmem_signal" in line)
    back = "buffer_wbl2" if target == "gfx90a" else "buffer_wbl2 sc0 sc1"
    drop = "buffer_invl2" if target == "gfx90a" else "buffer_inv sc0 sc1"

    def last(pattern: str, before: int) -> int:
        return max(i for i in range(before) if re.match(pattern, lines[i]))
    written = last(back, put)
    barrier = last("s_barrier", written)
    assert any(re.match(r"s_waitcnt vmcnt\(0\)", line) for line in lines[written:put]), "the write-back is waited for"
    assert any(re.match(r"s_waitcnt vmcnt\(0\)", line) for line in lines[barrier - 4:barrier]), "each wave waits for its stores"
    after = next(i for i in range(put, len(lines)) if lines[i].startswith("s_barrier"))
    assert next(i for i in range(after, len(lines)) if lines[i].startswith(drop)) < next(
        i for i in range(after, len(lines)) if "MARK" in lines[i])


@pytest.mark.parametrize("scope, function", [("thread", "rocshmem_putmem"), ("warp", "rocshmem_putmem_wave"),
                                             ("block", "rocshmem_putmem_wg")])
def test_as_many_threads_call_as_the_scope_says(scope, function):
    kernel = compiled(shmem_kernels.scopes, SCOPES, "gfx942", SCOPE=scope)
    assert [name for name, _ in marks(kernel)] == [function]
    compares = re.findall(r"v_cmp_\w+_u32_e\d+ \S+ (?:(\w+), v0|v0, (\w+))$", kernel.asm["amdgcn"], re.M)
    limits = {int(number, 0) for pair in compares for number in pair if re.fullmatch(r"0x[0-9a-f]+|\d+", number)}
    if scope != "block":                        # no program has more threads than a block
        assert limits & {"thread": {0, 1}, "warp": {63, 64}}[scope], limits


def test_bitcode_that_is_missing_or_another_is_told(home, monkeypatch):
    fake_rocshmem.write(home, without="rocshmem_uint64_wait_until")
    with pytest.raises(UnsupportedFeature, match="found none of rocshmem_uint64_wait_until; build a newer rocSHMEM"):
        rocshmem_library.libraries("gfx942")
    (home / "lib" / "librocshmem_device_gfx942.bc").unlink()
    with pytest.raises(UnsupportedFeature, match="found no lib/librocshmem_device_gfx942.bc in"):
        rocshmem_library.libraries("gfx942")
    with pytest.raises(UnsupportedFeature, match="gfx1100: expected one of gfx90a, gfx942, gfx950"):
        rocshmem_library.libraries("gfx1100")

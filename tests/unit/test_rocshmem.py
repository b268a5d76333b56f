# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The binding to rocSHMEM: its C library compiled against the published signatures, run over a stand-in by several processes."""
import json
import re
import shutil
import subprocess
import types
from pathlib import Path

import pytest
import torch
from launched import python

from triton_dist.backends.amd import rocshmem, rocshmem_functions, rocshmem_library
from triton_dist.language.abi import ROWS
from triton_dist.language.shmem_abi import LIBRARY
from triton_dist.runtime.errors import InvalidArgument, NotInitialized, OutOfHeap, UnsupportedFeature

BIND = Path(__file__).parents[2] / "shmem/rocshmem_bind"
COMPILER = shutil.which("g++") or shutil.which("c++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")

# Names that g++ makes of the published declarations. Another signature has another name.
PUBLISHED = {
    "_ZN8rocshmem18rocshmem_init_attrEjPNS_20rocshmem_init_attr_tE", "_ZN8rocshmem21rocshmem_get_uniqueidEPSt5arrayIhLm128EE",
    "_ZN8rocshmem31rocshmem_set_attr_uniqueid_argsEiiPSt5arrayIhLm128EEPNS_20rocshmem_init_attr_tE",
    "_ZN8rocshmem15rocshmem_mallocEm", "_ZN8rocshmem13rocshmem_freeEPv", "_ZN8rocshmem12rocshmem_ptrEPKvi",
    "_ZN8rocshmem14rocshmem_my_peEv", "_ZN8rocshmem14rocshmem_n_pesEv", "_ZN8rocshmem20rocshmem_barrier_allEv",
    "_ZN8rocshmem17rocshmem_finalizeEv", "_ZN8rocshmem23rocshmem_hipmodule_initEP12ihipModule_tP12ihipStream_t",
}
RANKS = '''
import ctypes, json, os, signal, sys
import torch
import torch.distributed as dist
from triton_dist.backends.amd import rocshmem

folder, environments = sys.argv[1], json.loads(sys.argv[2])
size, store, ranks = len(environments), f"{folder}/store", []
for rank in range(size):
    pid = os.fork()
    if not pid:
        break
    ranks.append(pid)
else:
    for pid in ranks:
        os.waitpid(pid, 0)
    sys.exit()
signal.alarm(60)
os.environ.update(environments[rank])
for number in (1, 2):
    os.dup2(os.open(f"{folder}/{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), number)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)


class World:
    rank, size = rank, size

    def all_gather_object(self, value):
        found = [None] * size
        dist.all_gather_object(found, value)
        return found

    def broadcast_object(self, value):
        found = [value]
        dist.broadcast_object_list(found)
        return found[0]


def tensor(address, nbytes):
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)


BYTES = 3 << 20             # more than rocSHMEM's heap has by itself
try:
    library = rocshmem.join(World(), BYTES)
    assert (library.my_pe(), library.n_pes()) == (rank, size)
    arena = rocshmem.RocshmemArena(library, BYTES, World(), tensor)
    for peer in range(size):
        arena.view(peer)[rank] = 10 + rank
    library.barrier_all()
    assert arena.local[:size].tolist() == [10 + peer for peer in range(size)], arena.local[:size]
    library.barrier_all()
    for wrong in (-1, size):
        try:
            arena.view(wrong)
        except ValueError:
            continue
        raise AssertionError(wrong)
    arena.part()
    print("joined and left", flush=True)
except rocshmem.UnsupportedFeature as error:
    print("refused:", error, flush=True)
except MemoryError as error:
    os.environ.pop("ROCSHMEM_STUB_FAIL", None)
    rocshmem.RocshmemArena(rocshmem.join(World(), BYTES), BYTES, World(), tensor).part()
    print("full:", error, "; joined later", flush=True)
'''


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """libtdist_rocshmem.so over the stand-in."""
    folder = tmp_path_factory.mktemp("rocshmem")
    common = [COMPILER, "-std=c++17", "-O1", "-Wall", "-Werror", "-fPIC", f"-I{BIND / 'stub'}"]
    subprocess.run([*common, "-c", BIND / "stub/rocshmem.cc", "-o", folder / "stub.o"], check=True)
    subprocess.run([*common, "-fvisibility=hidden", "-c", BIND / "shim.cc", "-o", folder / "shim.o"], check=True)
    subprocess.run([COMPILER, "-shared", folder / "shim.o", folder / "stub.o", "-lrt", "-o", folder / "libtdist_rocshmem.so"],
                   check=True)
    return folder / "libtdist_rocshmem.so"


def run(shim, tmp_path, size: int, environ=None) -> list:
    """What each of `size` processes prints."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    environments = [{rocshmem.VARIABLE: str(shim), **(environ(rank) if environ else {})} for rank in range(size)]
    done = python(str(script), str(tmp_path), json.dumps(environments))
    assert not done.returncode, done.stderr
    return [(tmp_path / str(rank)).read_text() for rank in range(size)]


def test_the_shim_calls_exactly_the_published_functions(shim):
    names = subprocess.run(["nm", "-u", shim.parent / "shim.o"], check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r"\b(_ZN8rocshmem\w+)", names)) == PUBLISHED
    exported = subprocess.run(["nm", "--defined-only", shim], check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r" T tdist_rocshmem_(\w+)", exported)) == {
        "version", "unique_id", "init", "malloc", "free", "ptr", "my_pe", "n_pes", "barrier_all", "finalize", "module_init"}


@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.full) for size in (1, 3))])
def test_ranks_join_by_a_unique_id_and_reach_each_other(shim, tmp_path, size):
    said = run(shim, tmp_path, size)
    assert all("joined and left" in text for text in said), said


@pytest.mark.full
def test_a_rank_that_cannot_load_the_binding_is_named_on_every_rank(shim, tmp_path):
    said = run(shim, tmp_path, 2, lambda rank: {rocshmem.VARIABLE: "/nowhere.so"} if rank == 1 else {})
    assert all("refused: TRITON_DIST_HEAP=rocshmem: rank 1: cannot load" in text for text in said), said


@pytest.mark.full
def test_a_heap_that_does_not_fit_on_one_rank_is_refused_on_every_rank(shim, tmp_path):
    said = run(shim, tmp_path, 2, lambda rank: {"ROCSHMEM_STUB_FAIL": "malloc"} if rank == 1 else {})
    words = "full: rocSHMEM cannot allocate 3145728 bytes of symmetric heap on rank 1"
    assert all(words in text and "; joined later" in text for text in said), said


@pytest.mark.parametrize("address", [0, 4096])
def test_a_refused_heap_is_freed_and_left(address):
    calls = []
    library = types.SimpleNamespace(malloc=lambda nbytes: address, free=lambda it: calls.append(("free", it)),
                                    finalize=lambda: calls.append("finalize"))
    world = types.SimpleNamespace(rank=0, size=2, all_gather_object=lambda given: [given, False])
    with pytest.raises(OutOfHeap, match=f"on rank {int(address > 0)}"):
        rocshmem.RocshmemArena(library, 512, world, None)
    assert calls == [("free", address)] * (address > 0) + ["finalize"]


@pytest.mark.full
def test_joining_that_fails_everywhere_says_which_call(shim, tmp_path):
    said = run(shim, tmp_path, 2, lambda rank: {"ROCSHMEM_STUB_FAIL": "init"})
    assert all("rank 0: rocshmem_init_attr failed with 1" in text for text in said), said


def test_wrong_libraries_and_ids_are_refused(shim):
    library = rocshmem.Rocshmem(str(shim))
    with pytest.raises(InvalidArgument, match="expected 128 bytes, found 3"):
        library.init(0, 1, b"abc")
    with pytest.raises(UnsupportedFeature, match="rocshmem_hipmodule_init failed"):
        library.module_init(0, 0)
    assert len({library.unique_id() for _ in range(4)}) == 4
    with pytest.raises(UnsupportedFeature, match="is not rocSHMEM's binding"):
        rocshmem.Rocshmem("libc.so.6")


def test_every_shmem_row_has_a_function_or_a_reason():
    stems = {row.stem for row in ROWS.values() if row.library == LIBRARY}
    assert stems == {*rocshmem_functions.NAMES, *rocshmem_functions.REASONS}
    assert not {*rocshmem_functions.NAMES} & {*rocshmem_functions.REASONS} and all(rocshmem_functions.REASONS.values())


# -- kernels that call it ----------------------------------------------------------------------------------------------
@pytest.fixture
def hooks(monkeypatch):
    """Triton's load hooks, called by hand."""
    import triton

    from triton_dist.backends.gpu import shmem_modules
    made = types.SimpleNamespace(kernel_load_start_hook=triton.knobs.HookChain(), kernel_load_end_hook=triton.knobs.HookChain())
    monkeypatch.setattr(shmem_modules, "knobs", types.SimpleNamespace(runtime=made))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return made


def files(folder, calls: bool) -> dict:
    """The files of a compiled kernel that calls rocSHMEM, or does not."""
    (folder / "k.json").write_text(json.dumps({"extern_libs": [[LIBRARY, "rows.ll"], ["shmem", "rocshmem.bc"]]}))
    (folder / "k.hsaco").write_bytes(b"\x7fELF" + (rocshmem_library.STATE.encode() if calls else b""))
    return {name: str(folder / name) for name in ("k.json", "k.hsaco")}


@pytest.mark.parametrize("calls", [True, False])
def test_modules_that_call_rocshmem_get_its_context_early_and_late(calls, hooks, tmp_path):
    modules, told = rocshmem.RocshmemModules(), []
    group = files(tmp_path, calls)

    def load(module):
        for hook in (hooks.kernel_load_start_hook, hooks.kernel_load_end_hook):
            hook(module, None, "kernel", group, "hash")
    if calls:
        with pytest.raises(NotInitialized, match="kernel: calls rocSHMEM, .* TRITON_DIST_HEAP=rocshmem"):
            load(7)
    modules.start(told.append, lambda module: None)
    load(8)
    assert told == [8] * calls
    modules.stop()
    modules.start(told.append, lambda module: None)                 # the next world
    assert told == [8, 8] * calls


def test_the_backend_links_the_bitcode_of_its_gpu_or_says_why_not(hooks, tmp_path, monkeypatch):
    from triton_dist.backends.amd.backend import AmdBackend
    monkeypatch.setenv("ROCSHMEM_HOME", str(tmp_path))
    monkeypatch.setattr(AmdBackend, "device", lambda self: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda device: types.SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-"))
    backend = AmdBackend()
    assert "TRITON_DIST_HEAP=rocshmem" in backend.no_shmem()
    backend._link_shmem(None)
    assert "found no lib/librocshmem_device_gfx942.bc" in backend.no_shmem() and LIBRARY not in backend._extern_libs
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "librocshmem_device_gfx942.bc").write_text(" ".join((*rocshmem_library._NEEDED, rocshmem_library.STATE)))
    backend._link_shmem(None)
    assert backend.no_shmem() is None and list(backend._extern_libs)[-2:] == [LIBRARY, rocshmem_library.BITCODE]
    assert backend._extern_libs[rocshmem_library.BITCODE].endswith("librocshmem_device_gfx942.bc")

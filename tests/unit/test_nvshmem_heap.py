# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The NVSHMEM heap with everything of NVIDIA's faked: what is called, in what order, and what is refused."""
import json
import os
import sys
import types

import pytest
import torch

from triton_dist.backends.gpu import shmem_modules
from triton_dist.backends.gpu import heap_provider as providers
from triton_dist.backends.nvidia import nvshmem
from triton_dist.backends.nvidia.backend import NvidiaBackend
from triton_dist.backends.gpu.p2p import LocalArena
from triton_dist.language.shmem_abi import LIBRARY
from triton_dist.runtime import hosts
from triton_dist.runtime.errors import InvalidArgument, NotInitialized, OutOfHeap, UnsupportedFeature
from triton_dist.runtime.groups import Group, SoloGroup


class World(Group):
    """Rank 0 of two; what the other rank would answer is given, or the same."""

    rank, size, world_ranks = 0, 2, (0, 1)

    def __init__(self, *others):
        self.others, self.calls = list(others), []

    def barrier(self):
        self.calls.append("barrier")

    def all_gather_object(self, obj):
        return [obj, self.others.pop(0) if self.others else obj]

    def broadcast_object(self, obj, root=0):
        self.calls.append(("broadcast", obj))
        return obj

    all_gather_tensor = reduce_scatter_tensor = all_reduce_tensor = all_to_all_tensor = None


class Nvshmem:
    """nvshmem4py, as far as it is used."""

    def __init__(self, version="3.4.5", room=1 << 20):
        self.version, self.room, self.calls, self.slabs, self.joined = version, room, [], {}, False

    def get_version(self):
        return types.SimpleNamespace(libnvshmem_version=self.version)

    def get_unique_id(self, empty=False):
        return "empty" if empty else "unique id"

    def init(self, **how):
        assert not self.joined, "NVSHMEM is joined twice"
        self.joined = True
        self.calls.append(("init", how))

    def tensor(self, shape, dtype, except_on_del):
        if shape[0] > self.room:
            raise RuntimeError("no room")
        self.slabs = {rank: torch.full(shape, 7, dtype=dtype) for rank in range(2)}
        return self.slabs[0]

    def get_peer_tensor(self, tensor, rank):
        return self.slabs[rank]

    def free_tensor(self, tensor):
        self.calls.append(("free", tensor is self.slabs[0]))

    def finalize(self):
        self.joined = False
        self.calls.append(("finalize",))

    def TeamConfig(self):
        return "defaults"

    def team_split_strided(self, parent, start, stride, size, config, mask, new_team_name):
        self.calls.append(("split", parent, start, stride, size, config, mask))
        return None if start > 0 else 7

    # nvshmem.bindings
    def ptr(self, address, rank):
        return self.slabs[rank].data_ptr() if self.reach else 0

    def cumodule_init(self, module):
        self.calls.append(("cumodule_init", module))

    def cumodule_finalize(self, module):
        self.calls.append(("cumodule_finalize", module))

    reach = True


class Device:
    def __init__(self, index):
        self.index = index

    def set_current(self):
        pass


@pytest.fixture
def fake(monkeypatch):
    """nvshmem4py, cuda.core, a GPU of sm_90 and a device library of 3.4.5."""
    made = Nvshmem()
    modules = {"nvshmem": types.ModuleType("nvshmem"), "nvshmem.core": made, "cuda": types.ModuleType("cuda"),
               "cuda.core": types.SimpleNamespace(Device=Device)}
    modules["nvshmem"].core, modules["nvshmem"].bindings = made, made
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(nvshmem.nvshmem_library, "library", lambda capability: (f"library for sm_{capability}", "3.4.5"))
    monkeypatch.setenv("NVSHMEM_SYMMETRIC_SIZE", "")            # so that it is put back
    monkeypatch.delenv("NVSHMEM_SYMMETRIC_SIZE")
    return made


@pytest.fixture
def modules(monkeypatch):
    """NvshmemModules whose hooks are called by hand."""
    import triton
    monkeypatch.setattr(shmem_modules, "knobs", types.SimpleNamespace(runtime=types.SimpleNamespace(
        kernel_load_start_hook=triton.knobs.HookChain(), kernel_load_end_hook=triton.knobs.HookChain(),
        kernel_unload_hook=triton.knobs.HookChain())))
    return nvshmem.NvshmemModules()


def compiled(folder, calls: bool, linked: bool = True) -> dict:
    """The files of a compiled kernel that calls NVSHMEM, or does not."""
    (folder / "k.json").write_text(json.dumps({"extern_libs": [["tdist", "a"]] + [[LIBRARY, "b"]] * linked}))
    (folder / "k.cubin").write_bytes(b"\x7fELF" + (nvshmem.STATE.encode() if calls else b""))
    return {name: str(folder / name) for name in ("k.json", "k.cubin")}


def test_ranks_join_by_a_unique_id_and_one_allocation_is_the_arena(fake, modules):
    world = World()
    arena, library = nvshmem.reserve(4096, 0, world, modules)
    assert library == "library for sm_90" and ("broadcast", "unique id") in world.calls
    (_, how), = fake.calls
    assert {**how, "device": how["device"].index} == dict(device=0, uid="unique id", rank=0, nranks=2, initializer_method="uid")
    assert arena.bases == [fake.slabs[rank].data_ptr() for rank in range(2)] and arena.nbytes == 4096
    assert arena.view(0) is arena.local and arena.view(1) is fake.slabs[1]
    arena.part()
    arena.close()
    arena.close()
    assert fake.calls[1:] == [("free", True), ("finalize",)]


def test_a_rank_out_of_reach_has_base_0_and_no_view(fake, modules):
    fake.reach = False
    arena, _ = nvshmem.reserve(4096, 0, World(), modules)
    assert arena.bases[0] and arena.bases[1] == 0
    for rank in (1, 2, -1):
        with pytest.raises(InvalidArgument, match=f"found {rank}"):
            arena.view(rank)


def test_nvshmems_own_heap_has_room_for_this_world_unless_the_user_says_otherwise(fake, modules, monkeypatch):
    """The size that the first world had set stayed for later and larger ones."""
    for nbytes in (1 << 20, 4096):
        arena, _ = nvshmem.reserve(nbytes, 0, World(), modules)
        arena.part()
        assert int(os.environ["NVSHMEM_SYMMETRIC_SIZE"]) - nbytes == 256 << 20
    monkeypatch.setenv("NVSHMEM_SYMMETRIC_SIZE", "7G")
    nvshmem.reserve(4096, 0, World(), modules)
    assert os.environ["NVSHMEM_SYMMETRIC_SIZE"] == "7G"


def test_teams_are_split_from_the_world(fake, modules):
    arena, _ = nvshmem.reserve(4096, 0, World(), modules)
    assert arena.team((0, 2, 4), 0) == 7 and arena.team((1,), 0) == -1
    assert fake.calls[1:] == [("split", 0, 0, 2, 3, "defaults", 0), ("split", 0, 1, 1, 1, "defaults", 0)]


def test_other_heaps_have_no_teams():
    with pytest.raises(UnsupportedFeature, match="no SHMEM teams"):
        LocalArena(4096, torch.device("cpu")).team((0,), 0)


def test_host_and_device_library_must_be_one_release(fake, modules):
    fake.version = "3.5.0"
    with pytest.raises(UnsupportedFeature, match="rank 0: NVSHMEM's host library is 3.5.0, its device library 3.4.5"):
        nvshmem.reserve(4096, 0, World(), modules)
    assert not fake.calls


def test_what_one_rank_lacks_all_ranks_are_told(fake, modules):
    with pytest.raises(UnsupportedFeature, match="TRITON_DIST_HEAP=nvshmem: rank 1: no package"):
        nvshmem.reserve(4096, 0, World("no package"), modules)
    assert not fake.calls


def test_a_missing_package_is_named(modules, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvshmem", None)
    with pytest.raises(UnsupportedFeature, match="nvshmem4py cannot be imported .*install the extra nvshmem-cu"):
        nvshmem.reserve(4096, 0, World(), modules)


def test_too_large_a_heap_is_out_of_heap(fake, modules):
    with pytest.raises(OutOfHeap, match="rank 0: NVSHMEM cannot allocate 2097152 bytes"):
        nvshmem.reserve(2 << 20, 0, World(), modules)
    nvshmem.reserve(4096, 0, World(), modules)                  # the refused call has left NVSHMEM
    assert [call[0] for call in fake.calls] == ["init", "finalize", "init"]


def test_a_heap_without_room_on_one_rank_is_refused_on_all(fake, modules):
    with pytest.raises(OutOfHeap, match="rank 1: no room"):
        nvshmem.reserve(4096, 0, World("", "no room"), modules)


def test_modules_loaded_before_and_after_are_initialised(fake, modules, tmp_path):
    files = compiled(tmp_path, calls=True)

    def load(module):
        for hook in (modules._before_load, modules._after_load):
            hook(module, 0, "kernel", files, "hash")
    with pytest.raises(NotInitialized, match="kernel: calls NVSHMEM, which this process has not joined"):
        load(11)
    arena, _ = nvshmem.reserve(4096, 0, World(), modules)
    load(11)
    load(12)
    assert fake.calls[1:] == [("cumodule_init", 11), ("cumodule_init", 12)]
    arena.part()
    assert fake.calls[3:] == [("cumodule_finalize", 11), ("cumodule_finalize", 12), ("free", True), ("finalize",)]
    del fake.calls[:]
    nvshmem.reserve(4096, 0, World(), modules)
    assert fake.calls[1:] == [("cumodule_init", 11), ("cumodule_init", 12)]
    modules._before_unload(11, 0, "kernel", files, "hash")
    modules._before_unload(99, 0, "another", files, "hash")
    assert fake.calls[3:] == [("cumodule_finalize", 11)]


@pytest.mark.parametrize("linked", [True, False])
def test_modules_that_do_not_call_are_left_alone(fake, modules, tmp_path, linked):
    files = compiled(tmp_path, calls=not linked, linked=linked)
    for hook in (modules._before_load, modules._after_load):
        hook(11, 0, "kernel", files, "hash")
    nvshmem.reserve(4096, 0, World(), modules)
    assert [call[0] for call in fake.calls] == ["init"]


# -- TRITON_DIST_HEAP --------------------------------------------------------------------------------------------------
OFFERED = ("p2p", "nvshmem")


@pytest.mark.parametrize("asked, hosts, chosen", [
    (None, ("a", "a"), "p2p"), ("auto", ("a", "b"), "nvshmem"), ("", ("a", "b"), "nvshmem"), ("nvshmem", ("a", "a"), "nvshmem"),
    (" P2P ", ("a", "b"), "p2p")])
def test_the_provider_is_what_is_asked_for_or_what_the_hosts_leave(monkeypatch, asked, hosts, chosen):
    if asked is None:
        monkeypatch.delenv("TRITON_DIST_HEAP", raising=False)
    else:
        monkeypatch.setenv("TRITON_DIST_HEAP", asked)
    monkeypatch.setattr(providers, "host", lambda: hosts[0])
    assert providers.heap_provider(OFFERED, World((True, hosts[1]))) == chosen


def test_hosts_of_one_name_are_told_apart_by_their_boots(monkeypatch, tmp_path):
    """Such as "localhost": ranks tried to map memory of another machine."""
    found = []
    for boot in ("one", "two"):
        (tmp_path / boot).write_text(f"{boot}\n")
        monkeypatch.setattr(hosts, "_BOOT", tmp_path / boot)
        found.append(hosts.host.__wrapped__())
    assert found[0] != found[1] and all(name.startswith(f"{hosts.socket.gethostname()} ") for name in found)
    monkeypatch.setattr(hosts, "_BOOT", tmp_path / "none")
    assert hosts.host.__wrapped__() == hosts.socket.gethostname()


def test_another_word_or_another_rank_s_word_is_refused(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_HEAP", "rocshmem")
    with pytest.raises(InvalidArgument, match="TRITON_DIST_HEAP='rocshmem': expected one of p2p, nvshmem, auto"):
        providers.heap_provider(OFFERED, SoloGroup())
    monkeypatch.setenv("TRITON_DIST_HEAP", "p2p")
    with pytest.raises(InvalidArgument, match="something else on rank 1"):
        providers.heap_provider(OFFERED, World((False, "a")))
    with pytest.raises(InvalidArgument, match="ranks disagree"):
        providers.heap_provider(OFFERED, World((True, "a"), "nvshmem"))


def test_kernels_link_nvshmem_only_with_its_heap(fake, modules, monkeypatch):
    backend = NvidiaBackend.__new__(NvidiaBackend)
    backend._extern_libs, backend._shmem = {"tdist": "device runtime"}, modules
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(NvidiaBackend, "device", lambda self: torch.device("cpu"))
    assert isinstance(backend._arena("nvshmem", 4096, World()), nvshmem.NvshmemArena)
    assert backend._extern_libs == {"tdist": "device runtime", LIBRARY: "library for sm_90"} and backend.no_shmem() is None
    assert isinstance(backend._arena("p2p", 4096, SoloGroup()), LocalArena)
    assert backend._extern_libs == {"tdist": "device runtime"} and "TRITON_DIST_HEAP=nvshmem" in backend.no_shmem()

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""rocSHMEM from Python: the library that shmem/rocshmem_bind builds, and the symmetric heap over it.

Not yet run on an AMD machine; tests/unit/test_rocshmem.py runs it over a stand-in.
"""
import ctypes
import os
from typing import Any, Callable

from triton_dist.backends.amd.rocshmem_library import STATE
from triton_dist.backends.gpu.heap_provider import on_every_rank
from triton_dist.backends.gpu.shmem_modules import ShmemModules
from triton_dist.runtime.device import Arena
from triton_dist.runtime.errors import InvalidArgument, OutOfHeap, UnsupportedFeature
from triton_dist.runtime.groups import Group

VARIABLE, HEAP_SIZE = "TRITON_DIST_ROCSHMEM", "ROCSHMEM_HEAP_SIZE"
_VERSION, _ID_BYTES = 1, 128
_SLACK = 256 << 20                      # bytes of rocSHMEM's own heap beyond the arena


class Rocshmem:
    """The host functions, by their C names."""

    def __init__(self, path: str):
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise UnsupportedFeature(f"cannot load rocSHMEM's binding ({error}); build it with shmem/rocshmem_bind/build.sh and "
                                     f"set {VARIABLE} to the file") from error
        version = self._bound("version", ctypes.c_int)()
        if version != _VERSION:
            raise UnsupportedFeature(f"{path}: expected interface {_VERSION}, found {version}; build it again")
        size, address, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
        self._unique_id = self._bound("unique_id", number, ctypes.c_char_p)
        self._init = self._bound("init", number, number, number, ctypes.c_char_p)
        self._malloc = self._bound("malloc", address, size)
        self.free: Callable[[int], None] = self._bound("free", None, address)
        self._ptr = self._bound("ptr", address, address, number)
        self.my_pe: Callable[[], int] = self._bound("my_pe", number)
        self.n_pes: Callable[[], int] = self._bound("n_pes", number)
        self.barrier_all: Callable[[], None] = self._bound("barrier_all", None)
        self.finalize: Callable[[], None] = self._bound("finalize", None)
        self._module_init = self._bound("module_init", number, address, address)

    def _bound(self, name: str, result: Any, *types: Any) -> Callable:
        try:
            found = getattr(self._library, f"tdist_rocshmem_{name}")
        except AttributeError as error:
            raise UnsupportedFeature(f"{self._library._name} is not rocSHMEM's binding: it has no tdist_rocshmem_{name}"
                                     ) from error
        found.argtypes, found.restype = types, result
        return found

    def unique_id(self) -> bytes:
        """What all ranks of a world pass to `init`. Made by one of them."""
        raw = ctypes.create_string_buffer(_ID_BYTES)
        _check("rocshmem_get_uniqueid", self._unique_id(raw))
        return raw.raw

    def init(self, rank: int, ranks: int, unique_id: bytes) -> None:
        """Joins; returns once all ranks have called it."""
        if len(unique_id) != _ID_BYTES:
            raise InvalidArgument(f"unique_id: expected {_ID_BYTES} bytes, found {len(unique_id)}")
        _check("rocshmem_init_attr", self._init(rank, ranks, unique_id))

    def malloc(self, nbytes: int) -> int:
        """Address of `nbytes` of symmetric memory, or 0. All ranks call it with the same size."""
        return self._malloc(nbytes) or 0

    def ptr(self, address: int, pe: int) -> int:
        """Where `address`, of this rank's symmetric memory, lies on `pe`; 0 where loads and stores do not reach it."""
        return self._ptr(address, pe) or 0

    def module_init(self, module: int, stream: int) -> None:
        """Gives a loaded module its device context, on `stream`; the caller synchronises it."""
        _check("rocshmem_hipmodule_init", self._module_init(module, stream))


def _check(function: str, status: int) -> None:
    if status:
        raise UnsupportedFeature(f"{function} failed with {status}")


class RocshmemModules(ShmemModules):
    """Tells rocSHMEM of every loaded module that calls it."""

    library, heap, state = "rocSHMEM", "rocshmem", STATE


class RocshmemArena(Arena):
    """One slab a rank, allocated by rocSHMEM.

    Collective over `world`. Where a rank cannot allocate, every rank leaves rocSHMEM and raises OutOfHeap.
    `tensor`: (address, bytes) -> torch.uint8 tensor of that memory. `parting` is called before rocSHMEM goes down.
    """

    def __init__(self, library: Rocshmem, nbytes: int, world: Group, tensor: Callable[[int, int], Any],
                 parting: Callable[[], None] = lambda: None):
        self._parting = parting
        self.nbytes, self._library, self._tensor, self._address = nbytes, library, tensor, library.malloc(nbytes)
        lacking = [rank for rank, given in enumerate(world.all_gather_object(bool(self._address))) if not given]
        if lacking:
            if self._address:
                library.free(self._address)
            library.finalize()
            raise OutOfHeap(f"rocSHMEM cannot allocate {nbytes} bytes of symmetric heap on rank {lacking[0]}; set a larger "
                            f"{HEAP_SIZE} or a smaller TRITON_DIST_HEAP_SIZE")
        self.bases = [self._address if rank == world.rank else library.ptr(self._address, rank) for rank in range(world.size)]
        self.local = tensor(self._address, nbytes)

    def view(self, rank: int) -> Any:
        if not 0 <= rank < len(self.bases) or not self.bases[rank]:
            raise InvalidArgument(f"rank: expected a rank below {len(self.bases)} that loads and stores reach, found {rank}")
        return self._tensor(self.bases[rank], self.nbytes)

    def part(self) -> None:
        self.local = None
        self._parting()
        self._library.free(self._address)
        self._library.finalize()

    def close(self) -> None:
        self.local = None


def join(world: Group, nbytes: int) -> Rocshmem:
    """Collective over `world`: loads the binding and joins rocSHMEM by a unique id of rank 0, with room for `nbytes`.

    Raises UnsupportedFeature on every rank where one of them cannot."""
    os.environ.setdefault(HEAP_SIZE, str(nbytes + _SLACK))          # it is read while the library is loaded; its default is 1 GiB
    library = on_every_rank(world, "rocshmem", lambda: Rocshmem(os.environ.get(VARIABLE) or "libtdist_rocshmem.so"))
    unique_id = on_every_rank(world, "rocshmem", lambda: library.unique_id() if world.rank == 0 else b"")
    unique_id = world.broadcast_object(unique_id)
    on_every_rank(world, "rocshmem", lambda: library.init(world.rank, world.size, unique_id))
    return library

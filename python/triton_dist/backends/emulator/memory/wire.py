# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Between hosts: what emulated ranks that share no memory send each other goes over TCP.

A thread of each rank serves its peers on other hosts: it writes what they put into its slab, sets flags, and reads what they
get. A request is answered once it is done, so a rank that has the answer knows that the data are there. In the address space of a
rank the slabs of such peers are ranges that nothing has; `copy`, `store` and `flag` take addresses of either kind.
"""
import ctypes
import os
import secrets
import socket
import struct
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Sequence

import torch
from triton.language import core

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.memory import memory
from triton_dist.backends.emulator.values.promotion import Info, info, wrap
from triton_dist.runtime.errors import HangError, InvalidArgument
from triton_dist.runtime.groups import Group

_FIRST = 1 << 61              # no address of user memory is that high
_ROOM = 1 << 42               # bytes of a slab, at most
_SECONDS = 30.0               # a peer that does not answer for so long is taken to be gone
_BYTE = info(core.int8)
# What an atomic makes of a word, a value, and the word that it expects.
UPDATES = {
    "set": lambda old, value, expected: value, "add": lambda old, value, expected: old + value,
    "and": lambda old, value, expected: old & value, "or": lambda old, value, expected: old | value,
    "xor": lambda old, value, expected: old ^ value, "fetch": lambda old, value, expected: old,
    "cas": lambda old, value, expected: value if old == expected else old,
}
_WORDS = {32: ctypes.c_int32, 64: ctypes.c_int64}


def base(rank: int) -> int:
    """Where the slab of a rank on another host lies, as addresses go."""
    return _FIRST + rank * _ROOM


def place(address: int) -> Any:
    """(rank, offset) of an address in such a slab; None for any other."""
    return divmod(address - _FIRST, _ROOM) if _FIRST <= address < 2 * _FIRST else None


class Wire:
    """Connections of this rank with those on other hosts. Made by all ranks of a world together.

    far: ranks on other hosts. block: this rank's control block, which peers may read. lock: excludes other writers of flags.
    """

    def __init__(self, world: Group, far: Sequence[int], block: Any, lock: Any):
        self.far, self._block, self._lock = frozenset(far), block, lock
        self._key = world.broadcast_object(secrets.token_bytes(32))
        self._listener = Listener((_own_address(), 0), backlog=64, authkey=self._key)
        self._addresses = world.all_gather_object(self._listener.address)
        self._closed = False
        self._connections: dict = {}         # rank -> our end
        self._slab = (0, 0)                  # address, bytes
        self._answers = {"put": self._put, "get": self._get, "flag": self._flag, "update": self._update, "state": self._state}
        threading.Thread(target=self._accept, daemon=True).start()

    def attach(self, address: int, nbytes: int) -> None:
        """Peers may write to this slab from now on."""
        self._slab = address, nbytes

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            Client(self._listener.address, authkey=self._key).close()      # wakes the thread that accepts
        except (OSError, EOFError, AuthenticationError):
            pass
        self._listener.close()
        for connection in self._connections.values():
            connection.close()

    # -- asking --------------------------------------------------------------------------------------------
    def ask(self, rank: int, *request: Any) -> Any:
        """The answer of a rank on another host. Raises HangError where there is none."""
        try:
            if rank not in self._connections:
                self._connections[rank] = Client(self._addresses[rank], authkey=self._key)
            connection = self._connections[rank]
            connection.send(request)
            if not connection.poll(_SECONDS):
                raise TimeoutError(f"no answer for {_SECONDS:g} seconds")
            answer = connection.recv()
        except (EOFError, OSError) as error:
            self._drop(rank)                 # its answer, should it still come, must not be taken for the next one's
            raise HangError(f"rank {rank}, on another host, cannot be reached ({type(error).__name__}: {error}); it may have "
                            "ended: see what it has printed") from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _drop(self, rank: int) -> None:
        connection = self._connections.pop(rank, None)
        if connection is not None:
            connection.close()

    # -- answering -----------------------------------------------------------------------------------------
    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:                  # closed
                return
            except Exception:                # a peer without the key
                continue
            if self._closed:
                connection.close()
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        try:
            while True:
                what, *args = connection.recv()
                try:
                    answer = self._answers[what](*args)
                except InvalidArgument as error:
                    answer = error
                connection.send(answer)
        except (EOFError, OSError, KeyError):               # the peer has left, or asks for what there is not
            connection.close()

    def _at(self, offset: int, nbytes: int) -> int:
        start, size = self._slab
        if offset < 0 or offset + nbytes > size:
            raise InvalidArgument(f"bytes {offset} to {offset + nbytes} of a heap of {size}")
        return start + offset

    def _put(self, offset: int, data: bytes) -> None:
        ctypes.memmove(self._at(offset, len(data)), data, len(data))

    def _get(self, offset: int, nbytes: int) -> bytes:
        return ctypes.string_at(self._at(offset, nbytes), nbytes)

    def _flag(self, offset: int, value: int, bits: int, add: bool) -> None:
        word = _WORDS[bits].from_address(self._at(offset, bits // 8))
        with self._lock:
            word.value = word.value + value if add else value

    def _update(self, offset: int, op: str, value: int, expected: int, bits: int) -> int:
        word = _WORDS[bits].from_address(self._at(offset, bits // 8))
        with self._lock:
            old = word.value
            word.value = UPDATES[op](old, value, expected)
        return old

    def _state(self, nbytes: int) -> bytes:
        return bytes(self._block[:nbytes])


def _own_address() -> str:
    """The address of this host on the network by which it reaches the launcher's rendezvous."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", 1))))     # sends nothing
        return probe.getsockname()[0]


# -- for transfers -----------------------------------------------------------------------------------------------------
def _ask(rank: int, *request: Any) -> Any:
    return scheduler.active().machine.wire.ask(rank, *request)


def copy(dst: int, src: int, nbytes: int) -> None:
    """Copies bytes; one of the two addresses may be on another host."""
    if place(src):
        rank, offset = place(src)
        data = torch.frombuffer(bytearray(_ask(rank, "get", offset, nbytes)), dtype=torch.int8)
        memory.active().store_tile(dst, (nbytes,), (1,), _BYTE, data)
    elif place(dst):
        store(dst, memory.active().load_tile(src, (nbytes,), (1,), _BYTE))
    else:
        memory.active().copy(dst, src, nbytes)


def read(src: int, nbytes: int) -> torch.Tensor:
    """int8 data at an address, maybe of another host."""
    if place(src):
        rank, offset = place(src)
        return torch.frombuffer(bytearray(_ask(rank, "get", offset, nbytes)), dtype=torch.int8)
    return memory.active().load_tile(src, (nbytes,), (1,), _BYTE).contiguous()


def store(dst: int, data: torch.Tensor) -> None:
    """Writes int8 `data` to an address, maybe of another host."""
    if place(dst):
        rank, offset = place(dst)
        _ask(rank, "put", offset, data.numpy().tobytes())
    else:
        memory.active().store_tile(dst, data.shape, (1,), _BYTE, data)


def store_int32(dst: int, value: int) -> None:
    """Writes an int32 to an address, maybe of another host."""
    if place(dst):
        rank, offset = place(dst)
        _ask(rank, "put", offset, struct.pack("<i", value))
    else:
        memory.active().store_word(dst, info(core.int32), value)


def flag(address: int, value: int, bits: int, add: bool, sem: str) -> None:
    """Sets a flag, or adds to it, maybe on another host."""
    if place(address):
        rank, offset = place(address)
        _ask(rank, "flag", offset, value, bits, add)
    else:
        mem = memory.active()
        (mem.flag_add if add else mem.flag_store)(address, value, bits, sem, "sys")


def update(address: int, op: str, value: int, expected: int, bits: int) -> int:
    """An atomic of UPDATES on a word, maybe on another host. Returns the old word."""
    known = info(core.int32 if bits == 32 else core.int64)
    if place(address):
        rank, offset = place(address)
        return _ask(rank, "update", offset, op, wrap(value, known), wrap(expected, known), bits)
    mem = memory.active()
    if op == "fetch":
        return mem.load_word(address, known, "relaxed", "sys")
    return mem.update_word(address, known, lambda old: wrap(UPDATES[op](old, value, expected), known), "relaxed", "sys")


def load(address: int, known: Info) -> Any:
    """The number at an address, maybe of another host."""
    if place(address):
        rank, offset = place(address)
        return torch.frombuffer(bytearray(_ask(rank, "get", offset, known.size)), dtype=known.torch).item()
    return memory.active().load_word(address, known)


def store_word(address: int, known: Info, value: Any) -> None:
    """Writes a number to an address, maybe of another host."""
    if place(address):
        rank, offset = place(address)
        _ask(rank, "put", offset, torch.tensor([value], dtype=known.torch).numpy().tobytes())
    else:
        memory.active().store_word(address, known, value)

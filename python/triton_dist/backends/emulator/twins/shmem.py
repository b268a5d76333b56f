# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of the SHMEM device API: one Python function for every row of language/shmem_abi.py, with OpenSHMEM's semantics.

Everything that a GPU's wrapper does goes for its twin: a CTA barrier before and after, and one operation a program.
Barriers and collectives signal through pads at the start of the heap, one for each predefined team (`runtime/heap.py`).
"""
import re
from typing import Any, Callable

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import fault, invalid
from triton_dist.backends.emulator.memory import memory, wire
from triton_dist.backends.emulator.memory.shmem_transfers import (WORD, at, channel, check, delivery, homes, landed, near,
                                                                  pieces, signalling)
from triton_dist.backends.emulator.rebuild import primitives, threads
from triton_dist.backends.emulator.twins.dist import reached
from triton_dist.backends.emulator.twins.memory import await_flag
from triton_dist.backends.emulator.values.promotion import I32, I64, info, wrap
from triton_dist.backends.emulator.values.scalars import IntScalar
from triton_dist.language.abi import ROWS
from triton_dist.language.shmem_abi import EACH_MAY, LIBRARY
from triton_dist.runtime.heap import SHMEM_PAD, SHMEM_PAD_BYTES, SHMEM_PAD_FLAGS, SHMEM_PADS

_ADD = 10                     # NVSHMEM_SIGNAL_ADD
_SHARED, _NODE, _SAME_PLACE, _SAME_GPU = 1, 2, 3, 4      # teams: this node, twice; equal places on all nodes; this PE
_UNSIGNED = (1 << WORD) - 1
COMPARE = (("eq", lambda a, b: a == b), ("ne", lambda a, b: a != b), ("gt", lambda a, b: a > b),
            ("le", lambda a, b: a <= b), ("lt", lambda a, b: a < b), ("ge", lambda a, b: a >= b))


def _i32(value: int) -> IntScalar:
    return IntScalar(value, I32)


# -- who am I ----------------------------------------------------------------------------------------------------------
def members_of(team: int) -> list:
    """World ranks of a team's members."""
    slabs, me = homes()
    made = _made()
    if team in made:
        return list(made[team][0])
    if not 0 <= team < SHMEM_PADS:
        raise fault(f"libshmem_device: team {team} does not exist, there are {SHMEM_PADS} predefined ones and those that "
                    "triton_dist.shmem_team makes", "out-of-bounds")
    world = range(max(1, len(slabs)))
    if team in (_SHARED, _NODE):
        return [pe for pe in world if near(pe)]
    if team == _SAME_PLACE:
        return [pe for pe in world if _place(pe) == _place(me)]
    return [me] if team == _SAME_GPU else list(world)


def _made() -> dict:
    """{number: (members, heap offset of its pad)} of teams that scripts have made."""
    machine = scheduler.active().machine
    return machine.teams if machine is not None else {}


def _place(pe: int) -> int:
    """Number of a PE on its node."""
    running = scheduler.active()
    nodes = running.context_of(running.current.rank).nodes
    return nodes[:pe].count(nodes[pe]) if nodes else 0


def team_my_pe(team: Any) -> IntScalar:
    members, me = members_of(team.v), homes()[1]
    return _i32(members.index(me) if me in members else -1)


def team_n_pes(team: Any) -> IntScalar:
    return _i32(len(members_of(team.v)))


def team_translate_pe(source: Any, pe: Any, dest: Any) -> IntScalar:
    of, to = members_of(source.v), members_of(dest.v)
    return _i32(to.index(of[pe.v]) if 0 <= pe.v < len(of) and of[pe.v] in to else -1)


def remote_ptr(pointer: Any, pe: Any) -> IntScalar:
    address = at("remote_ptr", "local_ptr", pointer.v, pe.v)
    return IntScalar(address if near(pe.v) else 0, I64)


def remote_mc_ptr(team: Any, pointer: Any) -> IntScalar:
    members_of(team.v)
    return IntScalar(0, I64)


# -- operations of the whole program -----------------------------------------------------------------------------------
def together(act: Callable, row: Any) -> Callable:
    """`act` between two CTA barriers; in a kernel of threads, where the row is a thread's or a warp's, without them."""
    own = row.caller in EACH_MAY

    def run(*args: Any) -> IntScalar:
        running = scheduler.active()
        running.point()
        running.current.polled = None
        values = [x.v for x in args]
        alone = threads.thread()
        if alone is not None and not own:
            threads.refuse(f"libshmem_device.{row.stem}{row.scope}")
        if own and (alone is not None or running.current.__dict__.get("of_threads")):
            _of_threads(act, row, values, alone)
            return _i32(0)
        threads.barrier()
        act(*values)
        threads.barrier()
        return _i32(0)
    return run


def _of_threads(act: Callable, row: Any, values: list, alone: Any) -> None:
    """A call by a thread alone, or by all of them: once where more would change nothing, else by each."""
    if row.caller == "warp":
        region = scheduler.active().current.__dict__.get("region")
        if alone is None or region.first_of_warp(alone):
            act(*values)
    elif alone is None and _adds(row, values):
        threads.each(lambda: act(*values))
    else:
        act(*values)


def _adds(row: Any, values: list) -> bool:
    if "sig_op" in row.params:
        return values[row.params.index("sig_op")] == _ADD
    return row.stem.startswith(("atomic_add", "atomic_inc", "atomic_xor"))


def _check_size(function: str, nbytes: int) -> None:
    if nbytes < 0:
        raise invalid(f"libshmem_device.{function}: the size must be at least 0, got {nbytes}")


def _check_ends(function: str, dest: int, source: int, nbytes: int) -> None:
    check(function, "source", source, nbytes)
    check(function, "dest", dest, nbytes)


def _put(function: str, blocking: bool) -> Callable:
    def put(dest: int, source: int, nbytes: int, pe: int) -> None:
        _check_size(function, nbytes)
        to = at(function, "dest", dest, pe)
        _check_ends(function, to, source, nbytes)
        way = channel()
        way.fenced = False
        way.send(function, pe, *(delivery if blocking else pieces)(to, source, nbytes))
    return put


def _put_signal(function: str, blocking: bool, itemsize: int = 1) -> Callable:
    def put(dest: int, source: int, count: int, flag: int, value: int, op: int, pe: int) -> None:
        _check_size(function, count)
        to, signal = at(function, "dest", dest, pe), at(function, "sig_addr", flag, pe)
        _check_ends(function, to, source, count * itemsize)
        check(function, "sig_addr", signal, WORD // 8)
        way = channel()
        way.fenced = False
        way.send(function, pe, *(delivery if blocking else pieces)(to, source, count * itemsize),
                 signalling(signal, value, op == _ADD, "release"))
    return put


def _get(function: str, blocking: bool) -> Callable:
    def get(dest: int, source: int, nbytes: int, pe: int) -> None:
        _check_size(function, nbytes)
        peer = at(function, "source", source, pe)
        _check_ends(function, dest, peer, nbytes)
        if blocking and near(pe):
            memory.active().copy(dest, peer, nbytes)
        elif blocking:
            landed(channel().get(function, pe, *pieces(dest, peer, nbytes)))
        else:
            channel().get(function, pe, *pieces(dest, peer, nbytes))
    return get


def int_p(dest: int, value: int, pe: int) -> None:
    address, way = at("int_p", "dest", dest, pe), channel()
    check("int_p", "dest", address, 4)
    way.fenced = False
    way.send("int_p", pe, lambda: wire.store_int32(address, value))


def signal_op(flag: int, value: int, op: int, pe: int) -> None:
    way, signal = channel(), at("signal_op", "sig_addr", flag, pe)
    check("signal_op", "sig_addr", signal, WORD // 8)
    way.send("signal_op", pe, signalling(signal, value, op == _ADD, "release" if way.fenced else "relaxed"))


def signal_wait_until(flag: Any, cmp: Any, value: Any) -> IntScalar:
    running = scheduler.active()
    running.point()
    name, compare = COMPARE[cmp.v]
    wanted = value.v & _UNSIGNED

    def met(seen: int) -> bool:
        return compare(seen & _UNSIGNED, wanted)

    token = IntScalar(await_flag(flag.v, WORD, name, met, wanted, "acquire", "sys"), I64)
    running.observer.waited(token)
    return token


# -- barriers and collectives ------------------------------------------------------------------------------------------
class _Team:
    """What this rank knows of a team between its barriers and collectives."""

    def __init__(self) -> None:
        self.number = 0          # of the last one
        self.inside = ""         # the function that a program is in
        self.told: dict = {}     # member -> the last transfer that tells it a number


class Round:
    """One barrier or collective of a team: its number, and how members are told of it and waited for."""

    def __init__(self, function: str, team: int):
        running = scheduler.active()
        slabs, self.me = homes()
        self.function, self.members = function, members_of(team)
        if self.me not in self.members:
            raise invalid(f"libshmem_device.{function}: rank {self.me} is no member of team {team}, of ranks {self.members}")
        self._team = running.__dict__.setdefault("shmem_teams", {}).setdefault((self.me, team), _Team())
        if self._team.inside:
            raise invalid(f"libshmem_device.{function}: another program of rank {self.me} is in {self._team.inside} of team "
                          f"{team}; one program of a rank at a time may call them, program 0 for instance")
        self._team.inside = function
        self.number = self._team.number = wrap(self._team.number + 1, info(I32))
        pad = _made()[team][1] if team in _made() else SHMEM_PAD + team * SHMEM_PAD_BYTES
        self._pads = [home + pad + SHMEM_PAD_FLAGS for home in slabs]

    def _flag(self, owner: int, of: int) -> int:
        return self._pads[owner] + 4 * self.members.index(of)

    def tell(self, member: int, *steps: Callable[[], Any]) -> None:
        """Releases this round's number to a member, after these steps and all numbers before it."""
        flag = self._flag(member, self.me)
        before = [self._team.told[member]] if member in self._team.told else []
        self._team.told[member] = channel().send(
            self.function, member, *steps, lambda: wire.flag(flag, self.number, 32, False, "release"), after=before)

    def hear(self, *members: int) -> None:
        """Acquires this round's number from members. The round is over."""
        for member in members:
            await_flag(self._flag(self.me, member), 32, "ge", lambda seen: reached("ge", 32, seen, self.number), self.number,
                       "acquire", "sys", inner=True)
        self._team.inside = ""


def _meet(function: str, completes: bool) -> Callable:
    def meet(team: int = 0) -> None:
        if completes:
            channel().quiet()
        here = Round(function, team)
        for member in here.members:
            here.tell(member)
        here.hear(*here.members)
    return meet


def _broadcast(function: str) -> Callable:
    def broadcast(team: int, dest: int, source: int, count: int, size: int, root: int) -> None:
        _check_size(function, count)
        here = Round(function, team)
        if not 0 <= root < len(here.members):
            raise fault(f"libshmem_device.{function}: pe_root {root} does not exist, team {team} has {len(here.members)}",
                        "out-of-bounds")
        sender = here.members[root]
        if sender == here.me:
            for member in here.members:
                to = at(function, "dest", dest, member)
                _check_ends(function, to, source, count * size)
                here.tell(member, *(delivery(to, source, count * size) if to != source else ()))
        here.hear(sender)
    return broadcast


def _alltoall(function: str) -> Callable:
    def alltoall(team: int, dest: int, source: int, count: int, size: int) -> None:
        _check_size(function, count)
        here, nbytes = Round(function, team), count * size
        check(function, "source", source, nbytes * len(here.members))
        check(function, "dest", dest, nbytes * len(here.members))
        mine = here.members.index(here.me)
        for place, member in enumerate(here.members):
            to = at(function, "dest", dest, member) + mine * nbytes
            here.tell(member, *delivery(to, source + place * nbytes, nbytes))
        here.hear(*here.members)
    return alltoall


def _fcollect(function: str) -> Callable:
    def fcollect(team: int, dest: int, source: int, count: int, size: int) -> None:
        _check_size(function, count)
        here, nbytes = Round(function, team), count * size
        check(function, "source", source, nbytes)
        check(function, "dest", dest, nbytes * len(here.members))
        start = here.members.index(here.me) * nbytes
        for member in here.members:
            here.tell(member, *delivery(at(function, "dest", dest, member) + start, source, nbytes))
        here.hear(*here.members)
    return fcollect


_OPERATIONS = {
    "int_p": int_p, "signal_op": signal_op, "quiet": lambda: channel().quiet(), "fence": lambda: channel().fence(),
    "ulong_put_signal": _put_signal("ulong_put_signal", True, 8),
}
_FAMILIES = {
    "barrier_all": lambda name: _meet(name, True), "barrier": lambda name: _meet(name, True),
    "barrier_all_vec": lambda name: _meet(name, True), "sync_all": lambda name: _meet(name, False),
    "team_sync": lambda name: _meet(name, False), "getmem": lambda name: _get(name, True),
    "getmem_nbi": lambda name: _get(name, False), "broadcastmem": _broadcast, "fcollectmem": _fcollect, "alltoallmem": _alltoall,
}
for _rma in ("", "_rma"):
    _FAMILIES[f"putmem{_rma}"] = lambda name: _put(name, True)
    _FAMILIES[f"putmem{_rma}_nbi"] = lambda name: _put(name, False)
    _FAMILIES[f"putmem_signal{_rma}"] = lambda name: _put_signal(name, True)
    _FAMILIES[f"putmem_signal{_rma}_nbi"] = lambda name: _put_signal(name, False)
_QUERIES = {
    "set_rocshmem_ctx": lambda ctx: _i32(0), "my_pe": lambda: _i32(homes()[1]),
    "n_pes": lambda: _i32(len(members_of(0))), "team_my_pe": team_my_pe, "team_n_pes": team_n_pes,
    "team_translate_pe": team_translate_pe, "remote_ptr": remote_ptr, "remote_mc_ptr": remote_mc_ptr,
    "signal_wait_until": signal_wait_until, "signal_fetch": lambda flag: IntScalar(
        memory.active().flag_load(flag.v, WORD, "relaxed", "sys"), I64),
}
for _symbol, _row in ROWS.items():
    if _row.library == LIBRARY:
        _name = _symbol.removeprefix(f"{LIBRARY}_")
        _stem = _name.removesuffix("_warp").removesuffix("_block")
        if _name in _QUERIES:
            primitives.SYMBOLS[_symbol] = _QUERIES[_name]
        elif not re.search(r"_b\d+$|_reduce$", _row.stem):        # twins/shmem_words.py
            primitives.SYMBOLS[_symbol] = together(_OPERATIONS.get(_name) or _FAMILIES[_stem](_name), _row)

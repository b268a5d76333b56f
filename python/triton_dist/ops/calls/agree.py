# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What ranks agree on: which call each of them makes, and what must be alike in it (protocol rules 12 and 13).

A call that all ranks refuse, or that ends on all of them before it has sent anything, leaves the world as it was. Where ranks
differ, in a call or in that only some refuse it, the world is over: that call raises on each rank that takes part, and every
later call says so with the first cause.
"""
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import Any, Callable, ClassVar

import torch

from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import CollectiveMismatch, describe
from triton_dist.runtime.groups import Group, require_agreement
from triton_dist.runtime.state import state


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What all ranks must have alike in a call of an op. An op adds fields: sizes, options.

    Attributes:
        op: name of the op.
        dtype: of the operands.
        method: the one that was asked for, or that the op takes for "auto"; "auto" where it is decided later.
        why: the reason for a method that the op has taken. Ranks do not compare it.
        family: what calls have alike that differ only in the number of rows.
        varies: the field that calls of one family differ in: the number of rows, which changes from call to call in a server.
    """
    varies: ClassVar[str] = "m"
    op: str
    dtype: torch.dtype
    method: str
    why: str = field(default="", compare=False)
    family: tuple = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        vars(self)["family"] = _family(type(self))(self)

    def of_rows(self, number: int) -> Any:
        """The same with another number of rows, on which no other field depends. Takes a third of the time of `replace`."""
        found = object.__new__(type(self))
        vars(found).update(vars(self))
        vars(found)[self.varies] = number           # with `family`, which does not depend on it either
        return found

    def __str__(self) -> str:
        """Words such as "op=ag_gemm, dtype=torch.bfloat16, method=auto, m=32, k=64"."""
        return ", ".join(f"{item.name}={value}" for item in fields(self) if item.compare
                         and (value := getattr(self, item.name)) is not None)


@cache
def _family(kind: type) -> Callable[[Agreed], tuple]:
    return attrgetter(*[item.name for item in fields(kind) if item.compare and item.name != kind.varies])


def same_call(group: Group, what: Agreed) -> None:
    """Says that this rank makes a call. Where ranks are found to make different ones, each of them raises.

    The emulator compares without waiting; a GPU only under TRITON_DIST_DEBUG, by a collective a call.
    """
    me = state()
    me.expect_pairs()
    key = group.key
    count = me.calls.setdefault(key, [0])
    number = count[0] = count[0] + 1
    if key in me.refused:                               # peers that did not refuse it would take this call for that one
        me.refused.discard(key)
        _alike(group, "the call after one that was refused", f"call {number}")
    if me.debug and group.size > 1:
        _alike(group, f"call {number}", str(what))
    backend().note_call(group, number, what, False)


def refuse(group: Group, op: str, error: Exception) -> None:
    """Says that this rank refuses a call, for what `error` says. Peers that make it are told."""
    me = state()
    if me.over:
        return
    count = me.calls.setdefault(group.key, [0])
    count[0] += 1
    what = f"{op}, refused: {error}"
    if me.debug and group.size > 1:
        _alike(group, f"call {count[0]}", "a call that is refused")
    _refused(group, backend().note_call(group, count[0], what, True))


def withdraw(group: Group, what: str, error: BaseException) -> None:
    """The last call on `group`, of `what`, ends by `error` before this rank has sent anything: like one that it refuses.

    So nothing is poisoned. Where all ranks have failed alike they go on. Where not, the next call says so, or a peer does
    that waits.
    """
    number = state().calls[group.key][0]
    _refused(group, backend().note_withdrawn(group, number, f"{what}, ended before it began by {describe(error)}"))


def agree_once(group: Group, agreed: Agreed, known: set, graphs: bool = False) -> None:
    """Collective at the first use of a family of calls, in graphs or not: all ranks must have the same in `agreed`, or all raise.

    Called before anything else that is collective. Another number of rows is no reason to meet: that would cost more than
    the call.
    """
    use = (agreed.family, graphs)
    if use not in known and not backend().is_capturing():
        _alike(group, agreed.op, f"{agreed}{', to be captured in graphs' * graphs}")
        known.add(use)


def meet_once(group: Group, agreed: Agreed, choice: Any, known: set, graphs: bool = False) -> None:
    """Collective where a way of running a family is new: all ranks have compiled it then, and one that compiles for long does not
    look like a hang to the others."""
    use = (agreed.family, choice, graphs)
    if use not in known and not backend().is_capturing():
        group.barrier()
        known.add(use)


def _alike(group: Group, what: str, value: str) -> None:
    try:
        require_agreement(group, what, value)
    except CollectiveMismatch as error:
        state().end(str(error))
        raise


def _refused(group: Group, compared: bool) -> None:
    if not compared:
        state().refused.add(group.key)
    state().doubt()

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What an op remembers of its calls on one group: plans, decisions, first uses, and calls that were made.

A repeated call is found by torch's own compiled guards on tensors, in a fraction of the time that all checks take. What they do
not know is looked at in full, as is everything where torch lacks them: a miss costs time, never a wrong result.
"""
from typing import Any, Sequence

import torch

from triton_dist.compat.torch import TensorGuards, neg_view
from triton_dist.ops.calls import checks, ranges
from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.calls.plans import Plan
from triton_dist.runtime import ambient
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import RankState, Record, state

MOST = 4096                     # of each kind that a record holds; then it forgets that kind
_ALIGNMENT = 15                 # plans may rest on the last four bits of an address


def _guards_of(tensors: Sequence, any_rows: Sequence = ()) -> Any:
    """A function that tells whether tensors are like these. any_rows: which of them may have another number of rows."""
    sizes: list = [list(t.shape) for t in tensors]
    for index in any_rows:
        sizes[index][0] = None
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=[list(t.stride()) for t in tensors]).check


def _trusted() -> bool:
    """Whether the guards of this torch, which are private to it, do what is wanted of them."""
    try:
        like, *other = (torch.empty(*size, dtype=dtype, device="cpu") for size, dtype in (
            ((2, 3), torch.float), ((3, 3), torch.float), ((3, 2), torch.float), ((2, 3), torch.half)))
        same, alike = _guards_of([like]), _guards_of([like], any_rows=[0])
        others = [other[1], other[2], other[1].t(), neg_view(like), like.detach().requires_grad_()]
        return (same(torch.empty_like(like)) and alike(other[0]) and alike(like) and not same(other[0])
                and not any(guard(t) for guard in (same, alike) for t in others))
    except Exception:                                       # of an interface that has changed anything may come
        return False


_TRUSTED = _trusted()


class Known:
    """A call that was made: its plan and group, and by what a call like it is known.

    careful: whether more must be asked than what tensors and their addresses tell.
    kinds: types of what else it was given, where there is a number: 1 == 1.0 == True.
    same, alike: whether tensors are like its own; whether they are but for the number of rows of some.
    autocast: the dtype that autocast asked for, where the op follows it.
    signature: by which its plan is kept, where there is `alike`. templates: plans of calls that are alike, by family and way.
    """

    __slots__ = ("plan", "group", "_new_out", "same", "alike", "alignment", "count", "careful", "tf32", "wants_grad", "relations",
                 "compared", "autocast", "device", "kinds", "signature", "templates")

    def __init__(self, plan: Plan, group: Group, dtype: torch.dtype, autocast: torch.dtype | None):
        self.plan, self.group, self.autocast = plan, group, autocast
        self._new_out = backend().maker(plan.out_shape, autocast or dtype)

    def new_out(self) -> torch.Tensor:
        """A tensor for the output of a call that has been noted."""
        try:
            return self._new_out()
        except BaseException as error:
            withdraw(self.group, self.plan.agreed.op, error)
            raise

    def learn(self, me: RankState, asked: tuple, given: tuple, outputs: list) -> None:
        """Makes it known by `asked` and the tensors `given`, of which those at the indices `outputs` are written to."""
        self.kinds = tuple(map(type, asked)) if any([isinstance(value, (int, float)) for value in asked]) else None
        self.count, self.compared = me.calls.setdefault(self.group.key, [0]), backend().compares_calls or me.debug
        self.same, self.alignment = _guards_of(given), [t.data_ptr() & _ALIGNMENT for t in given]
        self.tf32 = backend().allow_tf32() if given[0].dtype == torch.float32 else None
        self.wants_grad = any([t.requires_grad for t in given])         # so it was called without gradients
        self.device = given[0].device
        self.careful = (self.compared or self.wants_grad or self.tf32 is not None or self.group is not me.world
                        or self.plan.captured is not None or self.autocast is not None)
        self.relations = [_relation(o, i, checks.span(given[o]), checks.span(given[i]))
                          for o in outputs for i in range(len(given)) if i != o]

    def moved(self) -> None:
        """Of what is kept by class: buffers have moved. What plans point into the old ones goes, and the class stays known."""
        self.plan = self.plan.retired() if self.plan.moved() else self.plan
        for way in [way for way, plan in self.templates.items() if plan.moved()]:
            del self.templates[way]

    def allowed(self, world: Group) -> bool:
        """Whether gradients, tf32, autocast's dtype, graph capture and the group are as they were."""
        return (not (self.wants_grad and torch.is_grad_enabled())
                and (self.tf32 is None or self.tf32 == backend().allow_tf32())
                and (self.autocast is None or self.autocast is ambient.autocast_dtype(self.device))
                and (self.group is world or self.group.usable_in(world)) and self.plan.serves())

    def fits(self, at: list) -> bool:
        """Whether tensors at these addresses are aligned, and lie in each other's memory, as those of the call."""
        if [address & _ALIGNMENT for address in at] != self.alignment:
            return False
        for o, i, least, most, distance in self.relations:
            found = at[o] - at[i]
            if found != distance and (distance is not None or least < found < most):
                return False
        return True


def _relation(o: int, i: int, output: tuple, other: tuple) -> tuple:
    """(index of an output, of another tensor, (between which distances of their addresses they overlap), distance).

    The distance is given where they do overlap, as the op allows in the very same way only.
    """
    least, most, distance = output[0] - output[1], other[1] - other[0], output[0] - other[0]
    return o, i, least, most, distance if least < distance < most else None


class CallRecord(Record):
    """What an op remembers of its calls on `group`.

    plans: (signature of a call, whether it is captured) -> Plan. decisions: what ranks agree on -> {a size of this rank: how
    calls run}. sizes: family of calls -> {a size of this rank: those of all ranks}. first_uses: families that ranks have
    agreed on, and ways to run them that they have compiled. known: what a repeated call is looked up by -> Known; it is
    emptied once buffers move or a call is refused. classes: what a call with another number of rows is looked up by -> Known.
    tables: the measured times that its members share (tuning/tables.py). ranged: whether calls have named ranges.
    """

    def __init__(self, group: Group):
        self.group = group
        self.plans: dict = {}
        self.decisions: dict = {}
        self.sizes: dict = {}
        self.first_uses: set = set()
        self.known: dict = {}
        self.classes: dict = {}
        self.tables: Any = None
        self.ranged = ranges.wanted()

    def moved(self) -> None:
        self.known.clear()
        for known in self.classes.values():
            known.moved()
        self.plans.update((where, plan.retired()) for where, plan in list(self.plans.items()) if plan.moved())

    def doubt(self) -> None:
        self.known.clear()

    def keep(self, where: tuple, plan: Plan) -> None:
        """Remembers a plan."""
        if len(self.plans) >= MOST:
            self.plans.clear()
        self.plans[where] = plan
        if len(self.first_uses) >= MOST:            # equally many on all ranks, so all agree anew
            self.first_uses.clear()

    def elsewhere(self, key: tuple, given: tuple) -> Known | None:
        """The call that was made with tensors like `given`, at other addresses."""
        known = self.known.get(_by_shapes(key, given))
        if known is None or not known.same(*given) or not known.fits([t.data_ptr() for t in given]):
            return None
        _remember(self.known, key, known)
        return known

    def of_other_rows(self, key: tuple, given: tuple, varying: Sequence, world: Group) -> Known | None:
        """A call that was made in this very state with tensors like `given`, but for the number of rows of those at `varying`."""
        try:
            known = self.classes.get(_by_class(key, given, varying))
        except TypeError:                           # it was given what is no key
            return None
        if (known is None or not known.alike(*given) or any([given[i].shape[0] != given[0].shape[0] for i in varying[1:]])
                or known.kinds is not None and known.kinds != tuple(map(type, key[0]))
                or not known.allowed(world)):
            return None
        return known

    def learn(self, me: RankState, key: tuple, given: tuple, outputs: list, known: Known, varying: Sequence,
              signature: tuple | None) -> None:
        """Remembers a call by its tensors `given`, unless its plan is one that another call may not share.

        signature: of the call, where calls that differ from it in the number of rows alone, of tensors at `varying`, are to be
            known too; None where they are, or cannot be.
        """
        if _TRUSTED and not backend().is_capturing() and known.plan.valid():
            known.learn(me, key[0], given, outputs)
            _remember(self.known, key, known)
            _remember(self.known, _by_shapes(key, given), known)
            if signature is not None and not outputs and known.autocast is None and given[0].ndim:
                rows = given[0].shape[0]
                same = [i for i, t in enumerate(given) if t.ndim and t.shape[0] == rows]
                if same == [*varying]:                      # others that have as many may have to, or not
                    known.alike, known.signature = _guards_of(given, varying), signature
                    known.templates = known.plan.by_way()
                    _remember(self.classes, _by_class(key, given, varying), known)


def _remember(calls: dict, key: tuple, known: Known) -> None:
    if len(calls) >= MOST:
        calls.clear()
    calls[key] = known


def _by_shapes(key: tuple, given: tuple) -> tuple:
    """`key` with shapes in place of addresses."""
    return key[0], *[0 if isinstance(part, int) else part for part in key[1:]], *[t.shape for t in given]


def _by_class(key: tuple, given: tuple, varying: Sequence) -> tuple:
    """What calls have alike whose tensors at `varying` may have other numbers of rows.

    One row is contiguous where two with the same strides are not, and their plans differ.
    """
    return key[0], *[part & _ALIGNMENT if isinstance(part, int) else part for part in key[1:]], *[
        (t.shape[1:] if i in varying else t.shape, t.dtype, t.stride(), t.is_contiguous()) for i, t in enumerate(given)]


def record_of(what: Any, asked: Any, group: Group) -> CallRecord:
    """The record of `what`, an op, for calls on `group`, which users pass as `asked`. Made on first use."""
    records = state().records.setdefault(what, {})
    if len(records) >= MOST:                        # users may pass a group by new objects each time
        for other in [other for other, record in records.items() if other is not record.group]:
            del records[other]
    found = records.get(group)
    if found is None:
        found = records[group] = CallRecord(group)
    records[asked] = found
    return found

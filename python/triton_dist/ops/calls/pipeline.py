# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The one way from a call of an op to its launch: known -> agree -> decide -> plan -> run.

    known       a call like an earlier one has a plan, found by the tensors' addresses or metadata (calls/record.py)
    agree       the op checks the arguments; ranks compare calls, and at a first use what must be alike (calls/agree.py)
    decide      one of the op's ways: by measured times, or by its rule (calls/decide.py). The decision is logged
    plan        the op makes a plan of that way: buffers and compiled kernels (calls/plans.py)
    run         the plan launches
"""
from typing import Any, Callable, Sequence

import torch

from triton_dist.compat.torch import DUAL_LEVEL, FORWARD_AD, dispatch_modes as _modes
from triton_dist.ops.calls import checks, decide, log, ranges
from triton_dist.ops.calls.agree import Agreed, agree_once, meet_once, refuse, same_call, withdraw
from triton_dist.ops.calls.plans import Plan, Trial, Wrapped
from triton_dist.ops.calls.possible import UNFUSED
from triton_dist.ops.calls.record import CallRecord, Known, record_of
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime import ambient, graphs, threads
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import CollectiveMismatch, HangError, InvalidArgument, OutOfHeap
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.state import state
from triton_dist.runtime.threads import this

_INPUTS, _OUTPUTS = (0, 1, 3, 4), (2, 5)        # places of an op's tensors among those of `known`
_OF_ROWS = (0, 3)                               # places of x and the residual among an op's tensors


class Calls:
    """The calls of an op: what is the same for all ops. `ops.Op` is one, and says what an op adds.

    A call's tensors are passed by position: two inputs, an output, two more inputs, a second output, further inputs, and further
    outputs. None stands for what there is not.
    """

    name: str
    tensors: dict
    outputs: dict
    autocasts: bool
    local = False                   # whether each rank calls for itself, and nothing is sent
    kept = True                     # whether plans are kept for later calls
    resized: Callable | None
    residual_has_rows = False       # whether the fourth input, where there is one, has as many rows as x in each call
    _of_places: Callable            # gives its tensors of those of `known`

    def places(self) -> tuple:
        """Where each of the op's tensors stands among those of `known`: inputs first, then outputs."""
        inputs, outputs = len(self.tensors), len(self.outputs)
        after = 6 + max(0, inputs - len(_INPUTS))
        return (*[*_INPUTS, *range(6, after)][:inputs], *[*_OUTPUTS, *range(after, after + outputs)][:outputs])

    def members(self, group: Any) -> Group:
        """The ranks that must call alike, of what users pass as `group=`: of a local op this rank alone."""
        found = resolve(group)
        return found.alone if self.local else found

    def known(self, asked: tuple, group: Any, x: Any, weight: Any = None, out: Any = None, bias: Any = None, residual: Any = None,
              second: Any = None, *more: Any) -> Known | None:
        """The plan and group of a call, which is noted as made. Raises InvalidArgument for one that is refused.

        None for a call that is to be made as an operator: a gradient is wanted, or a graph is being recorded.
        asked: what else it was given, hashable. An output may be the residual, or x where there is none; no other two tensors may
        be one.
        """
        me, key, given = state(), None, ()
        if me.turn != this.number:
            threads.take_turn()
        if _modes() or FORWARD_AD[DUAL_LEVEL] >= 0:        # which guards do not see
            return self._looked_at(key, given, asked, group, (x, weight, out, bias, residual, second, *more))
        try:
            key = (asked, x.data_ptr(), None if weight is None else weight.data_ptr(), None if out is None else out.data_ptr())
            if out is None or out is residual or residual is None and out is x:
                given = (x,) if weight is None else (x, weight)
            else:
                given = (x, out) if weight is None else (x, weight, out)
            if bias is not None:
                key, given = (*key, "bias", bias.data_ptr()), (*given, bias)
            if residual is not None:
                key, given = (*key, "residual", residual.data_ptr()), (*given, residual)
            if second is not None:
                key, given = (*key, "second", second.data_ptr()), given if second is residual else (*given, second)
            if more:
                key = (*key, "more", *[None if t is None else t.data_ptr() for t in more])
                given = (*given, *[t for t in more if t is not None])
            record = me.records[self][group]
            found = record.known.get(key)
            if found is None or not found.same(*given):
                found = record.elsewhere(key, given)
        except (AttributeError, KeyError, TypeError, RuntimeError):     # no tensors of memory, or none on this group yet
            found = None
        if (found is None or found.kinds is not None and found.kinds != tuple(map(type, asked))
                or found.careful and not found.allowed(me.world)):
            return self._looked_at(key, given, asked, group, (x, weight, out, bias, residual, second, *more))
        if found.compared:
            same_call(found.group, found.plan.agreed)
        else:
            found.count[0] += 1
        return found

    def call(self, asked: tuple, group: Any, x: Any, out: Any = None) -> Any:
        """One call of an op with one input and one output, allocated if None: gives the output, or None as `known` does."""
        known = self.known(asked, group, x, None, out)
        if known is None:
            return None
        if out is None:
            out = known.new_out()
        known.plan.run(known.group, x, out)
        return out

    def part(self, group: Group, agreed: Agreed, *tensors: torch.Tensor | None, templates: dict | None = None) -> Plan:
        """The plan of calls that another op's plan makes, on tensors like these. Collective at a first use.

        agreed: what ranks agree on in them, by `at`. templates: those that the other op's plan was given by `resized`.
        """
        return self._made(record_of(self, group, group), group, agreed, list(tensors), None, templates=templates)

    def _looked_at(self, key: tuple | None, given: tuple, asked: tuple, group: Any, places: tuple) -> Known | None:
        """A call that repeats none: checked, planned and remembered."""
        if _modes() and ambient.is_recorded(places):
            return None
        members, tensors = self.members(group), [*self._of_places(places)]
        outputs, record, dtype = tensors[len(self.tensors):], record_of(self, group, members), None
        residual = places[4] if self.residual_has_rows else None
        varying = [0] if residual is None else [i for i, t in enumerate(given) if i == 0 or t is residual]
        agreed, signature, templates = self._of_other_rows(record, key, given, varying, tensors)
        if agreed is None:
            self._checked(members, ambient.refuse, self.name, tensors)
            if wants_grad(tensors) and all(out is None for out in outputs):
                return None
            dtype = ambient.autocast_dtype(backend().device()) if self.autocasts else None
            if dtype is not None:
                tensors = [t if any(t is out for out in outputs) else ambient.cast(t, dtype) for t in tensors]
            signature = _signature(tensors, outputs), *map(repr, asked)
        plan = self._planned(record, members, signature, tensors, asked, agreed, templates)
        if state().watched is not None and not self.local:
            state().watched += [(each.agreed.op, each.agreed.family, each.choice, each.variants) for each in plan.with_parts()]
        # A number of rows that is new may never come again. What finds a repeated call at once is made when it does.
        first = agreed is not None and not plan.used
        plan.used = True
        if ambient.is_marked():
            plan = Wrapped(plan, dtype)
        known = Known(plan, members, places[0].dtype, dtype)
        if key is not None and self.kept and not first:
            written = [i for out in outputs if out is not None for i, t in enumerate(given) if t is out]
            record.learn(state(), key, given, written, known, varying, signature if agreed is None and self.resized else None)
        return known

    def _of_other_rows(self, record: CallRecord, key: tuple | None, given: tuple, varying: list,
                       tensors: list) -> tuple[Agreed | None, tuple, dict | None]:
        """(what ranks agree on, the signature, templates) of a call that is like a known one but for the number of rows.

        None in place of the first where it has to be checked. varying: indices of tensors of so many rows in `given`.
        """
        if key is None or self.resized is None or backend().is_capturing():
            return None, (), None
        known = record.of_other_rows(key, given, varying, state().world)
        if known is None:
            return None, (), None
        agreed = self._checked(record.group, self.resized, known.plan.agreed, record.group, given[0], key[0])
        (_, _, *parts), *words = known.signature
        for place, i in zip(_OF_ROWS, varying):
            parts[place] = (given[i].shape, *parts[place][1:])
        return agreed, ((*_modes_of_torch(), *parts), *words), known.templates

    def _planned(self, record: CallRecord, group: Group, signature: tuple, tensors: list, asked: tuple,
                 agreed: Agreed | None, templates: dict | None) -> Plan:
        """The plan of a call: made once for a signature, and again when it is not valid any more. The call is noted as made.

        agreed: what ranks agree on; None where that has to be checked. templates: see `_made`.
        """
        capturing = backend().is_capturing()
        plan = record.plans.get(where := (signature, capturing))
        if plan is None and capturing:
            plan = record.plans.get(where := (signature, False))
        if plan is not None and plan.valid() and not _lacks_graphs(plan, capturing):
            same_call(group, plan.agreed)
            return plan
        moved = plan is not None and plan.serves() and plan.moved()
        if moved:
            agreed = plan.agreed
        elif agreed is None:
            agreed = self._checked(group, self.check, group, *tensors, *asked)
        same_call(group, agreed)
        try:
            with ambient.clean():
                if moved:
                    found = self._made(record, group, agreed, tensors, plan.choice)
                    found.prepared, found.used, plan = plan.prepared, plan.used, found
                    record.keep(where, plan)
                elif plan is None or not plan.valid():
                    plan = self._made(record, group, agreed, tensors, None, templates=templates)
                    if self.kept:
                        record.keep((signature, capturing), plan)
                    if not capturing and getattr(record.plans.get((signature, True)), "captured", None):
                        del record.plans[signature, True]       # made inside a capture, where no better one was possible
                if _lacks_graphs(plan, capturing):
                    self._prepare_graphs(record, group, signature, plan, tensors)
        except (HangError, CollectiveMismatch, OutOfHeap):      # of all ranks
            raise
        except BaseException as error:
            withdraw(group, self.name, error)
            raise
        return plan

    def _made(self, record: CallRecord, group: Group, agreed: Agreed, tensors: list, choice: Choice | None,
              graphs: bool = False, templates: dict | None = None) -> Plan:
        """A plan, compiled. Collective at the first use of a family of calls, and of a way to run it.

        choice: the way, where it is known. Where the symmetric heap has no room for an "auto", which is so on all ranks then, the
        plan is the unfused one. templates: (family, way) -> a plan of calls that differ in the number of rows alone, of which
        this one may be made; None where such calls are not known.
        """
        agree_once(group, agreed, record.first_uses, graphs)
        free = agreed.method == "auto" or agreed.why
        try:
            if choice is None:
                choice, why = self._decided(record, group, agreed, tensors)
                if self.kept:
                    log.decided(self.name, group, agreed, choice, why)
            plan = self._plan(record, group, agreed, choice, tensors, templates)
        except OutOfHeap as error:
            if graphs or not free:
                raise
            choice, why = Choice(UNFUSED), "the symmetric heap has no room for another"
            log.fallback((self.name, "heap"), f"triton_dist.{self.name} runs by {UNFUSED!r}, which is slower: {error}")
            log.decided(self.name, group, agreed, choice, why)
            plan = self._plan(record, group, agreed, choice, tensors)
        if plan.compiles:
            state().variants = plan.variants = []
            try:
                for out in tensors[len(self.tensors):]:
                    if out is None and plan.fills:
                        tensors = self.filled(group, agreed, tensors)
                        break
                plan.compile(*tensors)
            finally:
                state().variants = None
        if templates is not None and (agreed.family, choice) not in templates:
            templates.update(plan.by_way())
        meet_once(group, agreed, choice, record.first_uses, graphs)
        return plan

    def _decided(self, record: CallRecord, group: Group, agreed: Agreed, tensors: list) -> tuple[Choice, str]:
        """(the way of a call, why). Collective where ranks' sizes or times have to be compared."""
        ways = self.candidates(agreed, group)
        rule = self.rule(agreed, group, ways)
        if len(ways) == 1 or not self.timed:
            return rule

        def trial(choice: Choice) -> Trial:
            return Trial(self, lambda: self._plan(record, group, agreed, choice, tensors), group, tensors)
        found = decide.decide(record, self, agreed, ways, rule, self.local_size(*tensors), trial)
        return found.choice, found.reason

    def _plan(self, record: CallRecord, group: Group, agreed: Agreed, choice: Choice, tensors: Sequence,
              templates: dict | None = None) -> Plan:
        """The plan of a way, not compiled yet, unless it is made from one of `templates`."""
        plan = None
        like = templates.get((agreed.family, choice)) if templates is not None and not record.ranged else None
        if like is not None:
            plan = like.resized(agreed, group, templates, *tensors)
        if plan is None:
            unfused = choice.method == UNFUSED
            plan = self.plan_of_unfused(agreed, group, *tensors) if unfused else self.plan(choice, agreed, group, *tensors)
        plan.agreed, plan.choice, plan.out_shape = agreed, choice, self.shape_of_out(agreed, group, *tensors)
        if record.ranged:
            plan.run = ranges.around(plan.run, ranges.name_of(self.name, choice, plan.out_shape))
        return plan

    def _prepare_graphs(self, record: CallRecord, group: Group, signature: tuple, plan: Plan, tensors: list) -> None:
        """Makes the plan that serves a call inside graph capture, of a call whose eager plan does not."""
        plan.prepared, choice = True, self.choice_in_graphs(plan.agreed, group, plan.choice)
        if choice is None:
            return
        try:
            found = self._made(record, group, plan.agreed, tensors, choice, graphs=True)
        except OutOfHeap as error:                      # on all ranks; the call itself has what it needs
            log.plans.info("triton_dist.%s will not be captured fused: %s", self.name, error)
            return
        log.decided(self.name, group, plan.agreed, choice, "a graph cannot hold the eager way")
        record.keep((signature, True), found)

    def _checked(self, group: Group, check: Callable, *args: Any) -> Any:
        """What `check(*args)` gives; if it refuses a call, peers can know."""
        try:
            return check(*args)
        except InvalidArgument as error:
            refuse(group, self.name, error)
            raise


def _lacks_graphs(plan: Plan, capturing: bool) -> bool:
    """Whether a call is to be made ready for graphs, which its plan does not serve."""
    return plan.captured is False and not plan.prepared and not capturing and graphs.asked()


def _signature(tensors: Sequence, outputs: Sequence) -> tuple:
    """What decides whether a call with `tensors` is valid and which code serves it, whatever they are.

    outputs: those that are written to. How they lie in memory that they share with others is part of it.
    """
    parts = [*_modes_of_torch()]
    for t in tensors:
        if t is None:
            parts.append(None)
        elif isinstance(t, torch.Tensor) and checks.has_memory(t):
            parts.append((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16, t.is_neg(), t.requires_grad))
        else:
            return ("no tensors of memory",)            # refused, hence never found again
    parts += [None if checks.overlapping(out, t) is None else t.data_ptr() - out.data_ptr()
              for out in outputs if out is not None for t in tensors]
    return tuple(parts)


def _modes_of_torch() -> tuple[bool, bool]:
    return backend().allow_tf32(), torch.is_grad_enabled()


def wants_grad(tensors: Sequence) -> bool:
    """Whether autograd is to follow a call with `tensors`."""
    return torch.is_grad_enabled() and any([isinstance(t, torch.Tensor) and t.requires_grad for t in tensors])

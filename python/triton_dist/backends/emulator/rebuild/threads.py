# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Threads of a program that go their own ways: what rebuilt code calls where a branch or a loop depends on the thread.

A program is one actor as long as its threads agree. Where they do not, each thread that enters the region becomes an actor of
its own, with the values that variables have in it, and the program waits until all of them are out (`divergence.py` writes such
code). What a thread has stored or acquired reaches the others at the next barrier of the program, as on a GPU.
"""
import types
from typing import Any, Callable, Optional, Sequence

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.actors import Actor, Waiting
from triton_dist.backends.emulator.engine.registry import MARK, TWINS, Tup, fault, invalid, site
from triton_dist.backends.emulator.memory.shmem_transfers import channel
from triton_dist.backends.emulator.rebuild import statements
from triton_dist.backends.emulator.values.lanes import Lanes, of_threads
from triton_dist.backends.emulator.values.promotion import I32
from triton_dist.backends.emulator.values.scalars import IntScalar, Scalar, scalar
from triton_dist.backends.emulator.values.tensors import Tensor
from triton_dist.compat.triton import ConstexprFunction

WARP = 32
_ELEMENTWISE = ("core.cast", "core.where", "core.minimum", "core.maximum", "core.multiple_of", "core.max_contiguous",
                "core.max_constancy", "core.builtin_min", "core.builtin_max", "core.add", "core.sub", "core.mul",
                "memory.symm_at")
_PASSED = tuple(statements.BUILTINS[name] for name in ("len", "isinstance", "getattr", "hasattr", "list"))
_COPIED = ("tdist", "of_threads", "stream", "launch", "cta_block")         # of a program: its threads have them too


class _Unset:
    """A variable that a thread has not set."""

    def __repr__(self) -> str:
        return "a variable that this thread has not set"


class _Block:
    """A block inside code that threads run apart: of no use there."""

    def _refuse(self, *_: Any) -> Any:
        raise invalid("a block in code that only some threads of the program run: each thread would act on its own elements "
                      "of it; move it out of the branch")

    __getattr__ = __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __lt__ = __le__ = __gt__ = __ge__ = __and__ = _refuse
    __getitem__ = __bool__ = __index__ = _refuse


UNSET, BLOCK = _Unset(), _Block()


class Region:
    """The threads of one program that run a piece of code apart."""

    def __init__(self, count: int, threads: Sequence[int]):
        self.count, self.entered, self.inside = count, frozenset(threads), set(threads)
        self.whole = len(self.inside) == count
        self.here: dict = {}             # group of threads -> {thread: what it brought} of those that wait
        self.rounds: dict = {}           # group -> number of the meetings that are over
        self.told: dict = {}             # group -> what the last meeting gave

    def meet(self, group: Sequence[int], thread: int, brought: Any, what: str) -> dict:
        """Waits for the threads of `group` that are in the region; {thread: what it brought}."""
        key, running = tuple(group), scheduler.active()
        members = [t for t in key if t in self.inside]
        waiting, number = self.here.setdefault(key, {}), self.rounds.get(key, 0)
        waiting[thread] = brought
        if len(waiting) == len(members):
            self.told[key], self.here[key], self.rounds[key] = dict(waiting), {}, number + 1
            running.wake((id(self), key))
        else:
            running.block((id(self), key), lambda: self.rounds.get(key, 0) > number,
                          Waiting("threads", site=site(), text=what))
        return self.told[key]

    def first_of_warp(self, thread: int) -> bool:
        """Whether no thread of a lower index of the same warp came into the region."""
        return not any(k in self.entered for k in range(thread - thread % WARP, thread))

    def leave(self, thread: int) -> None:
        """A thread is through. Whoever waits for it in a meeting would wait for ever."""
        self.inside.discard(thread)
        for key, waiting in self.here.items():
            if waiting and thread in key:
                raise fault(f"thread {thread} has left a branch or loop in which threads {sorted(waiting)} wait for it at a "
                            "barrier or in a shuffle: all threads must reach it")


def thread() -> Optional[int]:
    """The thread that acts alone; None where the program's threads act together."""
    return scheduler.active().current.__dict__.get("thread")


def count() -> int:
    """Threads of the acting program."""
    cta = scheduler.active().current.cta
    return WARP * (cta.num_warps if cta is not None else 1)


def index() -> Any:
    """`tid(0)`."""
    alone = thread()
    if alone is not None:
        return IntScalar(alone, I32)
    return Lanes(Tensor(None, I32, Tup((count(),)), (0, (1,))))


def refuse(what: str) -> None:
    """Raises where `what`, which takes all threads of the program, is called by one that acts alone."""
    if thread() is not None:
        raise invalid(f"{what} in code that only some threads of the program run: it takes all of them, on a GPU it would hang")


def barrier() -> None:
    """A barrier of the program: its threads know of each other what they have done."""
    running = scheduler.active()
    actor = running.current
    region = actor.__dict__.get("region")
    if region is None:
        for other in actor.__dict__.pop("threads_back", ()):
            running.observer.joined(other)
        running.observer.barrier()
        return
    if not region.whole:
        raise fault("a barrier of the program in code that only some of its threads run: on a GPU it would hang")
    region.meet(range(region.count), actor.thread, actor, "a barrier of the program")
    running.observer.barrier()


def pick(value: Any, of: int) -> Any:
    """What a variable is in one thread."""
    kind = type(value)
    if kind is Lanes:
        return value.of(of)
    if kind is Tensor:
        return BLOCK
    if kind is Tup:
        return Tup(pick(x, of) for x in value)
    return value


# -- what rebuilt code calls -------------------------------------------------------------------------------------------
def diverges(test: Any) -> bool:
    return type(test) is Lanes


def uniform(test: Any) -> Any:
    """A condition under which the function returns."""
    if type(test) is Lanes:
        raise invalid("a return under a condition that differs from thread to thread: let the rest of the function stand in an "
                      "`if` instead")
    return test


class Loop:
    """A loop whose bounds differ from thread to thread."""

    def __init__(self, kind: Callable, args: tuple, kwargs: dict):
        self.kind, self.args, self.kwargs = kind, args, kwargs

    def of(self, thread: int) -> Any:
        return self.kind(*(pick(x, thread) for x in self.args), **{k: pick(x, thread) for k, x in self.kwargs.items()})


def bounds(kind: Callable, *args: Any, **kwargs: Any) -> Any:
    """`range(...)` of a for loop: what it iterates over, or a Loop."""
    if any(type(x) is Lanes for x in (*args, *kwargs.values())):
        return Loop(kind, args, kwargs)
    return kind(*args, **kwargs)


def is_loop(x: Any) -> bool:
    return type(x) is Loop


def fork(decides: Any, body: Callable, scope: dict, parameters: tuple, stored: tuple, everyone: bool) -> Any:
    """Runs a region for each thread: `body(what decides it, *its variables)`, which gives those of `stored`.

    decides: Lanes or a Loop. everyone: also the threads whose condition is false. Returns the values of `stored` after it.
    """
    total = count()
    own = [decides.of(k) for k in range(total)]
    active = [k for k in range(total) if everyone or own[k]]
    values = [scope.get(name, UNSET) for name in parameters]
    results = _run(active, lambda k: body(own[k], *[pick(x, k) for x in values]))
    return tuple(_joined(j, scope.get(name, UNSET), results, total) for j, name in enumerate(stored))


def _joined(j: int, old: Any, results: dict, total: int) -> Any:
    """A variable after a region, from what each thread has left in it."""
    ends = {k: result[j] for k, result in results.items()}
    if all(x is BLOCK for x in ends.values()):
        return old
    every = [ends[k] if k in ends else pick(old, k) for k in range(total)]
    found = [x for x in every if x is not UNSET]
    if not found:
        return UNSET
    typed = statements.value(found[0])
    blank = scalar(0, typed.ty) if isinstance(typed, Scalar) else typed
    return of_threads([blank if x is UNSET else x for x in every], statements.value)


def _run(threads: Sequence[int], act: Callable[[int], Any]) -> dict:
    """Runs `act(thread)` as an actor of its own for each thread; {thread: result}."""
    running = scheduler.active()
    program, results = running.current, {}
    region, shared = Region(count(), threads), channel()

    def run(k: int) -> None:
        results[k] = act(k)
        region.leave(k)

    started = []
    for k in threads:
        actor = Actor(f"thread {k} of {program.name}", program.rank, "partition", program.cta)
        actor.thread, actor.region, actor.shmem = k, region, shared       # type: ignore[attr-defined]
        actor.__dict__.update({name: program.__dict__[name] for name in _COPIED if name in program.__dict__})
        started.append(running.spawn(actor, run, k))
    where = site()
    for actor in started:
        running.block(actor, lambda actor=actor: actor.done, Waiting("threads", site=where, text=actor.name))
    program.__dict__.setdefault("threads_back", []).extend(started)
    return results


def each(act: Callable[[], Any]) -> Any:
    """`act()` by every thread of the program, where they act together; one's own result, or Lanes of all."""
    if thread() is not None:
        return act()
    results = _run(range(count()), lambda _: act())
    return of_threads([results[k] for k in range(count())], statements.value)


def call(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """A call in code of threads. A function that knows nothing of threads is called by each of them."""
    given = (*args, *kwargs.values())
    if not any(type(x) is Lanes or type(x) is Tup and any(type(y) is Lanes for y in x) for x in given):
        return fn(*args, **kwargs)
    knows = isinstance(fn, types.FunctionType) and MARK in fn.__globals__ or isinstance(fn, (type, ConstexprFunction))
    if knows or fn in _PASSED:
        return fn(*args, **kwargs)
    if any(TWINS.get(name) is fn for name in _ELEMENTWISE):
        blocks = [x.block if type(x) is Lanes else x for x in args]
        found = fn(*blocks, **{k: x.block if type(x) is Lanes else x for k, x in kwargs.items()})
        return Lanes(found) if isinstance(found, Tensor) else found
    results = _run(range(count()), lambda k: fn(*[pick(x, k) for x in args], **{n: pick(x, k) for n, x in kwargs.items()}))
    return of_threads([results[k] for k in range(count())], statements.value)


def select(test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """`yes if test else no`."""
    if type(test) is Lanes:
        return call(TWINS["core.where"], test, yes(), no())
    return statements.choice(test, yes() if test else no())


# -- what single threads may not call ----------------------------------------------------------------------------------
def guarded(key: str, fn: Callable) -> Callable:
    """A twin of Triton's as code of threads sees it."""
    if key == "core.store":
        def store(*args: Any, **kwargs: Any) -> Any:
            if thread() not in (None, 0):
                raise invalid("tl.store of a scalar is done by the program's first thread alone, so in this thread it would do "
                              "nothing; use language_extra.st")
            return fn(*args, **kwargs)
        return store
    if key in _TOGETHER or key.startswith("core.atomic_"):
        def together(*args: Any, **kwargs: Any) -> Any:
            refuse(f"tl.{key.removeprefix('core.')}")
            return fn(*args, **kwargs)
        return together
    return fn


_TOGETHER = {"core.arange", "core.dot", "core.device_print", "core.make_tensor_descriptor", "core.load_tensor_descriptor"}
EXPORTED = {"diverges": diverges, "uniform": uniform, "bounds": bounds, "is_loop": is_loop, "fork": fork, "call": call,
            "select": select}

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a call gives does not depend on the calls before it: plans and keys that earlier calls have left serve no other call.

A history is a row of random calls of all ops, in which rows, strides, alignment, optional tensors, outputs and methods change.
It runs twice: as it is, and in a world that forgets everything before each call. Results have the same bits, and what is refused
is refused both times.
"""
import random

import pytest
import torch

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops.calls.record import CallRecord
from triton_dist.runtime.errors import TritonDistError
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.testing import poisoned, random_tensor

WORLD, N, K = 2, 16, 24
ROWS = (1, 2, 3, 4, 8, 10)
KINDS, LENGTH = 2, 20  # of a history
FORMS = ("plain", "wide", "wide", "odd", "columns", "one row")


class Call:
    """A random call. On all ranks the same draw makes the same one, with data of their own where ranks have different data.

    A history has few kinds of calls, of which each comes with all numbers of rows.
    """

    def __init__(self, number: int, seed: int):
        own = random.Random(1000 * seed + number)
        self.draw = random.Random(1000 * seed + own.randrange(KINDS))       # the rest is the same for all of a kind
        self.rank, self.seed, self.inputs = resolve().rank, 1000 * (1000 * seed + number), []
        self.rows = own.choice(ROWS)
        self.dtype = self.draw.choice((torch.float32, torch.bfloat16))
        self.op = self.draw.choice(sorted(OF_OPS))
        self.run = OF_OPS[self.op](self)

    def tensor(self, *shape: int, own: bool = True) -> torch.Tensor:
        """own: with other values on each rank."""
        form, self.seed = self.draw.choice(FORMS), self.seed + 1
        rows, columns = (1, *shape)[-2:]
        room = random_tensor(rows + 1, columns + 8, dtype=self.dtype, seed=2 * self.seed + (own and self.rank))
        if form == "wide":
            found = room[:rows, :columns]
        elif form == "odd":
            found = room.view(-1)[1:rows * columns + 1].view(rows, columns)
        elif form == "columns":
            found = room.view(-1)[:rows * columns].view(columns, rows).t()
        elif form == "one row":
            found = room[:1, :columns].expand(rows, columns)
        else:
            found = room.view(-1)[:rows * columns].view(rows, columns)
        found = found if len(shape) > 1 else found[0]
        self.inputs.append(found)
        return found

    def maybe(self, *shape: int) -> torch.Tensor | None:
        return self.tensor(*shape, own=False) if self.draw.random() < 0.4 else None

    def out(self, *shape: int, instead: torch.Tensor | None = None) -> torch.Tensor | None:
        """None, an output, or the input that may be written to."""
        kind = self.draw.choice(("", "", "", "given", "in place"))
        if kind == "in place" and instead is not None:
            return instead
        return poisoned(*shape, dtype=self.dtype) if kind else None

    def method(self, *names: str) -> str:
        return self.draw.choice(("auto", "auto", *names))


def all_reduce(c: Call):
    x = c.tensor(c.rows, N)
    how, out = c.method("one_shot", "two_shot", "push", "unfused"), c.out(c.rows, N, instead=x)
    return lambda: ops.all_reduce(x, out=out, method=how)


def rows_moved(op, c: Call, given: int, back: int):
    x = c.tensor(given, N)
    how, out = c.method("one_shot", "push", "unfused"), c.out(back, N)
    return lambda: op(x, out=out, method=how)


def all_gather(c: Call):
    return rows_moved(ops.all_gather, c, c.rows, WORLD * c.rows)


def reduce_scatter(c: Call):
    return rows_moved(ops.reduce_scatter, c, WORLD * c.rows, c.rows)


def all_to_all_single(c: Call):
    return rows_moved(ops.all_to_all_single, c, WORLD * c.rows, WORLD * c.rows)


def ag_gemm(c: Call):
    x, weight, bias = c.tensor(c.rows, K), c.tensor(N, K), c.maybe(N)
    act = c.draw.choice((None, None, "silu_mul"))
    more = dict(return_gathered=c.draw.random() < 0.3, act=act, method=c.method("portable", "unfused"))
    out = c.out(WORLD * c.rows, N // 2 if act else N)
    return lambda: ops.ag_gemm(x, weight, bias=bias, out=out, **more)


def gemm_rs(c: Call):
    x, weight, bias = c.tensor(WORLD * c.rows, K), c.tensor(N, K), c.maybe(N)
    more = dict(hop_dtype=c.draw.choice((None, torch.float32)), method=c.method("portable", "unfused"))
    out = c.out(c.rows, N)
    return lambda: ops.gemm_rs(x, weight, bias=bias, out=out, **more)


def gemm_ar(c: Call):
    x, weight, bias, residual = c.tensor(c.rows, K), c.tensor(N, K), c.maybe(N), c.maybe(c.rows, N)
    how, out = c.method("ring", "unfused"), c.out(c.rows, N, instead=residual)
    return lambda: ops.gemm_ar(x, weight, bias=bias, residual=residual, out=out, method=how)


def all_reduce_rmsnorm(c: Call):
    x, weight, bias, residual = c.tensor(c.rows, N), c.tensor(N, own=False), c.maybe(N), c.maybe(c.rows, N)
    how, out = c.method("one_shot", "two_shot", "unfused"), c.out(c.rows, N, instead=x)
    total = c.out(c.rows, N, instead=residual)
    return lambda: ops.all_reduce_rmsnorm(x, weight, bias=bias, residual=residual, out=out, residual_out=total, method=how)


def all_reduce_layernorm(c: Call):
    x, weight, residual = c.tensor(c.rows, N), c.tensor(N, own=False), c.maybe(c.rows, N)
    how = c.method("one_shot", "two_shot", "unfused")
    return lambda: ops.all_reduce_layernorm(x, weight, residual=residual, method=how)


def gemm_ar_rmsnorm(c: Call):
    x, weight, norm, residual = c.tensor(c.rows, K), c.tensor(N, K), c.tensor(N, own=False), c.maybe(c.rows, N)
    how = c.method("ring", "unfused")
    return lambda: ops.gemm_ar_rmsnorm(x, weight, norm, residual=residual, method=how)


OF_OPS = {make.__name__: make for make in (all_reduce, all_gather, reduce_scatter, all_to_all_single, ag_gemm, gemm_rs, gemm_ar,
                                           all_reduce_rmsnorm, all_reduce_layernorm, gemm_ar_rmsnorm)}


def forget() -> None:
    for record in state().all_records():
        if isinstance(record, CallRecord):
            record.plans.clear(), record.known.clear(), record.classes.clear()


def history(seed: int, remembers: bool) -> list:
    """[(op, what each call gave, and what its inputs were then)]"""
    found = []
    for number in range(LENGTH):
        call = Call(number, seed)
        if not remembers:
            forget()
        try:
            results = call.run()
        except TritonDistError as error:
            found.append((number, call.op, type(error).__name__, str(error)))
            continue
        triton_dist.synchronize()
        results = results if isinstance(results, tuple) else (results, )
        found.append((number, call.op, *(t.detach().clone() for t in (*results, *call.inputs) if t is not None)))
    return found


def same(a: tuple, b: tuple) -> bool:
    return len(a) == len(b) and all(
        type(x) is type(y) and (torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
                                if isinstance(x, torch.Tensor) else x == y) for x, y in zip(a, b))


@pytest.mark.parametrize("seeds", [range(122, 125), *[pytest.param(range(first, first + 40), marks=pytest.mark.full)
                                               for first in range(200, 400, 40)]])
def test_a_call_gives_what_it_gives_without_the_calls_before_it(seeds):
    served = 0
    for seed in seeds:
        found = [run_ranks(lambda: history(seed, remembers), WORLD, seed=seed) for remembers in (True, False)]
        for rank, (after_others, alone) in enumerate(zip(*found)):
            wrong = [(a[:2], [x for x in a[2:] if isinstance(x, str)], [x for x in b[2:] if isinstance(x, str)])
                     for a, b in zip(after_others, alone) if not same(a, b)]
            assert not wrong, f"history {seed}, rank {rank}: {wrong[:3]}"
        served += sum(not isinstance(one[2], str) for one in found[0][0])
    assert served > len(seeds) * LENGTH / 2

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The harness of the bad-input tables: every rank gets the error at once, the message helps, and the world goes on.

Where ranks differ, it does not: then every later call says so, with the first cause.

A row is (id, call, what the message names, what it says was found, what it says to do), and the type of the error and the
world size where they are not the usual ones. `call` runs on every rank of a virtual world.
"""
import time
from typing import Callable, NamedTuple

import pytest
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.emulator import run_ranks
from triton_dist.ops import ag_gemm, all_reduce, gemm_rs
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument
from triton_dist.runtime.groups import resolve

SECONDS = 10


class Row(NamedTuple):
    """One bad call."""
    id: str
    call: Callable
    names: str
    found: str
    todo: str
    error: type = InvalidArgument
    world: int = 2


def table(rows: list):
    """Parametrises a test over rows, by their names."""
    rows = [Row(*row) for row in rows]
    assert len({row.id for row in rows}) == len(rows), "two rows of one name"
    return pytest.mark.parametrize("row", rows, ids=[row.id for row in rows])


@pytest.fixture(autouse=True)
def small_heap(monkeypatch):
    """Heaps of 16 MiB, in every module that imports this."""
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "16M")


def words(error: BaseException) -> str:
    """The message with its notes and causes, as a traceback shows them."""
    own = "\n".join([str(error), *getattr(error, "__notes__", ())])
    return own if error.__cause__ is None else f"{words(error.__cause__)}\n{own}"


def check_message(row: Row, text: str) -> None:
    for part in (row.names, row.found, row.todo):
        assert part in text, f"{part!r} is not in: {text}"


def refused(row: Row, **options) -> int:
    """Every rank of a virtual world raises the row's error, and works afterwards. The number of ranks that did."""
    def script():
        begin = time.monotonic()
        with pytest.raises(row.error) as caught:
            row.call()
            triton_dist.synchronize()
            resolve().barrier()
        check_message(row, words(caught.value))
        usable()
        assert time.monotonic() - begin < SECONDS
        return 1
    return sum(run_ranks(script, row.world, **options))


def differs(row: Row, **options) -> int:
    """Every rank of a virtual world raises the row's error, and in each later call one with its cause. The number of ranks."""
    def script():
        with pytest.raises(row.error) as caught:
            row.call()
            triton_dist.synchronize()
            resolve().barrier()
        check_message(row, words(caught.value))
        over(row.names, row.found, row.todo)
        return 1
    return sum(run_ranks(script, row.world, **options))


def over(*cause: str) -> None:
    """No op can be called any more, and each call says why."""
    begin, x = time.monotonic(), torch.ones(2 * resolve().size, 16)
    for call in (lambda: ag_gemm(x, torch.eye(16)), lambda: all_reduce(x), lambda: gemm_rs(x, torch.eye(16), method="unfused")):
        with pytest.raises(CollectiveMismatch, match="ranks have differed before|ranks disagree") as caught:
            call()
            triton_dist.synchronize()
            resolve().barrier()
        assert all(part in str(caught.value) for part in cause), caught.value
    assert "ranks have differed before" in str(caught.value) and time.monotonic() - begin < SECONDS


@triton_dist.jit
def _pass_on(inbox, flag, out, value):
    successor = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(inbox, successor), value)
    dl.notify(flag, successor, 1)
    token = dl.wait(flag, 1, "sys", "acquire", 1)
    tl.store(out, tl.load(dl.consume_token(inbox, token)))


def usable() -> None:
    """Ops, symmetric memory and kernels with signals give right results on every rank."""
    world = resolve()
    x, weight = torch.full((2 * world.size, 16), float(world.rank + 1)), torch.eye(16)
    rows = ag_gemm(x, weight, method="portable")[:, 3].view(world.size, -1)
    assert rows.tolist() == [[r + 1.0] * 2 * world.size for r in range(world.size)]
    assert gemm_rs(x, weight, method="portable").eq(sum(range(1, world.size + 1))).all()
    inbox, flag = (triton_dist.create_symm_tensor((1,), torch.int32) for _ in range(2))
    out = torch.empty(1, dtype=torch.int32)
    _pass_on[(1,)](inbox, flag, out, world.rank + 70)
    triton_dist.synchronize()
    assert out.item() == (world.rank - 1) % world.size + 70
    for tensor in (inbox, flag):
        triton_dist.free_symm_tensor(tensor)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What tests show to Triton's front end without --full (tests/front_end.py)."""
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from front_end import Session, Shown, described, shown_what_is_new
from mutants import load

from triton_dist.backends.emulator import launching

SOURCE = '''
import triton
import triton.language as tl

@triton.jit
def kernel(x, n, ROWS: tl.constexpr, COLS: tl.constexpr, SEND: tl.constexpr = True):
    tl.store(x, n)
'''


@pytest.fixture
def seen(monkeypatch, tmp_path):
    """What is shown inside the test. Kernels wait their turn where they send; the front end refuses 3 rows."""
    found = []

    def trace(kernel, args, kwargs):
        found.append((kernel, args, kwargs))
        if kwargs["ROWS"] == 3:
            raise ValueError("3 rows")
        return SimpleNamespace(metadata=SimpleNamespace(waits_its_turn=kwargs.get("SEND", True)))
    monkeypatch.setattr(launching, "trace", trace)
    with shown_what_is_new(tmp_path / "shown"):
        yield found


def show(kernel, *args, **kwargs):
    return launching.trace(kernel, args, kwargs).metadata.waits_its_turn


def test_each_value_and_each_combination_of_flags_is_shown(tmp_path, seen):
    kernel, x = load("kernel", SOURCE, tmp_path).kernel, torch.zeros(4)

    def count(*args, **kwargs):
        before, waits = len(seen), show(kernel, *args, **kwargs)
        assert waits == kwargs.get("SEND", True)
        return len(seen) - before
    assert count(x, 5, ROWS=1, COLS=1) == 1 and count(x[1:], 16, ROWS=1, COLS=1) == 0
    assert count(x, 5, ROWS=2, COLS=2) == 1 and count(x, 5, ROWS=1, COLS=2) == 0, "products of numbers are left out"
    assert count(x, 5, ROWS=1, COLS=4) == 1 and count(x, 5, ROWS=1, COLS=4, num_warps=8) == 1
    assert count(x, 5, ROWS=1, COLS=5) == 1 and count(x, 5, ROWS=1, COLS=7) == 0, "numbers above 4 are one kind"
    assert count(x, 5, ROWS=1, COLS=16) == 1 and count(x, 5, ROWS=1, COLS=32) == 0, "powers of 2 are another"
    assert count(x, 5, ROWS=1, COLS=1e-5) == 1 and count(x, 5, ROWS=1, COLS=1e-6) == 0 and count(x, 5, ROWS=1, COLS=-1) == 1
    assert count(x, 5, ROWS=2, COLS=1, SEND=False) == 1 and count(x, 5, ROWS=1, COLS=4, SEND=False) == 0
    assert count(x.half(), 5, ROWS=1, COLS=1) == 1 and count(x, 1, ROWS=1, COLS=1) == 1 and count(x, 1 << 40, ROWS=1, COLS=1) == 1


def test_combinations_of_flags_are_shown_where_they_decide_whether_it_waits(tmp_path, seen):
    kernel, x = load("kernel", SOURCE.replace("SEND: tl.constexpr = True", "ADD: tl.constexpr, SEND: tl.constexpr"),
                     tmp_path).kernel, torch.zeros(4)
    flags = [(False, True), (True, True), (True, False), (False, False)]
    shown = []
    for add, send in flags:
        before = len(seen)
        assert show(kernel, x, 5, ROWS=1, COLS=1, ADD=add, SEND=send) == send
        shown.append(len(seen) - before)
    assert shown == [1, 1, 1, 1]
    other = load("kernel", SOURCE.replace("SEND: tl.constexpr = True", "ADD: tl.constexpr, MORE: tl.constexpr"), tmp_path).kernel
    before = len(seen)
    assert all(show(other, x, 5, ROWS=1, COLS=1, ADD=add, MORE=more) for add, more in flags) and len(seen) - before == 3


def test_flags_that_do_not_tell_whether_it_waits_are_shown_always():
    shown = Shown()
    shown.seen |= {"a", "b"}
    shown.waits["c"].add(True)
    assert not shown.new({"a"}, "c") and shown.waiting("c") and not shown.new({"a"}, "another") and shown.waiting("another")
    shown.waits["c"].add(False)
    shown.waits["d"].add(False)
    assert shown.new({"a"}, "c") and not shown.new({"a"}, "d") and not shown.waiting("d") and shown.new({"b"}, "another")


def test_what_is_refused_is_shown_again(tmp_path, seen):
    kernel, x = load("kernel", SOURCE, tmp_path).kernel, torch.zeros(4)
    show(kernel, x, 5, ROWS=1, COLS=1)
    for _ in range(2):
        with pytest.raises(ValueError, match="3 rows"):
            show(kernel, x, 5, ROWS=3, COLS=1)
    assert len(seen) == 3


def test_mutants_of_a_kernel_count_together_and_do_not_count_for_it(tmp_path, seen):
    first, second = (load("kernel", SOURCE.replace("n)", text), tmp_path).kernel for text in ("n + 1)", "n + 2)"))
    show(first, torch.zeros(4), 5, ROWS=1, COLS=1)
    show(second, torch.zeros(4), 5, ROWS=1, COLS=1)
    assert [kernel for kernel, *_ in seen] == [first]

    @triton.jit
    def kernel(x, n, ROWS: tl.constexpr, COLS: tl.constexpr, SEND: tl.constexpr = True):
        tl.store(x, n)
    kernel.fn.__qualname__ = "kernel"
    for _ in range(2):
        show(kernel, torch.zeros(4), 5, ROWS=1, COLS=1)
    assert [kernel for kernel, *_ in seen] == [first, kernel]


def test_what_another_process_has_shown_is_not_shown_again(tmp_path, seen):
    @triton.jit
    def kernel(x, n, ROWS: tl.constexpr, SEND: tl.constexpr):
        tl.store(x, n)

    def shown(**values):
        before = len(seen)
        assert show(kernel, torch.zeros(4), 5, **values) == values["SEND"]
        return len(seen) > before
    assert shown(ROWS=1, SEND=False)
    with shown_what_is_new(tmp_path / "shown"):                     # as in another process, which asks this one
        assert not shown(ROWS=1, SEND=False) and shown(ROWS=2, SEND=False)
    assert not shown(ROWS=2, SEND=False) and shown(ROWS=1, SEND=True)


def test_half_a_line_waits_for_its_end(tmp_path):
    one, other = Session(tmp_path / "shown"), Session(tmp_path / "shown")
    one.add({"a", "b"}, {"x", "y"}, "c", True)
    whole = (tmp_path / "shown").read_bytes()
    assert other.kernel("a").seen == other.kernel("b").seen == {"x", "y"} and other.kernel("a").waits == {"c": {True}}
    third = Session(tmp_path / "half")
    (tmp_path / "half").write_bytes(whole[:20])
    assert not third.kernel("a").seen
    (tmp_path / "half").write_bytes(whole)
    assert third.kernel("a").seen == {"x", "y"} and third.kernel("a").new({"z"}, "c") and not third.kernel("a").new({"x"}, "c")
    for session in (one, other, third):
        session.close()


def test_a_tuple_and_a_function_are_described(tmp_path):
    kernel = load("kernel", SOURCE, tmp_path).kernel
    seen, (none, flags) = described(kernel, (torch.zeros(1), (1, 7), kernel), {"COLS": 0.5})
    assert none == () and flags == (("ROWS", kernel.cache_key),)
    assert seen == {("COLS", "float"), ("ROWS", kernel.cache_key), ("n", ("one", "int32")), ("x", torch.float32),
                    ("torch.float32",)}
    both = described(kernel, (torch.zeros(1).half(), torch.zeros(1)), {})[0]
    assert both == {("x", torch.float16), ("n", torch.float32), ("torch.float16", "torch.float32")}
    assert described(kernel, (None, 3), {"ROWS": True, "COLS": (0, 3)})[1] == (("x",), (("ROWS", True),))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Collectives in graphs, on virtual worlds: replay after replay, odd counts, eager calls between, new content and new splits."""
import pytest
import torch
from scenarios import BF16, captures_by_rank, dawdle, graph

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.runtime.groups import resolve
from triton_dist.testing import all_reduce_rmsnorm_float64, assert_matches, poisoned, random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")


class Sum:
    """all_reduce of tensors that stay."""

    def __init__(self, n, method):
        self.n, self.method = n, method
        self.x, self.out = poisoned(n, dtype=BF16), poisoned(n, dtype=BF16)

    def refill(self, seed):
        group, self.out[:] = resolve(), float("nan")
        every = [random_tensor(self.n, dtype=BF16, seed=1000 * seed + index) for index in range(group.size)]
        self.x.copy_(every[group.rank])
        self.expected = sum(x.double() for x in every)

    def __call__(self):
        ops.all_reduce(self.x, out=self.out, method=self.method)

    def verify(self):
        assert_matches(self.out, self.expected, k=resolve().size)


class Norm:
    """all_reduce_rmsnorm of tensors that stay."""

    def __init__(self, m, n, method):
        self.m, self.n, self.method = m, n, method
        self.x, self.residual, self.out, self.total = (poisoned(m, n, dtype=BF16) for _ in range(4))
        self.weight = random_tensor(n, dtype=BF16, seed=3)

    def refill(self, seed):
        self.x.copy_(random_tensor(self.m, self.n, dtype=BF16, seed=1000 * seed + resolve().rank))
        self.residual.copy_(random_tensor(self.m, self.n, dtype=BF16, seed=1000 * seed + 100))
        for t in (self.out, self.total):
            t.fill_(float("nan"))

    def __call__(self):
        ops.all_reduce_rmsnorm(self.x, self.weight, residual=self.residual, out=self.out, residual_out=self.total,
                               method=self.method)

    def verify(self):
        norm, total = all_reduce_rmsnorm_float64(self.x, self.weight, resolve(), residual=self.residual)
        assert_matches(self.total, total, k=resolve().size)
        assert_matches(self.out, norm, k=self.n, roundings=4)


class BySplits:
    """all_to_all_vdev of tensors that stay, of which the splits have other content each time."""

    def __init__(self, m, row, capacity):
        self.m, self.row, self.capacity = m, row, capacity
        self.x, self.out = poisoned(m, row, dtype=BF16), poisoned(capacity, row, dtype=BF16)
        self.splits = torch.zeros(resolve().size, dtype=torch.int64)
        self.told = torch.zeros(2, resolve().size, dtype=torch.int64)

    def refill(self, seed):
        group, self.out[:], self.rows, self.counts = resolve(), float("nan"), [], []
        for index in range(group.size):
            x = random_tensor(self.m, self.row, dtype=BF16, seed=1000 * seed + index)
            splits = [(seed + index + to) % 4 * (to != seed % 3) for to in range(group.size)]
            begin = sum(splits[:group.rank])
            self.rows.append(x[begin:begin + splits[group.rank]])
            self.counts.append(len(self.rows[-1]))
            if index == group.rank:
                self.x.copy_(x)
                self.splits.copy_(torch.tensor(splits))

    def __call__(self):
        ops.all_to_all_vdev(self.x, self.splits, out=self.out, out_splits_offsets=self.told)

    def verify(self):
        expected = torch.cat(self.rows)[:self.capacity]
        assert self.told[0].tolist() == self.counts and torch.equal(self.out[:len(expected)], expected)
        assert bool(self.out[len(expected):].isnan().all())


MADE = {
    "all_reduce": lambda: [Sum(n, method) for n, method in (
        (300, "one_shot"), (40, "two_shot"), (900, "push"), (40, "one_shot"))],
    "all_reduce_rmsnorm": lambda: [Norm(m, n, method) for m, n, method in (
        (5, 64, "one_shot"), (9, 130, "two_shot"), (1, 64, "two_shot"), (3, 41, "one_shot"))],
    "all_to_all_vdev": lambda: [BySplits(12, row, capacity) for row, capacity in ((40, 48), (130, 7), (7, 30), (16, 48))],
}
MADE["all of them"] = lambda: [made()[i] for i, made in enumerate([*MADE.values()][:3])] + [Norm(2, 700, "one_shot")]


def replayed(make, slow=None):
    """Replays of graphs of three calls and of one, eager calls between, nothing else between; three times with other content."""
    a, b, c, d = calls = make()
    for call in calls:
        call.refill(0)
        call()
    triton_dist.synchronize()
    made = []
    for some in ([a, b, c], [c]):
        with graph() as found:
            for call in some:
                call()
        made.append(found)
    odd, single = made
    for content in range(1, 4):
        for call in calls:
            call.refill(content)
        resolve().barrier()
        for step in (odd, odd, d, single, a, odd, single, single, b, c, odd):
            if resolve().rank == slow:
                dawdle()
            (getattr(step, "replay", None) or step)()
        triton_dist.synchronize()
        for call in calls:
            call.verify()


@pytest.mark.one
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MADE)
def test_replay_after_replay_with_eager_calls_between(name, world):
    run_ranks(lambda: replayed(MADE[name]), world, mode=("random", "late")[world % 2], seed=world)


@pytest.mark.full
@pytest.mark.parametrize("name", MADE)
def test_replays_and_a_rank_that_is_overtaken(name):
    run_ranks(lambda: replayed(MADE[name], slow=1), 3, mode="skew", seed=5)

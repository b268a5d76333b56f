# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The all-to-alls of chunks as scenarios, with a reference that lists rows."""
import torch

from triton_dist.ops import all_to_all_vdev_2d, all_to_all_vdev_2d_offset
from triton_dist.testing import poisoned, random_tensor

BF16 = torch.bfloat16


def at_random(rank, seed, rows, world, experts):
    """Sizes [W][E] of up to `rows` rows in all; some are 0."""
    chosen = torch.randint(world * experts + 1, (rows,), generator=torch.Generator().manual_seed(1000 * seed + rank))
    return chosen.bincount(minlength=world * experts + 1)[:world * experts].view(world, experts).tolist()


class Chunks2d:
    """One all_to_all_vdev_2d of x [m, row] with random sizes, or sizes(rank, seed, m, world, experts)."""
    kind = "chunks by rank and expert"

    def __init__(self, m, row, experts=2, align=None, method="push", dtype=BF16, capacity=None, sizes=at_random,
                 kept=torch.int64):
        self.m, self.row, self.experts, self.align, self.method, self.dtype = m, row, experts, align, method, dtype
        self.capacity, self.sizes, self.kept = capacity, sizes, kept

    def x(self, index, seed):
        return random_tensor(self.m, self.row, dtype=self.dtype, seed=1000 * seed + index)

    def sources(self, index, seed, world):
        """{(rank, expert): rows of x} of a rank, cut to what there is."""
        found, begin = {}, 0
        for rank, line in enumerate(self.sizes(index, seed, self.m, world, self.experts)):
            for expert, size in enumerate(line):
                end = min(begin + max(size, 0), self.m)
                found[rank, expert] = range(begin, end)
                begin = end
        return found

    def given(self, index, seed, world):
        return torch.tensor(self.sizes(index, seed, self.m, world, self.experts), dtype=self.kept).view(-1)

    def call(self, x, splits, group, **outputs):
        return all_to_all_vdev_2d(x, splits, major_align=self.align, group=group, method=self.method, **outputs)

    def all_fit(self, world):
        return world * self.m + self.experts * (self.align or 1)

    def placed(self, every, rank):
        """[((source, expert), begin in out)] in the order of out_splits_offsets."""
        found, align, begin = [], self.align or 1, 0
        for expert in range(self.experts):
            at = begin
            for source, chunks in enumerate(every):
                found.append(((source, expert), at))
                at += len(chunks[rank, expert])
            begin += max(-(-(at - begin) // align) * align, align)
        return found

    def __call__(self, seed, group):
        world, rank = group.size, group.rank
        capacity = self.all_fit(world) if self.capacity is None else self.capacity
        every = [self.sources(index, seed, world) for index in range(world)]
        out, told = poisoned(capacity, self.row, dtype=self.dtype), torch.full((2, world * self.experts), -7, dtype=self.kept)
        got = self.call(self.x(rank, seed), self.given(rank, seed, world), group, out=out, out_splits_offsets=told)
        assert got[0] is out and got[1] is told

        def verify():
            chunks = self.placed(every, rank)
            sizes = [len(every[source][rank, expert]) for (source, expert), _ in chunks]
            assert told.tolist() == [sizes, [at for _, at in chunks]]
            written = torch.zeros(capacity, dtype=torch.bool)
            for (source, expert), at in chunks:
                rows = self.x(source, seed)[list(every[source][rank, expert])][:max(0, capacity - at)]
                assert torch.equal(out[at:at + len(rows)], rows), "rows differ"
                written[at:at + len(rows)] = True
            assert bool(out[~written].isnan().all()), "rows between chunks were written"
            return torch.where(written[:, None], out, 0)
        return verify


class Offsets2d(Chunks2d):
    """One all_to_all_vdev_2d_offset of x [m, row], whose chunks have gaps of `gap` rows between them."""

    def __init__(self, m, row, experts=2, gap=1, **more):
        super().__init__(m, row, experts, **more)
        self.gap = gap

    def begins(self, index, seed, world):
        """{(rank, expert): (rows, begin)} as they are asked for, in the order of (expert, rank)."""
        sizes, at, found = self.sizes(index, seed, max(0, self.m - self.gap * world * self.experts), world, self.experts), 0, {}
        for expert in range(self.experts):
            for rank in range(world):
                found[rank, expert] = sizes[rank][expert], at
                at += max(sizes[rank][expert], 0) + self.gap
        return found

    def sources(self, index, seed, world):
        return {chunk: range(min(max(at, 0), self.m), min(min(max(at, 0), self.m) + max(size, 0), self.m))
                for chunk, (size, at) in self.begins(index, seed, world).items()}

    def given(self, index, seed, world):
        return torch.tensor(list(self.begins(index, seed, world).values()), dtype=self.kept).t().contiguous()

    def call(self, x, splits, group, **outputs):
        return all_to_all_vdev_2d_offset(x, splits, group=group, method=self.method, **outputs)

    def all_fit(self, world):
        return world * self.m

    def placed(self, every, rank):
        found, at = [], 0
        for source, chunks in enumerate(every):
            for expert in range(self.experts):
                found.append(((source, expert), at))
                at += len(chunks[rank, expert])
        return found

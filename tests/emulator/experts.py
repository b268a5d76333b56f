# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch and combine as a scenario: calls with a reference that sorts, in float64, from what every rank was given."""
import torch
from scenarios import dawdle

import triton_dist
from triton_dist.ops import ep_combine, ep_combine_send, ep_dispatch, ep_dispatch_send
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, poisoned, random_tensor

BF16, F32, F8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def anywhere(rank, seed, tokens, k, experts):
    """Random experts, repeated ones among them; some are none."""
    return torch.randint(-1, experts, (tokens, k), generator=torch.Generator().manual_seed(1000 * seed + rank))


def to_one(rank, seed, tokens, k, experts):
    """All choices are one expert, the same for all ranks."""
    return torch.full((tokens, k), seed % experts)


def to_the_first(rank, seed, tokens, k, experts):
    """Experts of the first rank, or of none: the others get nothing."""
    return torch.where(anywhere(rank, seed, tokens, k, experts) % 3 == 0, -1, 0)


def to_nobody(rank, seed, tokens, k, experts):
    return torch.tensor([-1, experts, 2**20, -7]).repeat(tokens * k)[:tokens * k].view(tokens, k).contiguous()


class EP:
    """A dispatch of `tokens` tokens, a number or a function of the rank, and a combine of random rows by its handle.

    share: experts of each rank. max_tokens: given where ranks have different numbers. split: in two halves, one after the other.
    """
    kind = "tokens to experts"

    def __init__(self,
                 tokens,
                 row,
                 k=2,
                 share=2,
                 layout="compact",
                 align=1,
                 capacity=None,
                 dtype=BF16,
                 routing=anywhere,
                 weights=True,
                 scales=0,
                 quant=None,
                 max_tokens=None,
                 method="push",
                 kept=torch.int32,
                 bias=False,
                 residual=False,
                 combine=True,
                 split=False):
        self.tokens, self.row, self.k, self.share, self.layout, self.align = tokens, row, k, share, layout, align
        self.capacity, self.dtype, self.routing, self.weights, self.scales, self.quant = (capacity, dtype, routing,
                                                                                          weights, scales, quant)
        self.max_tokens, self.method, self.kept, self.bias, self.residual, self.combine = (max_tokens, method, kept,
                                                                                           bias, residual, combine)
        self.dispatch, self.sum_back = ep_dispatch, ep_combine
        if split:
            self.dispatch = lambda *args, **kwargs: ep_dispatch_send(*args, **kwargs).recv()
            self.sum_back = lambda *args, **kwargs: ep_combine_send(*args, **kwargs).recv()

    def given(self, index, seed, world):
        """(x, ids, weights, scales) of a rank."""
        tokens = self.tokens(index) if callable(self.tokens) else self.tokens
        base = 1000 * seed + index
        x = random_tensor(tokens, self.row, dtype=F32 if self.dtype is F8 else self.dtype, seed=base).to(self.dtype)
        ids = self.routing(index, seed, tokens, self.k, self.share * world).to(self.kept)
        weights = random_tensor(tokens, self.k, dtype=F32, seed=base + 100) if self.weights else None
        return x, ids, weights, random_tensor(tokens, self.scales, dtype=F32, seed=base + 200) if self.scales else None

    def __call__(self, seed, group):
        world, experts = group.size, self.share * group.size
        every = [self.given(index, seed, world) for index in range(world)]
        x, ids, weights, scales = every[group.rank]
        came = self.dispatch(x,
                             ids,
                             weights,
                             scales=scales,
                             num_experts=experts,
                             layout=self.layout,
                             align=self.align,
                             capacity=self.capacity,
                             max_tokens=self.max_tokens,
                             quant=self.quant,
                             group=group,
                             method=self.method)
        of_rank = [
            rows_of(every, index, self.share, self.capacity if self.layout in ("compact", "indexed") else None)
            for index in range(world)
        ]
        by_choice = self.layout in ("expert", "masked")
        out = None
        if self.combine:
            dtype = F32 if self.dtype is F8 or self.quant else self.dtype
            ys = [
                random_tensor(came.x.shape[:-1].numel(), self.row, dtype=dtype, seed=1000 * seed + 300 + index)
                for index in range(world)
            ]
            bias = random_tensor(self.row, dtype=dtype, seed=seed) if self.bias else None
            residual = random_tensor(len(x), self.row, dtype=dtype, seed=1000 * seed + 400 +
                                     group.rank) if self.residual else None
            out = poisoned(len(x), self.row, dtype=dtype)
            y = ys[group.rank].view(came.x.shape)
            got = self.sum_back(y,
                                came.handle,
                                topk_weights=came.topk_weights if by_choice else None,
                                bias=bias,
                                residual=residual,
                                out=out,
                                method=self.method)
            assert got is out

        def verify():
            mine = of_rank[group.rank]
            self.check_rows(came, mine, every, group)
            if out is not None:
                total = torch.zeros(len(x), self.row, dtype=torch.float64)
                for index, rows in enumerate(of_rank):
                    places = placed(rows, self.share, self.align, self.room(came), self.layout) if by_choice else None
                    for at, (source, token, local) in enumerate(rows):
                        if source == group.rank and by_choice:
                            for j, spot in enumerate(places[at]):
                                if spot >= 0:
                                    total[token] += ys[index][spot].double() * (1.0 if weights is None else
                                                                                weights[token, j].double())
                        elif source == group.rank and at < len(ys[index]):
                            total[token] += ys[index][at].double()
                for added in (bias, residual):
                    total += 0 if added is None else added.double()
                assert_matches(out, total, k=self.k * world, roundings=world + 1)
            return torch.cat([came.topk_ids.double().view(-1), *([out.double().view(-1)] if out is not None else [])])

        return verify

    def room(self, came):
        return came.x.shape[1] if self.layout == "masked" else came.x.shape[0]

    def check_rows(self, came, rows, every, group):
        total = sum(1 for x, ids, *_ in every for of in ids.tolist()
                    if any(i // self.share == group.rank and 0 <= i < self.share * group.size for i in of))
        assert came.rows.tolist() == [total]
        got = came.topk_ids.tolist()
        assert got[:len(rows)] == [local for _, _, local in rows] and all(i == -1 for of in got[len(rows):] for i in of)
        if self.weights:
            expected = [[w if local[j] >= 0 else 0.0 for j, w in enumerate(every[source][2][token].tolist())]
                        for source, token, local in rows]
            assert came.topk_weights[:len(rows)].tolist() == expected and not came.topk_weights[len(rows):].any()
        else:
            assert came.topk_weights is None
        sent = [(raw(every[source][0][token]), every[source][3][token] if self.scales else None)
                for source, token, _ in rows]
        if self.layout == "compact":
            assert came.expert_rows is came.positions is came.sources is None
        else:
            counts = [sum(local.count(e) for _, _, local in rows) for e in range(self.share)]
            assert came.expert_rows.tolist() == counts
            room = len(came.sources) if self.layout == "indexed" else self.room(came)
            begins = [e * room
                      for e in range(self.share + 1)] if self.layout == "masked" else begins_of(counts, self.align)
            assert came.expert_offsets.tolist() == begins
            places = placed(rows, self.share, self.align, room, self.layout)
            assert came.positions[:len(rows)].tolist() == places and bool((came.positions[len(rows):] == -1).all())
            if self.layout == "indexed":
                assert all(came.sources[spot] == at for at, of in enumerate(places) for spot in of if spot >= 0)
            else:
                sent = [
                    sent[at] for _, at in sorted((spot, at) for at, of in enumerate(places) for spot in of if spot >= 0)
                ]
        spots = range(len(sent)) if self.layout in ("compact", "indexed") else sorted(s for of in places for s in of
                                                                                      if s >= 0)
        flat = came.x.reshape(-1, self.row)
        if self.layout == "expert":
            between = {*range(min(begins[-1], room))} - {*spots}
            assert not any(raw(flat[spot]).any() for spot in between), "rows between experts are no zeros"
        for spot, (row, scale) in zip(spots, sent, strict=True):
            if self.quant:
                near = flat[spot].float().view(-1, 128) * came.scales.reshape(-1, self.row // 128)[spot][:, None]
                most = row.float().view(-1, 128).abs().amax(-1, keepdim=True)
                assert ((near - row.float().view(-1, 128)).abs() <= most / 16).all()
            else:
                assert torch.equal(raw(flat[spot]), row), "rows differ"
            if scale is not None:
                assert torch.equal(came.scales.reshape(-1, self.scales)[spot], scale)


def raw(t):
    """As torch can compare it."""
    return t.view(torch.uint8) if t.dtype.itemsize == 1 else t


def rows_of(every, rank, share, limit):
    """[(source, token, experts of `rank` counted from its first or -1)] of what comes there, in order, up to `limit`."""
    found = []
    for source, (_, ids, *_) in enumerate(every):
        for token, of in enumerate(ids.tolist()):
            local = [i - rank * share if 0 <= i - rank * share < share else -1 for i in of]
            if max(local) >= 0:
                found.append((source, token, local))
    return found[:limit]


def begins_of(counts, align):
    begins = [0]
    for count in counts:
        begins.append(begins[-1] + -(-count // align) * align)
    return begins


def placed(rows, share, align, room, layout):
    """For each row the row by expert of each of its choices."""
    counts = [sum(local.count(e) for _, _, local in rows) for e in range(share)]
    following = [e * room for e in range(share)] if layout == "masked" else begins_of(counts, align)[:-1]
    ends = [e + room for e in following] if layout == "masked" else [room] * share
    found = []
    for _, _, local in rows:
        of = []
        for e in local:
            of.append(-1 if e < 0 or following[e] >= ends[e] else following[e])
            if e >= 0:
                following[e] += 1
        found.append(of)
    return found


def combines_alone(tokens, method):
    """One dispatch, then combines alone with a slow rank. By the first one's choices ranks 1 and 2 send each other nothing."""
    group = resolve()
    for routing in (to_the_first, anywhere):
        ids = routing(group.rank, 5, tokens, 2, 6).int()
        came = ep_dispatch(random_tensor(tokens, 24, dtype=F32, seed=group.rank), ids, num_experts=6, layout="expert",
                           group=group, method=method)
        triton_dist.synchronize()
        ys, results = [random_tensor(len(came.x), 24, dtype=F32, seed=10 * call + group.rank) for call in range(4)], []
        for y in ys:
            y[:, 3] = 0
            if group.rank == 1:
                dawdle()
            results.append(ep_combine(y, came.handle, method=method))
        triton_dist.synchronize()
        for call, out in enumerate(results):
            assert torch.equal(out, ep_combine(ys[call], came.handle, method="unfused"))

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The part "layer" of moe.py: EPMoE beside layers of torch's grouped_mm and the exchange of NCCL or of a `--peer-path`.

A peer's exchange is a class such as those below. A Python file gives more of them as `EXCHANGES`, a dict of names and classes:

    class Mine:
        def __init__(self, x, ids, weights, experts):    # x [T, H], ids and weights [T, k], as they will be in each call
            ...
        def gather(self, x, ids, weights):               # -> x [R, H], ids [R, k], weights [R, k] of all tokens that may choose
            ...                                          #    an expert of this rank; a choice of no expert has the id -1
        def reduce(self, y):                             # y [R, H], this rank's sum for each -> [T, H], the sum over ranks
            ...

What the host must know of the routing, such as numbers of rows, peers know from the start and for nothing.
"""
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import torch
import torch.distributed as dist
from moe_repeat import Layers

from triton_dist.bench.collective.measure import _graph
from triton_dist.bench.measure import in_turn
from triton_dist.layers import EPMoE
from triton_dist.testing import milliseconds

CHECKED = 3  # calls of each way before it is timed


class AllGather:
    """All tokens go to all ranks, and sums are reduce-scattered, by NCCL."""
    def __init__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: int):
        self.k, rows = ids.shape[1], len(x) * dist.get_world_size()
        self.x, self.choices = x.new_empty(rows, x.shape[1]), ids.new_empty(rows, 2 * self.k, dtype=torch.int32)
        self.out = torch.empty_like(x)

    def gather(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> tuple:
        dist.all_gather_into_tensor(self.x, x)
        dist.all_gather_into_tensor(self.choices, _packed(ids, weights))
        return self.x, *_unpacked(self.choices)

    def reduce(self, y: torch.Tensor) -> torch.Tensor:
        dist.reduce_scatter_tensor(self.out, y)
        return self.out


class AllToAll:
    """A token goes once to each rank that has one of its experts, by NCCL."""
    def __init__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: int):
        world = dist.get_world_size()
        owner = ids // (experts // world)
        sent = [(owner == rank).any(1).nonzero()[:, 0] for rank in range(world)]
        self.sent, self.to = torch.cat(sent), [len(rows) for rows in sent]
        everyone: list = [None] * world
        dist.all_gather_object(everyone, self.to)
        self.came = [counts[dist.get_rank()] for counts in everyone]
        self.x = x.new_empty(sum(self.came), x.shape[1])
        self.choices = ids.new_empty(sum(self.came), 2 * ids.shape[1], dtype=torch.int32)
        self.back, self.tokens = x.new_empty(len(self.sent), x.shape[1]), len(x)

    def gather(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> tuple:
        dist.all_to_all_single(self.x, x[self.sent], self.came, self.to)
        dist.all_to_all_single(self.choices, _packed(ids, weights)[self.sent], self.came, self.to)
        return self.x, *_unpacked(self.choices)

    def reduce(self, y: torch.Tensor) -> torch.Tensor:
        dist.all_to_all_single(self.back, y, self.to, self.came)
        out = self.back.new_zeros(self.tokens, y.shape[1])
        return out.index_add_(0, self.sent, self.back)


EXCHANGES = {"NCCL all-gather": AllGather, "NCCL all-to-all": AllToAll}


def _packed(ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.cat([ids.to(torch.int32), weights.float().view(torch.int32)], 1)


def _unpacked(choices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weights = choices.chunk(2, 1)
    return ids, weights.view(torch.float32)


def _silu_mul(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _sums(y: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of each token's rows, in float32; a choice of another rank's expert has the weight 0."""
    return (y[places].float() * weights[..., None]).sum(1).to(y.dtype)


class GroupedMM:
    """The layer of EPMoE by torch's grouped_mm and an exchange. Elementwise work is compiled where there is a GPU."""
    def __init__(self, moe: EPMoE, exchange: type, x: torch.Tensor):
        self.moe, self.local = moe, len(moe.weight)
        ids, weights = moe.router(x)
        self.exchange = exchange(x, ids, weights, self.local * dist.get_world_size())
        self.mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        compiled: Callable = torch.compile if x.is_cuda else lambda call: call
        self.silu_mul, self.sums = compiled(_silu_mul), compiled(_sums)
        everyone = ids.new_empty(dist.get_world_size() * len(ids), ids.shape[1])
        dist.all_gather_into_tensor(everyone, ids)  # not by the exchange: peers may write there before this has read
        self.rows = int(self._here(everyone)[1].sum())
        self.ends = torch.arange(1, self.local + 1, device=x.device)

    def _here(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each choice's expert as this rank counts them, and whether it is this rank's."""
        mine = ids - self.local * dist.get_rank()
        return mine, (ids >= 0) & (mine >= 0) & (mine < self.local)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x, ids, weights = self.exchange.gather(x, *self.moe.router(x))
        mine, here = self._here(ids)
        ordered, order = torch.where(here, mine, self.local).flatten().sort(stable=True)
        offsets = torch.searchsorted(ordered, self.ends).to(torch.int32)
        h = self.mm(x[order[:self.rows] // ids.shape[1]], self.moe.weight.transpose(1, 2), offs=offsets)
        y = self.mm(self.silu_mul(h), self.moe.down.transpose(1, 2), offs=offsets)
        places = torch.empty_like(order)
        places[order] = torch.arange(order.numel(), device=x.device)
        places = places.clamp(max=self.rows - 1).view(ids.shape)
        return self.exchange.reduce(self.sums(y, places, torch.where(here, weights, 0.0)))


def layer(bench: Any, models: dict, peer_path: Path | None) -> None:
    """A whole EPMoE without gradients: router, dispatch, both products, combine. At most 64 experts, so that weights fit.

    Ways take turns in each round. "ratio" is the time of the fastest peer over that of EPMoE.
    """
    exchanges = EXCHANGES | (runpy.run_path(str(peer_path))["EXCHANGES"] if peer_path else {})
    for name in bench.models if bench.gpu else ("tiny", ):
        layers = Layers(bench.group, *models.get(name, (4 * bench.group.size, 2, 32, 16)))
        for tokens in bench.tokens or ((128, 1024, 8192) if bench.gpu else (4, 264)):
            with torch.no_grad():
                _times(bench, f"EPMoE {name}, {layers.experts} experts, {tokens} tokens", layers, layers.tokens(tokens),
                       exchanges, 6 * tokens * layers.k * layers.hidden * layers.inner)


def _times(bench: Any, what: str, layers: Layers, x: torch.Tensor, exchanges: dict, flops: int) -> None:
    moe, reference = layers.moe, layers.reference(x)

    def checked(make: Callable) -> Callable:
        layers.router.keeps, call, found = True, make(), []
        for _ in range(CHECKED):
            found.append((call(x).clone(), layers.router.ids, layers.router.weights))
        for number, (out, *routed) in enumerate(found):  # after all calls, which a rank that is wrong makes with the others
            reference.check(out, f"call {number} on rank {bench.group.rank}", *routed)
        return call

    def prepared(call: Callable) -> Callable:
        layers.router.keeps = False
        if bench.gpu:
            return _graph(lambda _: call(x), 4, SimpleNamespace(group=bench.group, sets=1))  # pyright: ignore
        return lambda: 1e3 * milliseconds(lambda: call(x), bench.group, 1)

    ways = {"EPMoE": lambda: moe} | {name: lambda e=e: GroupedMM(moe, e, x) for name, e in exchanges.items()}
    calls = {}
    for name, make in ways.items():  # two steps, since a rank that is wrong must not leave the others alone in a capture
        call = bench.attempt(f"{what}, {name}", lambda make=make: checked(make))
        if call is not None:
            calls[name] = bench.attempt(f"{what}, {name}", lambda call=call: prepared(call))

    def once(name: str) -> float:
        bench.group.barrier()
        return max(bench.group.all_gather_object(calls[name]()))

    found = in_turn([name for name, call in calls.items() if call is not None], bench.rounds, once)
    medians = {name: sorted(us)[len(us) // 2] for name, us in found.items()}
    bench.times |= {f"{what}, {name}": dict(us=us, flops=flops) for name, us in medians.items()}
    if "EPMoE" in medians:
        peers = [us for name, us in medians.items() if name != "EPMoE"]
        ratio = f"   ratio {min(peers) / medians['EPMoE']:.3f}" if peers else ""
        bench.say(f"{what}: {flops / medians['EPMoE'] / 1e6:.1f} TF/s a rank{ratio}")
    for name, us in medians.items():
        bench.say(f"    {name:40s} {us:10.1f} us")

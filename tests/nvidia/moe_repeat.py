# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The part "repeat" of moe.py: is EPMoE right in every call; and what a result that is not has wrong, for "layer" as well."""
import time
from typing import Any, Callable

import torch

import triton_dist
from triton_dist.layers import EPMoE, TopKRouter
from triton_dist.ops.ep.chunks import chunks_of
from triton_dist.testing import random_tensor

BF16 = torch.bfloat16
BOUND = 0.02  # relative error of a layer in bf16 beside the reference: what is right has about 0.005
_TOKEN_BOUND = 0.05  # of one token
_SHOWN = 12  # tokens of which it is said what they lack
_SLEEP_CYCLES = 100_000  # of a GPU's clock: some 60 us


class Recorder(torch.nn.Module):
    """A router that keeps copies of what it gave last, while `keeps`: that takes two kernels."""

    def __init__(self, router: torch.nn.Module):
        super().__init__()
        self.router, self.keeps = router, True
        self.ids = self.weights = torch.empty(0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids, weights = self.router(x)
        if self.keeps:
            self.ids, self.weights = ids.clone(), weights.clone()
        return ids, weights


class Layers:
    """EPMoE of a model, with at most 64 experts so that weights fit, and references of its calls.

    Logits of the router have the scale of 1. Where `peaked`, they have that of sqrt(hidden): then nearly all of a token is its
    first choice, and what becomes of the others is not seen.
    """

    def __init__(self, group: Any, experts: int, k: int, hidden: int, inner: int, peaked: bool = False):
        self.group, self.experts, self.k, self.hidden, self.inner = group, min(experts, 64), k, hidden, inner
        self.local = self.experts // group.size
        router = random_tensor(self.experts, hidden, dtype=BF16, seed=5) / (1 if peaked else hidden**0.5)
        self.router = Recorder(TopKRouter(router, k))
        self.moe = EPMoE(self.router, *self.weights_of(group.rank))

    def weights_of(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(gate_up, down) of the experts of any rank."""
        gate_up = random_tensor(self.local, 2 * self.inner, self.hidden, dtype=BF16, seed=rank) / self.hidden**0.5
        down = random_tensor(self.local, self.hidden, self.inner, dtype=BF16, seed=rank + 9) / self.inner**0.5
        return gate_up, down

    def tokens(self, count: int) -> torch.Tensor:
        """This rank's tokens, [count, hidden]."""
        return random_tensor(count, self.hidden, dtype=BF16, seed=self.group.rank + 20)

    def reference(self, x: torch.Tensor) -> "Reference":
        """Of calls with x."""
        ids, weights = self.router(x)
        return Reference(x, ids, weights, self.weights_of, self.local, self.group.size)


class Reference:
    """What the layer gives of x [T, H], by torch from the weights of all ranks: nothing of it has travelled.

    wanted: fp32 [T, H]. parts: bf16 [T, k, H], the result of each choice's expert.
    """

    def __init__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, weights_of: Callable, local: int, world: int):
        self.ids, self.weights, self.local = ids.clone(), weights.clone(), local
        self.parts = x.new_zeros(*ids.shape, x.shape[1])
        for rank in range(world):
            for e, (gate_up, down) in enumerate(zip(*weights_of(rank))):
                token, choice = (ids == rank * local + e).nonzero(as_tuple=True)
                gate, up = (x[token].float() @ gate_up.float().t()).chunk(2, 1)
                h = (torch.nn.functional.silu(gate) * up).to(x.dtype)
                self.parts[token, choice] = (h.float() @ down.float().t()).to(x.dtype)
        self.wanted = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for choice in range(ids.shape[1]):
            self.wanted += self.parts[:, choice].float() * self.weights[:, choice, None]

    def error(self, found: torch.Tensor) -> float:
        """Relative, in the norm of all tokens."""
        return float((found.float() - self.wanted).norm() / self.wanted.norm())

    def check(self, found: torch.Tensor, what: str, ids: torch.Tensor | None = None, weights: torch.Tensor | None = None) -> None:
        """Raises AssertionError where `found` is wrong, which says what is. ids, weights: what the router gave in the call."""
        error = self.error(found)
        if error < BOUND:
            return
        text = f"{what}: relative error {error:.4f}; {self.differences(found)}"
        if ids is not None:
            other = ((ids != self.ids) | (weights != self.weights)).any(1)
            text += f"; the router gave {int(other.sum())} tokens other choices or weights than before"
        raise AssertionError(text)

    def differences(self, found: torch.Tensor) -> str:
        """Which tokens of `found` are wrong, and which of their choices are lost."""
        off = found.float() - self.wanted
        right = off.norm(dim=1) <= _TOKEN_BOUND * self.wanted.norm(dim=1)  # NaN is not
        wrong = (~right).nonzero()[:, 0]
        each = chunks_of(len(found)).each
        told = [self._of_token(int(t), off[t], each) for t in wrong[:_SHOWN].tolist()]
        every = " ".join(map(str, wrong[:200].tolist()))
        return f"{len(wrong)} of {len(found)} tokens, chunks of {each}: {every}; " + "; ".join(told)

    def _of_token(self, token: int, off: torch.Tensor, each: int) -> str:
        """A choice is lost if the difference has its part, negative. What is left then came in place of it, or beside it."""
        size, lost, left = self.wanted[token].norm(), [], off.clone()
        for expert, weight, part in zip(self.ids[token].tolist(), self.weights[token].tolist(), self.parts[token].float()):
            part = weight * part
            if part.norm() > _TOKEN_BOUND * size and float(off @ part / (part @ part)) < -0.5:
                lost.append(f"{expert} (rank {expert // self.local}, weight {weight:.2f})")
                left += part
        return (f"{token} (chunk {token // each}, its token {token % each}) is off by {float(off.norm() / size):.2f}, lacks "
                f"experts {', '.join(lost) or 'none'}, has {float(left.norm() / size):.2f} beside")


def repeat(bench: Any, models: dict) -> None:
    """Calls of changing numbers of tokens, most without a wait of the host between them, while each rank in turn is late.

    Each result has the bits of the first one of its number of tokens, and that is right beside the reference. So has the result
    of a call for which a reset world makes its buffers again.
    """
    calls, resets = (2000, 40) if bench.gpu else (20, 2)
    for name in bench.models if bench.gpu else ("tiny", ):
        layers = Layers(bench.group, *models.get(name, (4 * bench.group.size, 2, 32, 16)))
        counts = bench.tokens or ((128, 1024, 777, 8192) if bench.gpu else (3, 9, 264))  # 257 rows and more are not self-flagged
        with torch.no_grad():
            bench.attempt(f"repeat {name}", lambda layers=layers, counts=counts: _same(bench, layers, counts, calls, resets))
        bench.say(f"repeat {name}, 64 experts at most: {calls} calls and {resets} resets, {' '.join(map(str, counts))} tokens")


def _same(bench: Any, layers: Layers, counts: list, calls: int, resets: int) -> None:
    inputs = {count: layers.tokens(count) for count in counts}
    first = {count: layers.moe(x) for count, x in inputs.items()}
    for count, x in inputs.items():
        layers.reference(x).check(first[count], f"the first call of {count} tokens, on rank {bench.group.rank}")
    wrong = {count: torch.zeros(count, dtype=torch.int32, device=x.device) for count, x in inputs.items()}  # calls, of each token

    def call(number: int) -> None:
        count = counts[(number * 7 + number // 11 + number // 101) % len(counts)]
        _late(bench, number)
        wrong[count] += (layers.moe(inputs[count]) != first[count]).any(1)

    for number in range(calls):
        call(number)
        if number % 50 == 49:
            triton_dist.synchronize()
    for number in range(resets):
        triton_dist.reset()
        for other in range(3):
            call(3 * number + other)
    triton_dist.synchronize()
    found = [f"{int(of.max())} calls of {count} tokens on rank {bench.group.rank}: other bits than in the first one in tokens "
             f"{of.nonzero()[:, 0][:200].tolist()}" for count, of in wrong.items() if of.any()]
    if found:
        raise AssertionError(" | ".join(found))


def _late(bench: Any, number: int) -> None:
    """Before every call but each fourth one, one rank waits: its GPU, its host, or both."""
    if number % 4 == 3 or number // 2 % bench.group.size != bench.group.rank:
        return
    if bench.gpu and number % 4 != 1:
        torch.cuda._sleep(_SLEEP_CYCLES * (1 + number % 7))
    if number % 4:
        time.sleep(0.001 * (number % 5))

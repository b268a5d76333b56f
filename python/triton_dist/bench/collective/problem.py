# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is timed: a collective of one size, and the ways to compute it."""
from types import SimpleNamespace
from typing import Any, Callable

import torch

from triton_dist import ops
from triton_dist.bench import symmetric
from triton_dist.bench.collective import outside
from triton_dist.bench.collective.sizes import COMMANDS
from triton_dist.ops.all_reduce.unfused import all_reduce_unfused
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device
from triton_dist.testing import random_tensor


class Candidate:
    """A way to compute: `checked` gives the result, `timed` may leave out what only the result needs."""

    def __init__(self, checked: Callable[[int], Any], timed: Callable[[int], Any] | None = None):
        self.checked, self.timed = checked, timed or checked


class Problem:
    """One collective. `nbytes` is the size of the larger of x and out, as nccl-tests counts it, rounded down to whole rows.

    x and out have a tensor each, of two dimensions; a call takes 0, the number of the set.
    """

    sets, beside = 1, {}                    # ways that are timed and compared with nothing

    def __init__(self, command: str, nbytes: int, dtype: torch.dtype, group: Group):
        self.command, self.op, self.dtype, self.group = command, COMMANDS[command], dtype, group
        self.count = max(group.size, nbytes // dtype.itemsize // group.size * group.size)
        self.nbytes, row = self.count * dtype.itemsize, self.count // group.size
        rows_in = 1 if command in ("all_gather", "all_reduce") else group.size
        rows_out = 1 if command in ("reduce_scatter", "all_reduce") else group.size
        self._row = self.count if command == "all_reduce" else row
        self.x = random_tensor(rows_in, self._row, dtype=dtype, seed=group.rank)
        self.out = [torch.empty(rows_out, self._row, dtype=dtype, device=device())]
        self.shape = SimpleNamespace(k=group.size)          # terms of a sum

    @property
    def bus_factor(self) -> float:
        """Bytes that cross a rank's link over the size: what makes bus bandwidths of different collectives comparable."""
        return (2 if self.op == "all_reduce" else 1) * (self.group.size - 1) / self.group.size

    def about(self) -> dict:
        """What a row says of the problem."""
        return {"bytes": self.nbytes, "count": self.count}

    def rates(self, us: float) -> dict:
        """Bandwidths as nccl-tests has them, GB/s."""
        algbw = self.nbytes / us / 1e3
        return {"algbw": algbw, "busbw": algbw * self.bus_factor}

    def chosen(self) -> str:
        """The method behind auto."""
        return ops.explain(self.op, self.group.size, self.count // self.group.size, group=self.group, dtype=self.dtype).chosen

    def repeats(self, method: str) -> bool:
        """Whether a method gives the same bits for the same inputs."""
        return method != "unfused" and (method != "auto" or self.chosen() != "unfused")

    def ours(self, method: str) -> "Candidate":
        """The op by one of its methods."""
        return Candidate(lambda s: getattr(ops, self.op)(self.x, group=self.group, out=self.out[s], method=method))

    def peer(self, name: str, group_name: str) -> "Candidate":
        """Other means: the group's own collective, or torch's ops on a symmetric tensor, which it knows as `group_name`."""
        if name == "nccl":
            return self._library()
        x, reduce = symmetric.symmetric_tensor(self.count, self.dtype, group_name), symmetric.all_reduce(name, group_name)
        return Candidate(lambda s: reduce(x.copy_(self.x[0])).view(self.out[s].shape), lambda s: reduce(x))

    def outside(self, make: type) -> "Candidate":
        """A peer of another project (outside.py)."""
        peer = make(*outside.matrix(self.count), self.dtype)

        def checked(s: int) -> torch.Tensor:
            peer.x.copy_(self.x.view(peer.x.shape))
            return outside.summed(peer, self.out[s])
        return Candidate(checked, lambda s: outside.summed(peer, self.out[s]))

    def _library(self) -> "Candidate":
        if self.op == "all_reduce":
            return Candidate(lambda s: all_reduce_unfused(self.x, self.group, self.out[s]),
                             lambda s: self.group.all_reduce_tensor(self.out[s]))
        collective = {"all_gather": self.group.all_gather_tensor, "reduce_scatter": self.group.reduce_scatter_tensor,
                      "all_to_all_single": self.group.all_to_all_tensor}[self.op]
        out, x = self.out[0].view(-1), self.x.view(-1)

        def call(s: int) -> torch.Tensor:
            collective(out, x)
            return self.out[s]
        return Candidate(call)

    def reference(self) -> torch.Tensor:
        """In float64, or exactly where nothing is summed."""
        every = self.x.new_empty((self.group.size * self.x.shape[0], self.x.shape[1]))
        self.group.all_gather_tensor(every, self.x)
        wide, me = every.double().view(self.group.size, *self.x.shape), self.group.rank
        if self.op == "all_reduce":
            return wide.sum(0)
        if self.op == "reduce_scatter":
            return wide[:, me].sum(0, keepdim=True)
        return wide[:, 0] if self.op == "all_gather" else wide[:, me]

    def roundings(self) -> int:
        """NCCL may round each partial sum."""
        return self.group.size

    def __str__(self) -> str:
        return f"{self.command} of {self.nbytes} bytes"

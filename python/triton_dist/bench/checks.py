# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Whether a candidate may be timed: its result against float64, and our methods bit by bit against themselves."""
import sys
from typing import Any, Callable

import torch

from triton_dist.bench.problems import Problem
from triton_dist.runtime.errors import HangError, InvalidArgument
from triton_dist.runtime.streams import synchronize
from triton_dist.testing import assert_matches

Call = Callable[[int], Any]
_BLOCK = 1 << 26                            # elements compared at a time


class Checker:
    """Checks candidates of one problem. Its methods are collective: what fails on one rank counts as failed on all."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.errors: dict = {}              # candidate: ||out - ref|| / ||ref||, the largest of the ranks
        self.skipped: dict = {}             # candidate: why it is not timed, or not to be believed
        self.failed: list = []              # of these, what ran and went wrong
        self._reference = problem.reference()
        self._first: dict = {}              # our method: its first result

    def make(self, name: str, make: Callable[[], None]) -> bool:
        """Makes a candidate. Where that fails on some ranks only, the others do not wait for them in its first call."""
        return self._agree(name, make)

    def admit(self, name: str, call: Call, ours: bool = False) -> bool:
        """Runs `call` on set 0 and compares with float64; for our methods, runs it again and compares the bits."""
        def check() -> float:
            out = self._run(call).clone()
            again = self._run(call) if ours else None   # before anything is judged: all ranks must make the same calls
            error = self._compare(out)
            if ours:
                self._first[name] = out
                _same_bits(again, out)
            return error
        return self._agree(name, check)

    def repeat(self, name: str, call: Call) -> bool:
        """Whether a method of ours that was timed still gives the bits of its first call."""
        return self._agree(name, lambda: _same_bits(self._run(call), self._first[name]))

    def forget_reference(self) -> None:
        """Frees the float64 result: large shapes need the memory."""
        self._reference = None

    def _compare(self, out: torch.Tensor) -> float:
        """Block by block: in float64 a large result fits on the device only a few times."""
        expected, found = list(self._reference.shape), list(out.shape)
        if found != expected:
            raise AssertionError(f"shape: expected {expected}, found {found}")
        rows = max(1, _BLOCK // max(1, out.shape[1]))
        return max((assert_matches(mine, reference, k=self.problem.shape.k, roundings=self.problem.roundings())
                    for mine, reference in zip(out.split(rows), self._reference.split(rows))), default=0.0)

    def _run(self, call: Call) -> torch.Tensor:
        self.problem.out[0].fill_(float("nan"))
        result = call(0)
        synchronize()
        return result

    def _agree(self, name: str, check: Callable[[], float | None]) -> bool:
        error, reason, broken = None, None, False
        try:
            error = check()
        except HangError:
            raise                           # the device is lost
        except Exception as caught:         # whatever another library raises
            reason = f"{type(caught).__name__}: {next(iter(str(caught).strip().splitlines()), '')}"
            broken = not isinstance(caught, (InvalidArgument, NotImplementedError, ImportError))
            if broken:                      # said at once: after a device error the collective below may not return
                where = f"rank {self.problem.group.rank}: {name} at {self.problem.shape}"
                print(f"{where}: {reason}", file=sys.stderr, flush=True)
        everyone = self.problem.group.all_gather_object((error, reason, broken))
        bad = next(((rank, why) for rank, (_, why, _) in enumerate(everyone) if why is not None), None)
        if bad is not None:
            self.skipped[name] = f"rank {bad[0]}: {bad[1]}"
            self.failed += [name] if any(broken for _, _, broken in everyone) else []
        elif error is not None:
            self.errors[name] = max(error for error, _, _ in everyone)
        return bad is None


def _same_bits(found: torch.Tensor, first: torch.Tensor) -> None:
    different = int((found != first).sum())
    if different:
        raise AssertionError(f"{different} elements differ from the first call's with the same inputs")

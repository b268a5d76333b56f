# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Runs tests of the emulator on GPUs: what a virtual rank of `run_ranks` would do, each process of this world does.

    bash launch.sh --nproc_per_node 2 tests/on_gpus.py                       # all of FILES
    bash launch.sh --nproc_per_node 2 tests/on_gpus.py tests/emulator/test_deep_ep.py -k low_latency

Arguments are pytest's. Every process collects and runs the same tests in the same order, and a test passes only if it passes on
all ranks. Tensors that a test makes without a device are made on the GPU. A test for another number of ranks is skipped, and so
is one that looks into the emulator (its nodes, its observers, its order of events). A rank that waits for one that has failed
gives up after TRITON_DIST_WAIT_TIMEOUT seconds (20 unless set), and the next test begins in a world that was reset.
"""
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Generator, Iterator
from unittest import mock

os.environ.setdefault("TRITON_DIST_WAIT_TIMEOUT", "20")

import pytest  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import triton_dist  # noqa: E402
from triton_dist.backends import emulator  # noqa: E402
from triton_dist.backends.emulator.worlds import virtual  # noqa: E402
from triton_dist.runtime.errors import describe  # noqa: E402
from triton_dist.runtime.groups import resolve  # noqa: E402

TESTS = Path(__file__).parent
FILES = [f"emulator/test_{name}.py" for name in (
    "deep_ep", "deep_ep_elastic", "experts_split", "all_to_all_vdev_2d", "engines", "compiled_in_graphs", "autograd",
    "layer_limits")]
# One sets a variable that is read when a world begins, and the other makes the emulator's launches fail.
NOT_HERE = ("tests/emulator/test_all_to_all_vdev_2d.py::test_explain_and_debug_mode",
            "tests/emulator/test_experts_split.py::"
            "test_a_send_that_fails_inside_a_capture_on_one_rank_alone_harms_no_later_call")
_SLEEP_CYCLES = 1_000_000  # of a GPU's clock: half a millisecond
_TOLD_BYTES = 4000  # of what another rank than 0 has to say


class Ranks:
    """A pytest plugin: the processes of this world are the ranks of each test."""

    def __init__(self) -> None:
        self.world = resolve()
        self.control = dist.new_group(backend="gloo")  # works while a GPU waits
        self.ran = False

    def run(self, fn: Callable, world_size: int, *args: Any, groups: Any = None, mode: str = "", seed: int = 0,
            **options: Any) -> list:
        """In place of run_ranks."""
        looks_inside = options.keys() & {"heap", "nodes", "observer", "num_sms"}
        if world_size != self.world.size or looks_inside:
            if self.ran:
                return [None] * world_size
            pytest.skip(f"for {world_size} ranks" if world_size != self.world.size else f"with {', '.join(looks_inside)}")
        self.ran = True
        if groups:
            made = [dist.new_group(list(ranks)) for ranks in groups]
            options["group"] = next((group for group, ranks in zip(made, groups) if self.world.rank in ranks),
                                    dist.GroupMember.NON_GROUP_MEMBER)
        result, failed = None, None
        try:
            result = fn(*args, **options)
            triton_dist.synchronize()
        except BaseException as error:
            failed = error
        found = self.gathered((describe(failed) if failed else "", result.cpu() if isinstance(result, torch.Tensor) else result))
        if any(text for text, _ in found):
            triton_dist.reset()
        if failed:
            raise failed
        self.compare([text for text, _ in found])
        return [result for _, result in found]

    def gathered(self, value: Any) -> list:
        values = [None] * self.world.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def compare(self, texts: list[str]) -> None:
        """A test that fails on one rank fails on all."""
        wrong = {rank: text for rank, text in enumerate(texts) if text}
        if wrong:
            raise AssertionError(f"failed on other ranks: {wrong}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Says at once why a test failed: what pytest prints at its end is lost where a run is cut off."""
        if report.failed:
            print(f"\n{report.longreprtext[-_TOLD_BYTES:]}", flush=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: Any) -> Generator[None, object, object]:
        self.ran = False
        try:
            result = yield
        except BaseException as error:
            self.gathered(describe(error))
            raise
        self.compare(self.gathered(""))
        return result


class OnGpu(torch.Generator):
    """Random numbers on the GPU, where a test names no device."""

    def __new__(cls, device: Any = None) -> "OnGpu":
        return super().__new__(cls, device or triton_dist.device())


@contextmanager
def captured(replays: bool) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of what is called inside, which is replayed at once if `replays`."""
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        yield made
    if replays:
        made.replay()
        _kept.append(made)


_kept: list = []


def waits(turns: int = 0) -> None:
    """This rank is late: on its GPU."""
    torch.cuda._sleep(_SLEEP_CYCLES)


def main() -> int:
    triton_dist.initialize_distributed()
    sys.path[:0] = [str(TESTS / "emulator"), str(TESTS)]
    ranks = Ranks()
    with mock.patch.object(virtual, "run_ranks", ranks.run), mock.patch.object(emulator, "run_ranks", ranks.run):
        import scenarios
        scenarios.run_ranks = ranks.run
        if triton_dist.device().type == "cuda":
            scenarios.graph, scenarios.capturing = (lambda: captured(False)), (lambda: captured(True))
            scenarios.dawdle = waits
            scenarios.captures_by_rank = pytest.fixture(lambda: None)
            torch.Generator = OnGpu  # type: ignore[misc]
            torch.set_default_device(triton_dist.device())
        own = [argument for argument in sys.argv[1:] if ".py" in argument]
        options = ["-p", "no:cacheprovider", "-m", "not full", *[f"--deselect={test}" for test in NOT_HERE]]
        options += [*sys.argv[1:], *([] if own else [str(TESTS / f) for f in FILES])]
        with tempfile.TemporaryFile() as told:
            if ranks.world.rank:
                os.dup2(told.fileno(), sys.stdout.fileno())  # one rank tells of all
            code = pytest.main(["-vv", "--tb=short", "--show-capture=no", *options], plugins=[ranks])
            if ranks.world.rank and code:
                told.seek(max(0, told.seek(0, os.SEEK_END) - _TOLD_BYTES))
                print(f"rank {ranks.world.rank}:\n{told.read().decode(errors='replace')}", file=sys.stderr, flush=True)
    torch.set_default_device(None)
    triton_dist.finalize_distributed()
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

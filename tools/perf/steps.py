# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a host with several GPUs is checked and measured by: steps, the most valuable first, and which of them fit into a time."""
import importlib.util
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

from tools.perf import bars
from tools.perf.bar import ShapeBar
from tools.perf.by_size import GemmArBar, SizeBar

ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "python/triton_dist"
_DEVICE = tuple(f"{_PACKAGE}/{path}" for path in (
    "language", "cores", "tiles", "ops/device", "ops/exchange", "backends/gpu/common.ll", "backends/gpu/device_runtime.py",
    "backends/nvidia/device.ll", "backends/nvidia/device_target.py"))
_ALL = (f"{_PACKAGE}/ops", *_DEVICE)
_FOLDERS = {"all_to_all": "all_to_all_single", "dispatch": "calls"}     # of an op's sources, where it has another name
_START = 15                                     # seconds until ranks have met and the first kernels are compiled
_SECONDS = {"small": 2.0, ShapeBar: 10.0, GemmArBar: 1.5, SizeBar: 0.6}        # on four GPUs, for each problem of a set or kind
_FIRST = ("all_reduce", "ag_gemm large", "gemm_rs large", "gemm_ar", "dispatch")
_TAKE_PEERS = {"all_reduce", "all_reduce_rmsnorm", "gemm_ar"}


@dataclass(frozen=True)
class Step:
    """One launch.

    words: a script and its arguments, or a command of triton-dist. seconds: about how long it takes. sources: files and folders,
    from the repository's root; what the step found is old once one of them has changed. variables: of its environment.
    """
    name: str
    words: tuple
    seconds: float
    sources: tuple = _ALL
    variables: tuple = ()


def steps(world: int, out: Path, known: Path | None = None, peers: Path | None = None,
          fresh: Callable[[dict, tuple], bool] = lambda row, sources: True) -> list[Step]:
    """All steps on `world` GPUs, the most valuable first.

    Args:
        out: folder for new results.
        known: folder of results. Problems of the bars with a row there that is fresh(row, sources) are left out. None: none are.
        peers: file for --peer-path.
    """
    measured = dict(_measured(world, out, known, fresh))
    found = [Step("stress", ("tests/nvidia/stress.py", "--calls", "2000", "--wrap", "--log-file", f"{out}/stress.txt"), 140,
                  variables=(("TRITON_DIST_WAIT_TIMEOUT", "20"),)),
             *[measured.pop(name) for name in _FIRST if name in measured],
             _bench("all_reduce_rmsnorm", out, 30, "--graph"),
             _bench("model", out, 60, "--arch", "llama3-8b", "--rows", "8192", name="model 8B prefill"),
             _bench("model", out, 60, "--arch", "llama3-70b", "--rows", "8192", name="model 70B prefill"),
             _bench("model", out, 70, "--arch", "llama3-8b", "--phase", "decode", "--graph", name="model 8B decode"),
             *[Step(f"moe {part}", ("tests/nvidia/moe.py", "--parts", part, "--log-file", f"{out}/moe_{part}.json"), seconds)
               for part, seconds in (("exchange", 60), ("layer", 70))],
             *measured.values(),
             Step("tune", ("tune", "ag_gemm", "gemm_rs", "--shapes", "8B", "70B", "--seconds", "90", "--out",
                           f"{out}/tuned_{world}.json"), 110)]
    if world % 2 == 0 and world > 2 and importlib.util.find_spec("nvshmem"):
        over = ("TRITON_DIST_HEAP", "nvshmem"), ("TRITON_DIST_NODES", f"2x{world // 2}")
        found += [Step(f"{Path(script).stem} 2x{world // 2}", (script,), 90, variables=over)
                  for script in ("tests/nvidia/over_nodes.py", "benchmarks/nodes.py")]
    return found if peers is None else [_beside(peers, step) for step in found]


def planned(found: Iterable[Step], done: dict, seconds: float) -> list[Step]:
    """The steps that fit into the time, in their order. done: {name: exit status}: of these the failed ones are last."""
    taken = []
    for step in sorted((step for step in found if done.get(step.name) != 0), key=lambda step: step.name in done):
        if step.seconds <= seconds:
            taken.append(step)
            seconds -= step.seconds
    return taken


def unchanged(commit: Any, sources: tuple, root: Path = ROOT) -> bool:
    """Whether no source has changed since `commit`. False where git does not know."""
    if not commit or str(commit).endswith("-dirty"):
        return False
    try:
        return subprocess.run(["git", "-C", str(root), "diff", "--quiet", str(commit), "--", *sources], capture_output=True,
                              timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _measured(world: int, out: Path, known: Path | None, fresh: Callable) -> Iterator[tuple[str, Step]]:
    """(name, step) for the problems that bars are about. A bar need not hold on so many GPUs for its problems to be measured."""
    findings = () if known is None else bars.judge(known, everywhere=True)
    rows = {found.bar: found.rows for found in findings if found.world == world}
    sets: dict = {}
    taken: set = set()                              # some problems are in two sets
    for bar in bars.BARS:
        sets.setdefault(f"{bar.op} {bar.problems}" if isinstance(bar, ShapeBar) else bar.op, []).append(bar)
    for name, those in sets.items():
        bar = those[0]
        sources = (f"{_PACKAGE}/ops/{_FOLDERS.get(bar.op, bar.op)}", *_DEVICE)
        needed: dict = {}
        for one in those:
            there = {one.cell(row) for row in rows.get(one, ()) if fresh(row, sources)}
            needed.update({cell: problem for cell, problem in one.needed(world).items()
                           if cell not in there and (one.op, cell) not in taken})
        taken.update((bar.op, cell) for cell in needed)
        if needed:
            each = _SECONDS.get(bar.problems) or _SECONDS.get(type(bar), 3.0)
            seconds = _START + len(needed) * each * max(1, world / 4)
            yield name, _bench(bar.op, out, round(seconds), *bar.option.split(), *needed.values(), name=name, sources=sources)


def _bench(op: str, out: Path, seconds: float, *words: str, name: str = "", sources: tuple = _ALL) -> Step:
    return Step(name or op, ("bench", op, *words, "--out", str(out)), seconds, sources)


def _beside(peers: Path, step: Step) -> Step:
    """The step with other projects' kernels in the same rounds, where its benchmark takes them."""
    if step.words[0] != "bench" or step.words[1] not in _TAKE_PEERS:
        return step
    return replace(step, words=(*step.words, "--peer-path", str(peers)), seconds=step.seconds + 10)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Runs a host script on a virtual world under check, once a schedule."""
import gc
import inspect
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Sequence

from triton_dist.backends.emulator.memory import gluon_smem, memory
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.checker import sites, ties
from triton_dist.checker.detector import Detector
from triton_dist.checker.faults import Faults, Found
from triton_dist.checker.global_memory import CheckedMemory
from triton_dist.checker.host_memory import HostOperations
from triton_dist.checker.report import Report
from triton_dist.checker.schedules import EXHAUSTIVE, Schedule, parse, schedules as every
from triton_dist.checker.shared import CheckedSharedMemory
from triton_dist.checker.trouble import note_error


_callers = False         # whether the caller has been found to freeze objects: to count them takes tens of milliseconds


@contextmanager
def few_collections() -> Iterator[None]:
    """What lives before the block is not looked at by the collector inside: a run makes many small objects, all its own.

    What the caller has frozen stays so. After the block nothing that the checker remembers keeps a kernel alive."""
    global _callers
    _callers = _callers or gc.get_freeze_count() > 0
    if not _callers:
        gc.freeze()
    try:
        yield
    finally:
        if not _callers:
            gc.unfreeze()
        sites.forget()
        ties.forget()


@contextmanager
def _under_check(detector: Detector) -> Iterator[CheckedMemory]:
    """Global and shared memory are the checker's inside the block."""
    plain, plain_shared, checked = memory.active(), gluon_smem.active(), CheckedMemory(detector)
    memory.activate(checked)
    gluon_smem.activate(CheckedSharedMemory(detector))
    try:
        yield checked
    finally:
        memory.activate(plain)
        gluon_smem.activate(plain_shared)


def run_schedule(fn: Callable, schedule: Schedule, faults: Faults, report: Report, detector: Optional[Callable] = None,
                 **options: Any) -> None:
    """One run of fn() on all ranks; what it finds goes to `faults`, its figures to `report`. Options are those of run_ranks.

    detector: makes another Detector.
    """
    faults.token = schedule.token
    detector = (detector or Detector)(faults)
    try:
        with _under_check(detector) as checked:
            def script() -> Any:
                with HostOperations(checked):
                    return fn()
            detector.schedule = schedule
            run_ranks(script, schedule.world_size, seed=schedule.seed, num_sms=schedule.num_sms, observer=detector,
                      mode="random" if schedule.mode == EXHAUSTIVE else schedule.mode, **options)
            detector.ended()
    except Found:
        pass
    except KeyboardInterrupt:
        raise
    except BaseException as error:           # SystemExit of a script included
        note_error(faults, error)
    finally:
        report.schedules += 1
        report.programs += detector.programs
        report.accesses += detector.accesses
        report.links.update(detector.links)
        report.formula.update(detector.formula)


def check_kernel(fn: Callable, world_size: int = 4, schedules: int = 20, seed: int = 0, modes: Optional[Sequence[str]] = None,
                 num_sms: int = 8, keep_going: bool = False, nodes: int = 0, replay: Optional[str] = None,
                 detector: Optional[Callable] = None) -> Report:
    """Checks the kernels of a host script on emulated ranks. Runs it many times, each time in another order of programs.

    Args:
        fn: the script of a rank, called as fn(rank), or as fn() if it takes no argument. It creates symmetric tensors and
            launches kernels, as a script under launch.sh does.
        world_size: number of ranks.
        schedules: number of runs.
        seed: of the first run.
        modes: names of the orders to use in turn: "eager", "random", "late", "skew", "priority", "pct", "round-robin" or
            "exhaustive". None: all except "exhaustive".
        num_sms: programs that can be resident at a time on a rank.
        keep_going: True goes on after a fault and lists all faults. Otherwise the first one ends the check.
        nodes: number of nodes of equal size that the ranks form. 0: as TRITON_DIST_NODES says, or one.
        replay: the token of a report, such as "eager.s0.w4.m8". Only that schedule runs, with the token's ranks and SMs.
        detector: a subclass of checker.detector.Detector with rules of your own, or a function that makes one from Faults.

    Returns:
        A Report. Faults of kernels and errors of the script are in it, and are not raised.

    Example:
        report = check_kernel(host, world_size=4, schedules=20)
        assert report.clean, str(report)
    """
    report, start = Report(), time.perf_counter()
    faults = Faults(keep_going, found=report.faults)
    chosen = [parse(replay)] if replay is not None else every(schedules, seed, world_size, num_sms, modes)

    def script() -> Any:
        from triton_dist.runtime.state import state
        return fn(state().world.rank) if inspect.signature(fn).parameters else fn()

    with few_collections():
        for schedule in chosen:
            run_schedule(script, schedule, faults, report, detector, nodes=nodes)
            if report.faults and not keep_going:
                break
    faults.settle()
    report.seconds = time.perf_counter() - start
    return report

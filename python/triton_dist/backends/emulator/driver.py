# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A Triton driver and compiler for the target 'emulator': plain triton.jit kernels and autotuners run in the emulator.

Triton's own front end still checks and specialises each kernel, down to its first IR; in place of machine code comes a
launcher that hands the Python function and its arguments to the engine. Other targets compile as ever.
"""
import time
from types import ModuleType
from typing import Any, Callable, Optional, Sequence

import torch
from triton import runtime

from triton_dist.compat.compiler import Backend, DriverBase, GPUTarget, backends
from triton_dist.compat.nvidia import CUDABackend

from triton_dist.backends.emulator import device_interface, frontend
from triton_dist.backends.emulator.backend import machine
from triton_dist.backends.emulator.launching import perform
from triton_dist.language import shmem_abi, threads_abi
from triton_dist.language._call import LIBRARY, STAND_IN
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature

NAME = "emulator"
_LIMITS = dict(max_shared_mem=232448, max_num_regs=65536, warpSize=32, sm_clock_rate=1, mem_clock_rate=1,
               mem_bus_width=1)
# How a kernel's first IR shows that it waits for the kernel ahead: our primitive, and Triton's.
# Their names begin the names of all device functions of theirs.
_LIBRARIES = (LIBRARY, shmem_abi.LIBRARY, threads_abi.LIBRARY)
_GDC_WAITS = ('"tdist_gdc_wait"', "griddepcontrol.wait")


class EmulatorCompiler(CUDABackend):
    """The options and the front end of a Hopper GPU, and no code generator."""

    def __init__(self, target: GPUTarget):
        super().__init__(target)
        self.binary_ext = NAME

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == NAME

    @staticmethod
    def parse_attr(desc: str) -> list:
        """No attributes: only code generators use alignment, so one trace serves all addresses and divisors."""
        return []

    def parse_options(self, options: dict) -> Any:
        """Every kernel is traced as if the device runtime were linked; the launcher refuses one that needs it and lacks it.

        Without `sanitize_overflow` the front end saves a sixth of its time. It would make a 64-bit twin of each integer
        operation, for an assertion. Here the IR does not run, so there is nothing to assert.
        """
        given = dict(options.get("extern_libs") or ())
        return super().parse_options({"sanitize_overflow": False, **options,
                                      "extern_libs": {**dict.fromkeys(_LIBRARIES, STAND_IN), **given}})

    def hash(self) -> str:
        return f"triton_dist-{NAME}-2"

    def add_stages(self, stages: dict, options: Any, language: Any) -> None:
        gluon = getattr(language, "name", "TRITON") != "TRITON"

        def check(module: Any, metadata: dict) -> str:
            if isinstance(module, str):      # the second stage of Gluon's front end in 3.9
                return module
            text = str(module)
            metadata.update(name=module.get_entry_func_name(), shared=0, tmem_size=0,
                            needs_runtime=any(f'"{library}_' in text for library in _LIBRARIES),
                            waits_its_turn=any(call in text for call in _GDC_WAITS))
            return text                      # Triton would write the same to its cache
        for first in ("glir", "ttgir") if gluon else ("ttir", ):      # what Gluon's front end makes: 3.9, 3.6
            stages[first] = check
        stages[NAME] = lambda module, metadata: b"emulated"


class _Utils:
    """What Triton asks of a driver's native half."""

    def get_device_properties(self, device: int) -> dict:
        return dict(_LIMITS, multiprocessor_count=machine().scheduler.num_sms)

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple:
        return None, name, 0, 0, 1024                # module, function, registers, spills, threads

    def unload_module(self, module: Any) -> None:
        pass


class EmulatorDriver(DriverBase):
    """Triton's active driver while the emulator is the backend."""

    def __init__(self) -> None:
        self.utils, self.launcher_cls = _Utils(), _launcher

    @classmethod
    def is_active(cls) -> bool:
        return False                                 # never found by itself, only set

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(NAME, 90, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise UnsupportedFeature("the emulator has no C++ launcher: compile for a GPU target instead")

    def get_device_interface(self) -> ModuleType:
        return device_interface

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1, dtype=torch.int32)     # there is no cache to flush

    def clear_cache(self, cache: torch.Tensor) -> None:
        pass

    def get_benchmarker(self) -> Callable:
        return _wall_time


def _wall_time(kernel_call: Callable, *, quantiles: Optional[Sequence[float]] = None, **_: Any) -> Any:
    """Milliseconds of one run: enough to choose a configuration that works, and all an emulator can say of speed."""
    start = time.perf_counter()
    kernel_call()
    elapsed = (time.perf_counter() - start) * 1e3
    return elapsed if quantiles is None else [elapsed] * len(quantiles)


def _launcher(source: Any, metadata: Any) -> Callable:
    """What a compiled kernel calls to run."""
    kernel = getattr(source, "fn", None)
    if kernel is None:
        raise UnsupportedFeature("the emulator runs kernels from their Python source, found one loaded from IR")

    def run(x: int, y: int, z: int, stream: Any, function: Any, packed: Any, described: Any, enter: Any, leave: Any,
            *args: Any) -> None:
        options = dict(num_warps=metadata.num_warps, num_ctas=metadata.num_ctas)
        if metadata.needs_runtime:
            raise InvalidArgument(f"{kernel.__name__} calls triton_dist.language, and plain triton.jit does not link the device "
                                  "runtime: decorate the kernel with @triton_dist.jit instead of @triton.jit")
        device = machine().device()                  # starts the engine where nothing has yet
        bound = frontend.bind(kernel, (x, y, z), args, options)
        bound.overlaps |= metadata.waits_its_turn
        perform(device, bound, described, enter, leave)
    return run


def install() -> None:
    """Makes the emulator Triton's active driver."""
    if NAME not in backends:
        backends[NAME] = Backend(EmulatorCompiler, EmulatorDriver)
    runtime.driver.set_active(EmulatorDriver())

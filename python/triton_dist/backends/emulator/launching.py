# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""From a call of a kernel to its launch on an emulated stream, with Triton's hooks around it."""
import math
from types import SimpleNamespace
from typing import Any

from triton import knobs
from triton_dist.compat.compiler import LazyDict

from triton_dist.backends.emulator import front_end_36, frontend
from triton_dist.backends.emulator.engine.streams import Device
from triton_dist.language import shmem_abi, threads_abi
from triton_dist.language._call import LIBRARY, STAND_IN
from triton_dist.runtime.errors import InvalidArgument

_LIBRARIES = (LIBRARY, shmem_abi.LIBRARY, threads_abi.LIBRARY)


def launch(device: Device, kernel: Any, grid: Any, args: tuple, kwargs: dict) -> None:
    """Binds the arguments, runs the kernel's and Triton's hooks, and launches on the current stream."""
    for hook in getattr(kernel, "pre_run_hooks", ()):
        hook(*args, **kwargs)
    bound = frontend.bind(kernel, grid, args, kwargs)
    traced = trace(kernel, args, kwargs)
    bound.overlaps |= getattr(getattr(traced, "metadata", None), "waits_its_turn", False)
    programs, most = math.prod(bound.grid), device.scheduler.num_sms
    if bound.cooperative and programs > most:
        raise InvalidArgument(f"{bound.name}: a cooperative launch of {programs} programs, but only {most} can be resident at a "
                              "time; launch at most backend().num_sms()")
    metadata = LazyDict({"name": bound.name, "function": None, "stream": device.current})
    describe = getattr(kernel, "launch_metadata", None)
    if describe is not None:
        named = kernel.signature.bind(*args, **{k: v for k, v in kwargs.items() if k in kernel.arg_names})
        named.apply_defaults()
        shape = SimpleNamespace(name=bound.name, num_warps=bound.num_warps, num_ctas=bound.num_ctas, shared=0)
        metadata.add(describe, (bound.grid, shape, dict(named.arguments)))
    perform(device, bound, metadata, knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)


def trace(kernel: Any, args: tuple, kwargs: dict) -> Any:
    """Shows a kernel to Triton's own front end, once a specialisation: what a GPU would refuse is refused here too."""
    if knobs.runtime.interpret:              # its functions are not what that front end takes
        return None
    hooks, kernel.pre_run_hooks = kernel.pre_run_hooks, []
    try:                                     # no library is linked; the table of its functions stands in for it
        return front_end_36.show(lambda: kernel.run_compiled(args, kwargs, None, True, dict.fromkeys(_LIBRARIES, STAND_IN)))
    finally:
        kernel.pre_run_hooks = hooks


def perform(device: Device, bound: Any, metadata: Any, enter: Any, leave: Any) -> None:
    """Launches between the two hooks (callables or None), which get `metadata`."""
    if enter is not None:
        enter(metadata)
    device.launch(bound)
    if leave is not None:
        leave(metadata)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The emulator as a backend of the runtime: a CPU that behaves like a machine of GPUs."""
import threading
from typing import Any, Callable, Sequence

import torch

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.actors import Waiting
from triton_dist.backends.emulator.engine.streams import Stream
from triton_dist.backends.emulator.launching import launch, trace
from triton_dist.backends.emulator.worlds import arena as arenas
from triton_dist.backends.emulator.worlds import process
from triton_dist.backends.emulator.worlds.machine import Machine
from triton_dist.backends.emulator.worlds.meeting import VirtualGroup
from triton_dist.runtime.backend import Backend
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.device import Arena, Transfer, copy_bytes, flag_address
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument
from triton_dist.runtime.stacks import script_line


def machine() -> Machine:
    """The machine that runs the caller: of the virtual world it is in, else of this process."""
    here = scheduler.active().machine if scheduler.is_active() else process.start()
    here.scheduler.enter_host()
    return here


def _core_tiles(dtype: torch.dtype, m: int) -> GemmConfig:
    """Small tiles of the Hopper core: emulated shapes are small, and roles and hand-overs are the same."""
    return GemmConfig(64, 64, 32, group_m=2, num_warps=8, num_stages=3)


class EmulatorBackend(Backend):
    """Every method acts for the calling rank, also where all ranks share one process."""

    name = "emulator"
    compares_calls = True
    default_heap_size = 1 << 30          # sparse: only pages that are touched cost memory

    # -- devices -------------------------------------------------------------------------------------------
    def device(self) -> torch.device:
        return torch.device("cpu")

    def check_join(self) -> None:
        if machine().states:                         # made before the process group, so that what its variables say is refused
            raise InvalidArgument("this rank has left its virtual world, which cannot be joined again; call run_ranks again")

    def set_device(self, local_rank: int | None) -> None:
        pass

    def enter_thread(self) -> None:
        machine()                                    # refuses a thread while another one runs kernels

    def num_sms(self) -> int:
        return machine().scheduler.num_sms

    def torch_backend(self) -> str:
        return "gloo"

    # -- streams -------------------------------------------------------------------------------------------
    def new_stream(self, priority: int = 0) -> Stream:
        return machine().device().new_stream(priority)

    def current_stream(self) -> Stream:
        return machine().device().current

    def use_stream(self, stream: Stream) -> Any:
        return machine().device().use(stream)

    def warms_up(self) -> bool:
        here = machine().device()
        return here.current is not here.default

    def before_torch(self) -> None:
        self.current_stream().synchronize()          # torch runs on the host, at once

    def synchronize(self) -> None:
        machine().device().synchronize()

    def is_capturing(self) -> bool:
        return False

    def no_shmem(self) -> str | None:
        return None

    # -- copy engine ---------------------------------------------------------------------------------------
    def has_stream_memory_ops(self) -> bool:
        return True

    def captures_pushes(self) -> bool:
        return True

    def push(self, source: torch.Tensor, transfers: Sequence[Transfer], value: int, stream: Stream) -> None:
        base = _address_of(source, "push source")
        for to, offset, nbytes, flag in transfers:
            stream.copy(to, base + offset, nbytes, keep=source)
            stream.write_value32(flag, value)

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream) -> None:
        to, source = _address_of(dst, "copy destination"), _address_of(src, "copy source")
        stream.copy(to, source, copy_bytes(dst, src))

    def write_value32(self, flags: torch.Tensor, index: int, value: int, stream: Stream) -> None:
        _address_of(flags, "flags")
        stream.write_value32(flag_address(flags, index), value)

    # -- kernels -------------------------------------------------------------------------------------------
    def launch(self, kernel: Any, grid: Any, args: tuple, kwargs: dict) -> None:
        launch(machine().device(), kernel, grid, args, kwargs)

    def compile(self, kernel: Any, grid: Any, args: tuple, kwargs: dict) -> Any:
        return trace(kernel, args, kwargs)

    def gemm_config(self, dtype: torch.dtype, m: int) -> GemmConfig:
        block_m = 16 if m <= 16 else 32 if m <= 32 else 64      # few big tiles: the cost is per operation
        return GemmConfig(block_m, 64, 64, group_m=4, num_warps=4, num_stages=3)

    def copies_boxes(self) -> bool:
        return True

    def core(self, op: str) -> Any:
        from triton_dist.cores.hopper.cores import cores
        return cores(_core_tiles, preferred=False).get(op)

    def set_context(self, context: Any) -> None:
        engine = machine().scheduler
        engine.set_context(context.rank, context)
        if context.wait_timeout_ns:
            engine.wait_timeout = context.wait_timeout_ns / 1e9

    def left_world(self, error: str | None = None) -> None:
        here = machine().scheduler
        if error is not None and isinstance(here, process.ProcessScheduler):
            here.left_by(error)

    # -- collectives of torch.distributed --------------------------------------------------------------------
    def blocking(self, call: Callable[[], Any]) -> None:
        # On a thread beside, so that side streams that peers wait for go on, and a hang is seen and told.
        errors: list = []
        inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()       # both belong to a thread

        def run() -> None:
            try:
                with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
                    call()
            except BaseException as error:       # raised again below, on the thread that asked
                errors.append(error)

        helper = threading.Thread(target=run, daemon=True)      # a daemon: a dead peer must not keep this process
        helper.start()
        machine().helpers = [*(other for other in machine().helpers if other.is_alive()), helper]
        machine().scheduler.run_until(lambda: not helper.is_alive(),
                                      Waiting("host", text="a collective of torch.distributed", site=script_line()))
        if errors:
            here = machine()
            differs = here.conflict(here.scheduler.current.rank)        # then a peer has gone on without this collective
            raise errors[0] if differs is None else CollectiveMismatch(differs) from errors[0]

    def is_in_collective(self) -> bool:
        return any(helper.is_alive() for helper in machine().helpers)

    def note_call(self, group: Any, number: int, what: Any, refused: bool) -> bool:
        return machine().note_call(group, number, what, refused)

    def note_withdrawn(self, group: Any, number: int, what: str) -> bool:
        here = machine()
        if here.states:                          # virtual ranks that fail alike would hear of each other's failure
            return True
        return here.note_call(group, number, what, True, withdrawn=True)

    # -- symmetric memory ----------------------------------------------------------------------------------
    def reserve_arena(self, nbytes: int, world: Any) -> Arena:
        here = machine()
        if not isinstance(world, VirtualGroup):
            here.adopt(world.rank)
            here.scheduler.join(world)
        return arenas.reserve(here, nbytes, world)


def _address_of(tensor: Any, what: str) -> int:
    """Address of a contiguous CPU tensor, whose memory the copy engine may touch from now on."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
        raise InvalidArgument(f"{what}: expected a tensor on triton_dist.device(), found {tensor!r}")
    if not tensor.is_contiguous():
        raise InvalidArgument(f"{what}: expected a contiguous tensor, found strides {tensor.stride()} for shape "
                              f"{tuple(tensor.shape)}")
    machine().memory.register(tensor, what)
    return tensor.data_ptr()

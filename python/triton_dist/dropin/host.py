# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The published host names: joining a world, symmetric tensors, barriers on a stream, output, random data, capabilities."""
import functools
import os
import random
import shutil
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import torch

import triton_dist
import triton_dist.language as dl
from triton_dist.compat.torch import cuda_sleep
from triton_dist.compat.triton import load
from triton_dist.dropin import stream_calls
from triton_dist.language.extra import libshmem_device
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state

NVSHMEM_SIGNAL_DTYPE = torch.int64
ROCSHMEM_SIGNAL_DTYPE = MORI_SHMEM_SIGNAL_DTYPE = torch.int64
_LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"


# -- the world ---------------------------------------------------------------------------------------------------------
def init_seed(seed: int = 0) -> None:
    """Seeds torch, numpy and random, and asks torch for deterministic algorithms."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(3 + seed)
    np.random.seed(3 + seed)
    random.seed(3 + seed)
    torch.backends.cuda.matmul.allow_tf32 = False


def initialize_distributed(seed: int | None = None, initialize_shmem: bool = True) -> Any:
    """Joins the world and seeds: by `seed`, or by the rank. Returns the group of all ranks."""
    group = triton_dist.initialize_distributed(initialize_shmem=initialize_shmem)
    init_seed(group.rank() if seed is None else seed)
    return group


def init_by_torch_process_group(pg: Any) -> None:
    """The heap and the context; the world is that of all processes, whatever the group."""
    triton_dist.initialize_distributed()


init_nvshmem_by_torch_process_group = init_rocshmem_by_torch_process_group = init_by_torch_process_group
init_mori_by_torch_process_group = init_by_torch_process_group


def finalize_distributed() -> None:
    """Leaves the world."""
    triton_dist.finalize_distributed()


def is_shmem_initialized() -> bool:
    """Whether there is a symmetric heap."""
    return state().heap is not None


def get_triton_dist_world() -> Any:
    """The group of all ranks; None before initialize_distributed."""
    if state().world is None:
        return None
    return torch.distributed.group.WORLD if torch.distributed.is_initialized() else state().world.held


def get_triton_dist_local_world_size() -> int:
    """Ranks on this host."""
    return int(os.environ.get(_LOCAL_WORLD_SIZE, 1))


# -- symmetric tensors -------------------------------------------------------------------------------------------------
def nvshmem_create_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Collective: a symmetric tensor, zeroed."""
    return triton_dist.create_symm_tensor(shape, dtype)


def nvshmem_create_tensors(shape: Sequence[int], dtype: torch.dtype, rank: int, local_world_size: int) -> list:
    """Collective: a symmetric tensor as every rank of this host has it, by local rank."""
    own = nvshmem_create_tensor(shape, dtype)
    first = rank // local_world_size * local_world_size
    return [own if peer == rank else triton_dist.peer_tensor(own, peer) for peer in range(first, first + local_world_size)]


def nvshmem_free_tensor_sync(tensor: torch.Tensor) -> None:
    """Collective: frees a symmetric tensor."""
    triton_dist.free_symm_tensor(tensor)


rocshmem_create_tensor = mori_shmem_create_tensor = nvshmem_create_tensor
rocshmem_create_tensors = mori_shmem_create_tensors = nvshmem_create_tensors
rocshmem_free_tensor_sync = mori_shmem_free_tensor_sync = nvshmem_free_tensor_sync


# -- barriers ----------------------------------------------------------------------------------------------------------
@triton_dist.jit
def _quiet_and_meet():
    libshmem_device.barrier_all_block()


@triton_dist.jit
def _meet():
    dl.barrier_all()


def nvshmem_barrier_all_on_stream(stream: Any = None) -> None:
    """Puts a barrier of all ranks on a stream: what was sent before it is there after it."""
    kernel = _quiet_and_meet if backend().no_shmem() is None else _meet
    with stream_calls.on(stream):
        kernel[(1,)]()


rocshmem_barrier_all_on_stream = mori_shmem_barrier_all_on_stream = nvshmem_barrier_all_on_stream


def barrier_async(pg: Any) -> None:
    """A barrier of the group, on the current stream."""
    pg.allreduce(torch.empty((1,), device=triton_dist.device(), dtype=torch.int32))


# -- output ------------------------------------------------------------------------------------------------------------
def dist_print(*args: Any, allowed_ranks: Any = (0,), prefix: bool = False, need_sync: bool = False, **kwargs: Any) -> None:
    """print on some ranks, one after another. allowed_ranks: ranks, or "all"; need_sync: with a barrier before each."""
    world = resolve() if state().world is not None else None
    rank, size = (world.rank, world.size) if world is not None else (0, 1)
    for allowed in range(size) if allowed_ranks == "all" else allowed_ranks:
        if need_sync and world is not None:
            world.barrier()
        if rank == allowed:
            print(*([f"[rank:{rank}]"] if prefix else []), *args, **{"flush": True, **kwargs})


# -- data --------------------------------------------------------------------------------------------------------------
def is_fp8_dtype(dtype: torch.dtype) -> bool:
    """Whether it is a floating type of one byte."""
    return dtype.itemsize == 1 and dtype.is_floating_point


def rand_tensor(shape: Sequence[int], dtype: torch.dtype, device: Any = None) -> torch.Tensor:
    """Uniform in [-1, 1) for floating types, over all values for integers."""
    device = triton_dist.device() if device is None or _is_gpu_name(device) else device
    if dtype.is_floating_point:
        made = torch.rand(shape, dtype=torch.float32 if is_fp8_dtype(dtype) else dtype, device=device)
        return (made * 2 - 1).to(dtype)
    known = torch.iinfo(dtype)
    return torch.randint(known.min, known.max, tuple(shape), dtype=torch.int64, device=device).to(dtype)


def _is_gpu_name(device: Any) -> bool:
    return isinstance(device, int) or str(device).startswith("cuda")


def generate_data(configs: Sequence) -> Iterator:
    """Endless: for each of (shape, dtype, (scale, bias)) or None, values around bias, up to scale away."""
    def one(shape: Any, dtype: torch.dtype, spread: tuple, device: Any = None) -> torch.Tensor:
        sizes = (shape,) if isinstance(shape, int) else shape() if callable(shape) else shape
        sizes = tuple(s() if callable(s) else s for s in sizes)
        scale, bias = spread
        if dtype.is_floating_point:
            return (rand_tensor(sizes, torch.float32, device) * scale + bias).to(dtype)
        return torch.randint(-scale, scale, sizes, device=triton_dist.device()).to(dtype) + bias
    while True:
        yield (None if config is None else one(*config) for config in configs)


@contextmanager
def with_torch_deterministic(mode: bool, warn_only: bool = True) -> Iterator[None]:
    """Deterministic algorithms of torch, on or off, inside the block."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


# -- the machine -------------------------------------------------------------------------------------------------------
def is_cuda() -> bool:
    """Whether scripts should take the way of NVIDIA's GPUs, which the emulator goes as well."""
    return backend().name != "amd"


def is_hip() -> bool:
    """Whether this process has an AMD GPU."""
    return backend().name == "amd"


def is_maca() -> bool:
    """Never: MetaX GPUs have no backend here."""
    return False


def sleep_async(duration_ms: float) -> None:
    """Keeps the current stream busy for about so long; nothing in the emulator, where time has no meaning."""
    if backend().name != "emulator":
        cuda_sleep(int(duration_ms * 1.5e6))


def supports_p2p_native_atomic() -> bool:
    """Whether atomics on a peer's memory are atomic: NVLink and xGMI have them, PCIe may not."""
    return stream_calls.peers_have_atomics()


def requires_p2p_native_atomic(fn: Callable) -> Callable:
    """Decorator: warns where atomics on a peer's memory are not atomic."""
    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not supports_p2p_native_atomic():
            warnings.warn(f"{fn.__name__} needs atomics on peers' memory, which these GPUs lack", stacklevel=2)
        return fn(*args, **kwargs)
    return called


def is_nvshmem_multimem_supported() -> bool:
    """No: no kernel here uses multicast memory."""
    return False


def has_fullmesh_nvlink() -> bool:
    """Whether every GPU reaches every other: what this process's peers tell."""
    return supports_p2p_native_atomic()


def has_tma() -> bool:
    """Whether the GPU copies boxes by descriptor; the emulator does."""
    return is_cuda() and torch.cuda.get_device_capability()[0] >= 9 if backend().name != "emulator" else True


def requires(condition: Callable[[], bool]) -> Callable:
    """Decorator: the function raises where the condition does not hold."""
    def decorate(fn: Callable) -> Callable:
        @functools.wraps(fn)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not condition():
                raise AssertionError(f"{fn.__name__} needs {condition.__name__}")
            return fn(*args, **kwargs)
        return called
    return decorate


def launch_cooperative_grid_options() -> dict:
    """Options of a launch whose programs must all be resident."""
    return {"launch_cooperative_grid": True}


def get_device_property(device_id: int = 0) -> Any:
    """What torch says of a device; of the emulator's, how many SMs it has."""
    if backend().name == "emulator":
        from triton_dist.backends.emulator import device_interface
        return device_interface.get_device_properties()
    return torch.cuda.get_device_properties(device_id)


def get_device_max_shared_memory_size(device_id: int = 0) -> int:
    """Bytes of shared memory that a program may have."""
    if backend().name == "emulator":
        return 232448
    return torch.cuda.get_device_properties(device_id).shared_memory_per_block_optin


def cuda_occupancy_max_activate_blocks_per_multiprocessor(kernel: Any, num_warps: int, *args: Any, **kwargs: Any) -> int:
    """Programs of a kernel that fit a multiprocessor by registers and shared memory; 1 in the emulator."""
    compiled = kernel.run(*args, grid=(1,), warmup=True, num_warps=num_warps, **kwargs)
    if backend().name == "emulator":
        return 1
    load(compiled)
    shared = max(1, compiled.metadata.shared)
    registers = max(1, compiled.n_regs * 32 * num_warps)
    return max(1, min(get_device_max_shared_memory_size() // shared, 65536 // registers, 2048 // (32 * num_warps)))


def torch_stream_max_priority() -> int:
    """The number of the highest priority of a stream."""
    return -1


def wait_until_max_gpu_clock_or_warning(device_id: Any = None, timeout_sec: float = 10) -> bool:
    """True at once: clocks are the operator's to fix."""
    return True


def _succeeded(result: Any) -> Any:
    first = result[0] if isinstance(result, tuple) else result
    if int(getattr(first, "value", first)):
        raise RuntimeError(f"a call of the driver failed: {first}")
    return first


def CUDA_CHECK(err: Any) -> None:
    """Raises RuntimeError for a result of the driver that is not success."""
    _succeeded(err)


def HIP_CHECK(call_result: tuple) -> Any:
    """The rest of a result whose first part says success; raises RuntimeError for others."""
    _succeeded(call_result)
    rest = call_result[1:]
    return rest[0] if len(rest) == 1 else rest


MACA_CHECK = CUDA_CHECK


def get_bool_env(name: str, default: bool) -> bool:
    """A variable as bool: on, off, 1, 0, true, false."""
    text = os.environ.get(name, "").lower()
    return default if text not in ("on", "off", "1", "0", "true", "false") else text in ("on", "1", "true")


def get_int_env(name: str, default: int) -> int:
    """A variable as int."""
    text = os.environ.get(name, "")
    return int(text) if text.lstrip("-").isdecimal() else default


# -- NUMA --------------------------------------------------------------------------------------------------------------
def get_numa_node(device_id: int = 0) -> int:
    """The NUMA node that a GPU hangs on; 0 where it cannot be told."""
    if backend().name == "emulator" or not shutil.which("nvidia-smi"):
        return 0
    found = torch.cuda.get_device_properties(device_id)
    path = f"/sys/bus/pci/devices/{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0/numa_node"
    try:
        with open(path) as file:
            return max(0, int(file.read()))
    except (OSError, ValueError):
        return 0


def get_numa_node_count_in_group(pg: Any) -> int:
    """2 where the two halves of the group are on two NUMA nodes, else 1."""
    device = 0 if backend().name == "emulator" else torch.cuda.current_device()
    nodes = resolve(pg).all_gather_object(get_numa_node(device))
    halves = [set(nodes[:len(nodes) // 2]), set(nodes[len(nodes) // 2:])]
    return 2 if all(len(half) == 1 for half in halves) and halves[0] != halves[1] else 1


def get_group_numa_world_size(pg: Any) -> int:
    """Ranks of the group on a NUMA node."""
    return pg.size() // get_numa_node_count_in_group(pg)

# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The published ops and their contexts, over ours. A context keeps shapes; buffers are those of our workspaces.

Symmetric buffers that a context is published with are made when a script asks for them, by all ranks together.
"""
import enum
from typing import Any

import torch

import triton_dist
from triton_dist import ops
from triton_dist.dropin import host, stream_calls
from triton_dist.runtime.errors import InvalidArgument


def _weight(b: torch.Tensor, k: int, n: int | None) -> torch.Tensor:
    """B of shape [K, N], or [N, K] where only that fits, as a linear layer stores it: [N, K]."""
    if b.shape[0] == k and (n is None or b.shape[1] == n):
        return b.t().contiguous()
    if b.shape[1] == k:
        return b.contiguous()
    raise InvalidArgument(f"B: expected [{k}, {n or 'N'}], found {list(b.shape)}")


class _Context:
    """What all contexts have."""

    def __init__(self, **fields: Any):
        self.__dict__.update(fields)

    def finalize(self) -> None:
        """Frees the buffers that were made. Collective."""
        for name, value in list(self.__dict__.items()):
            if name.startswith("symm_"):
                host.nvshmem_free_tensor_sync(value[self.local_rank] if isinstance(value, list) else value)
                del self.__dict__[name]


# -- all-gather and GEMM -----------------------------------------------------------------------------------------------
class AllGatherMethod(enum.Enum):
    """Names of ways to gather. Ours are chosen by the op."""
    Auto = 0
    All2All_IntraNode = 1
    All2All_InterNode = 2
    Ring1D_IntraNode = 3
    Ring2D_IntraNode = 4
    Ring2D_InterNode = 5


def get_auto_all_gather_method(num_ranks: int, num_local_ranks: int) -> AllGatherMethod:
    """The method for a world of so many ranks."""
    return AllGatherMethod.All2All_IntraNode if num_ranks == num_local_ranks else AllGatherMethod.All2All_InterNode


class AllGatherGEMMTensorParallelContext(_Context):
    """The context of ag_gemm: max_M, N_per_rank, K, dtype, rank, num_ranks, num_local_ranks."""

    barrier_target = 1

    def __getattr__(self, name: str) -> Any:
        """Symmetric buffers, made when they are asked for. Collective."""
        one_node, made = self.num_ranks == self.num_local_ranks, None
        if name == "symm_workspaces":
            made = host.nvshmem_create_tensors((self.max_M, self.K), self.dtype, self.rank, self.num_local_ranks)
        elif name == "symm_barriers":
            bits = torch.int32 if one_node else host.NVSHMEM_SIGNAL_DTYPE
            made = host.nvshmem_create_tensors((self.num_ranks,), bits, self.rank, self.num_local_ranks)
        elif name == "symm_comm_buf":
            made = host.nvshmem_create_tensor((3 * self.num_ranks,), torch.int32)
        if made is None:
            raise AttributeError(f"the context of ag_gemm has no {name}")
        self.__dict__[name] = made
        return made

    symm_workspace = property(lambda self: self.symm_workspaces[self.local_rank])
    symm_barrier = property(lambda self: self.symm_barriers[self.local_rank])


def create_ag_gemm_context(max_M: int, N: int, K: int, dtype: torch.dtype, rank: int, num_ranks: int, num_local_ranks: int = 8,
                           ag_intranode_stream: Any = None, ag_internode_stream: Any = None,
                           **_: Any) -> AllGatherGEMMTensorParallelContext:
    """Collective: the context of ag_gemm. N: columns of all ranks together."""
    return AllGatherGEMMTensorParallelContext(
        max_M=max_M, N_per_rank=N // num_ranks, K=K, dtype=dtype, rank=rank, num_ranks=num_ranks,
        num_local_ranks=num_local_ranks, local_rank=rank % num_local_ranks, n_nodes=num_ranks // num_local_ranks,
        node_rank=rank // num_local_ranks, is_multinode=num_ranks > num_local_ranks,
        ag_intranode_stream=ag_intranode_stream or triton_dist.new_stream(-1),
        ag_internode_stream=ag_internode_stream or triton_dist.new_stream(-1),
        all_gather_method=get_auto_all_gather_method(num_ranks, num_local_ranks), max_gemm_sm=_sms())


def _sms() -> int:
    return host.get_device_property().multi_processor_count


def ag_gemm(A: torch.Tensor, B: torch.Tensor, ctx: Any = None, gemm_config: Any = None, **_: Any) -> torch.Tensor:
    """all_gather(A) @ B. A: [M / W, K]; B: [K, N / W], usually a transposed view. Configurations are the op's own."""
    return ops.ag_gemm(A, _weight(B, A.shape[1], getattr(ctx, "N_per_rank", None)))


def gemm_persistent(A: torch.Tensor, B: torch.Tensor, ctx: Any = None, gemm_config: Any = None, **_: Any) -> torch.Tensor:
    """A @ B, without communication."""
    return torch.matmul(A, B)


gemm_non_persistent = gemm_persistent


def cp_engine_producer_all_gather_intra_node(rank: int, num_ranks: int, local_tensor: torch.Tensor, remote_tensor_buffers: list,
                                             barrier_buffers: list, stream: Any, all_gather_method: Any = None,
                                             debug: bool = False) -> None:
    """On a stream: this rank's rows to every peer of the node by the copy engine, then 1 to its flag there."""
    rows = local_tensor.shape[0]
    for step in range(1, num_ranks):
        peer = (rank + step) % num_ranks
        there = remote_tensor_buffers[peer][rank * rows:(rank + 1) * rows]
        stream_calls.memcpy(there, local_tensor, local_tensor.nbytes, stream)
        stream_calls.set_signal(barrier_buffers[peer][rank], 1, stream)


# -- GEMM and reduce-scatter, all-reduce ---------------------------------------------------------------------------------
def create_gemm_rs_context(max_M: int, N: int, rank: int, world_size: int, local_world_size: int, output_dtype: torch.dtype,
                           rs_stream: Any = None, **_: Any) -> _Context:
    """Collective: the context of gemm_rs."""
    return _Context(max_M=max_M, N=N, rank=rank, num_ranks=world_size, world_size=world_size,
                    local_rank=rank % local_world_size, local_world_size=local_world_size, output_dtype=output_dtype,
                    rs_stream=rs_stream or triton_dist.new_stream(-1), num_gemm_sms=_sms())


def gemm_rs(A: torch.Tensor, B: torch.Tensor, ctx: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    """reduce_scatter(A @ B). A: [M, K / W]; B: [K / W, N] or [N, K / W]. Returns [M / W, N]."""
    return ops.gemm_rs(A, _weight(B, A.shape[1], getattr(ctx, "N", None)))


class AllReduceMethod(enum.Enum):
    """Names of ways to reduce. Ours are chosen by the op."""
    Unknown = 0
    OneShot = 1
    TwoShot = 2
    DoubleTree = 3
    OneShot_TMA = 4
    OneShot_Multimem = 5
    TwoShot_Multimem = 6
    TwoShot_Multimem_ST = 7


def get_auto_allreduce_method(nbytes: int) -> AllReduceMethod:
    """One shot for few bytes, two for many."""
    return AllReduceMethod.OneShot if nbytes <= 1 << 20 else AllReduceMethod.TwoShot


def create_allreduce_ctx(workspace_nbytes: int, rank: int, world_size: int, local_world_size: int, **_: Any) -> _Context:
    """Collective: the context of all_reduce."""
    return _Context(workspace_nbytes=workspace_nbytes, rank=rank, world_size=world_size, local_world_size=local_world_size,
                    local_rank=rank % local_world_size)


def all_reduce(x: torch.Tensor, method: Any = None, ctx: Any = None, output: torch.Tensor | None = None,
               **_: Any) -> torch.Tensor:
    """The sum of x over all ranks, on every rank."""
    return ops.all_reduce(x, out=output)


def create_gemm_ar_context(*args: Any, **kwargs: Any) -> _Context:
    """Collective: the context of gemm_allreduce_op."""
    return _Context(args=args, **kwargs)


create_ll_gemm_ar_context = create_gemm_ar_context


def gemm_allreduce_op(ctx: Any, a: torch.Tensor, b: torch.Tensor, gemm_config: Any = None, *_: Any,
                      **options: Any) -> torch.Tensor:
    """all_reduce(a @ b^T). a: [M, K / W]; b: [N, K / W]. Scales of int8 are not taken."""
    if options.get("As") is not None or options.get("A_scale") is not None:
        raise InvalidArgument("gemm_allreduce_op: expected no scales, found As; dequantise before, or use gemm_ar's own types")
    return ops.gemm_ar(a, b)


low_latency_gemm_allreduce_op = gemm_allreduce_op


# -- all-gather of small messages ----------------------------------------------------------------------------------------
def create_fast_allgather_context(rank: int, node: int, num_ranks: int, num_nodes: int, max_buffer_size: int = 1 << 25,
                                  **_: Any) -> _Context:
    """Collective: the context of fast_allgather."""
    return _Context(rank=rank, node=node, num_ranks=num_ranks, num_nodes=num_nodes, max_buffer_size=max_buffer_size)


def fast_allgather(symm_buffer: torch.Tensor, ctx: Any = None, **_: Any) -> torch.Tensor:
    """Gathers in place: symm_buffer is [W * rows, ...] with this rank's rows in their place."""
    rows = symm_buffer.shape[0] // ctx.num_ranks
    return ops.all_gather(symm_buffer[ctx.rank * rows:(ctx.rank + 1) * rows], out=symm_buffer)

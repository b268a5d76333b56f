# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every name of the published API: what is written in its place in new code, or why it is missing.

A line is `path = clean form`, or `path ! reason` for a name that scripts must do without. docs/write_migration.py makes
docs/migration.md of it, and tests/published/test_names.py imports each.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Name:
    """A published name: its module, itself, its clean form, and why it is missing, "" where it is there."""
    module: str
    name: str
    clean: str
    missing: str


def _table(text: str) -> tuple:
    found, module = [], ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.endswith(":"):
            module = line[:-1]
            continue
        there, mark, rest = (line.partition(" = ") if " = " in line else line.partition(" ! "))
        if not mark:
            raise ValueError(f"no clean form and no reason: {line}")
        found += [Name(module, name, "" if mark == " ! " else rest, rest if mark == " ! " else "") for name in there.split()]
    return tuple(found)


HOST = _table("""
triton_dist:
jit = triton_dist.jit
triton_dist.utils:
initialize_distributed = triton_dist.initialize_distributed(seed); it seeds torch only
finalize_distributed = triton_dist.finalize_distributed()
init_nvshmem_by_torch_process_group init_rocshmem_by_torch_process_group = triton_dist.initialize_distributed()
init_mori_by_torch_process_group = triton_dist.initialize_distributed()
is_shmem_initialized = keep the group that initialize_distributed gives
nvshmem_create_tensor mori_shmem_create_tensor = triton_dist.create_symm_tensor(shape, dtype)
nvshmem_create_tensors = triton_dist.create_symm_tensor and triton_dist.peer_tensor(tensor, rank)
nvshmem_free_tensor_sync mori_shmem_free_tensor_sync = triton_dist.free_symm_tensor(tensor), or drop it on every rank
NVSHMEM_SIGNAL_DTYPE MORI_SHMEM_SIGNAL_DTYPE = torch.int64
LazyTensor LazyAllocator NVSHMEMLazyAllocator = triton_dist.memory_summary() says what is there
nvshmem_barrier_all_on_stream rocshmem_barrier_all_on_stream = a kernel that calls dl.barrier_all()
mori_shmem_barrier_all_on_stream = a kernel that calls dl.barrier_all()
barrier_async = torch.distributed.barrier(group)
dist_print = print
generate_data rand_tensor = torch.rand, torch.randint on triton_dist.device()
init_seed = torch.manual_seed
sleep_async = torch.cuda._sleep
supports_p2p_native_atomic requires_p2p_native_atomic = ops look by themselves
is_nvshmem_multimem_supported = always False: no kernel uses multicast memory
has_tma = torch.cuda.get_device_capability() >= (9, 0)
requires = an if
launch_cooperative_grid_options = launch_cooperative_grid=True
cuda_occupancy_max_activate_blocks_per_multiprocessor = kernel.warmup(...), then n_regs and metadata.shared
get_numa_node get_numa_node_count_in_group get_group_numa_world_size = ops look by themselves
CUDA_CHECK HIP_CHECK MACA_CHECK = the driver is called by the backends
wait_until_max_gpu_clock_or_warning = fix the clocks with nvidia-smi
triton_dist.profiler_utils:
perf_func perf_func_with_l2_reset = triton-dist bench, or triton.testing.do_bench
group_profile get_torch_prof_ctx = torch.profiler
benchmark_latency_memory print_benchmark_comparison ! triton-dist bench prints both
triton_dist.test.utils:
LAYER_CONFIGS = triton_dist.bench.shapes
assert_allclose = torch.testing.assert_close
bitwise_equal assert_bitwise_equal = torch.equal
triton_dist.tune:
autotune = triton-dist tune, or TRITON_DIST_AUTOTUNE=1 for ops
triton_dist.autotuner:
contextual_autotune ! it replaces a method of Triton's Autotuner; tune ops with triton-dist tune
triton_dist.tools.profiler:
Profiler alloc_profiler_buffer reset_profiler_buffer ProfilerBuffer ! dl.trace_start in kernels, and triton-dist trace
export_to_perfetto_trace parse_to_tracks ! dl.trace_start in kernels, and triton-dist trace
triton_dist.tools:
aot_compile_spaces = triton_dist.aot.aot_compile_spaces
""")

DEVICE = _table("""
triton_dist.language:
wait = dl.wait
consume_token = dl.consume_token
rank num_ranks = dl.rank(), dl.num_ranks()
symm_at = dl.symm_at
notify = dl.notify
simt_exec_region = t, n = tid(0), num_threads()
extern_call ! tl.core.extern_elementwise, whose result may be ignored
vector ! Triton has tuples, on which + joins; make_vector, zeros_vector, ld_vector and st_vector work on those
allocate_smem smem_index smem_load smem_store smem_get_ptr ! gl.allocate_shared_memory in a Gluon kernel
get_smem_shared_address_u32 smem_dealloc SharedMemoryDesc ! gl.allocate_shared_memory in a Gluon kernel
triton_dist.language.tma:
PipelineState TmaPipeline store_and_wait create_tmap_2d tmap_update_address ! Gluon's tma and mbarrier modules
triton_dist.language.extra.language_extra:
tid atomic_cas atomic_add __syncthreads ld st ld_vector st_vector = the same
make_vector zeros_vector pack unpack = the same, on tuples
threads_per_warp num_threads num_warps = the same
laneid ntid smid globaltimer __fence fence membar red_release arrive_inc wait_eq = the same
ld_acquire ld_b32 st_b32 load_v4_u32 load_v4_b32 load_v4_s32 load_v2_b64 st_v4_u32 st_v4_b32 st_v2_u32 = ld, st
__shfl_sync_i32 __shfl_up_sync_i32 __shfl_down_sync_i32 __shfl_xor_sync_i32 __ballot_sync = shuffle, shuffle_up, ..., ballot
atomic_add_per_warp pack_b32_v2 sync_grid clock = the same
globaltimer_lo globaltimer_hi ! globaltimer(), and a shift
arrive_inc_asm ! arrive_inc
multimem_st_b64 multimem_st_b32 multimem_st_v2 multimem_st_v4 multimem_st_p_b32 ! no heap here maps multicast memory
multimem_ld_reduce_v4 multimem_ld_reduce_p_v4 ! no heap here maps multicast memory
tma_sync ! Gluon's tma.store_wait
load store ! ld and st
seid cuid xccid ! registers of one generation of GPUs
wallclock ! globaltimer(), in nanoseconds
triton_dist.language.extra.libshmem_device:
set_rocshmem_ctx my_pe n_pes team_my_pe team_n_pes team_translate_pe remote_ptr remote_mc_ptr = the same; dl.rank, dl.symm_at
barrier_all barrier_all_vec barrier_all_block barrier_all_warp barrier_all_wave barrier_all_wg = dl.barrier_all(), or the same
barrier barrier_block barrier_warp sync_all sync_all_block sync_all_warp team_sync_block team_sync_warp = the same
quiet quiet_pe fence = the same
getmem getmem_nbi getmem_block getmem_nbi_block getmem_warp getmem_nbi_warp = the same
getmem_wave getmem_nbi_wave getmem_wg getmem_nbi_wg = getmem_warp, getmem_block, ...
putmem putmem_nbi putmem_block putmem_nbi_block putmem_warp putmem_nbi_warp = the same
putmem_wave putmem_nbi_wave putmem_wg putmem_nbi_wg = putmem_warp, putmem_block, ...
int_p = p
putmem_signal putmem_signal_nbi putmem_signal_block putmem_signal_nbi_block putmem_signal_warp putmem_signal_nbi_warp = the same
putmem_signal_wave putmem_signal_nbi_wave putmem_signal_wg putmem_signal_nbi_wg = putmem_signal_warp, ...
ulong_put_signal signal_op signal_wait_until uint64_wait_until_equals = the same, or dl.notify and dl.wait
broadcast broadcastmem broadcast_warp broadcastmem_warp broadcast_block broadcastmem_block = the same
fcollect fcollectmem fcollect_warp fcollectmem_warp fcollect_block fcollectmem_block = the same
putmem_rma putmem_rma_nbi putmem_rma_block putmem_rma_nbi_block putmem_rma_warp putmem_rma_nbi_warp = putmem, ...
putmem_signal_rma putmem_signal_rma_nbi putmem_signal_rma_block putmem_signal_rma_nbi_block = putmem_signal, ...
putmem_signal_rma_warp putmem_signal_rma_nbi_warp = putmem_signal_warp, putmem_signal_nbi_warp
atomic_set atomic_add atomic_inc atomic_fetch atomic_fetch_inc atomic_fetch_add atomic_swap atomic_compare_swap = the same
p g iput iget signal_fetch wait_until test alltoallmem alltoallmem_block alltoallmem_warp set_lock clear_lock = the same
sum_reduce sum_reduce_block max_reduce max_reduce_block min_reduce prod_reduce = the same; on GPUs triton_dist.ops.all_reduce
ctx_create ctx_destroy wg_ctx_create ! device libraries export no contexts for kernels
wait_until_all wait_until_any test_all ! a loop over wait_until
""")

OPS = _table("""
triton_dist.kernels.nvidia:
ag_gemm create_ag_gemm_context gemm_persistent gemm_non_persistent = triton_dist.ops.ag_gemm(x, weight)
AllGatherMethod get_auto_all_gather_method = the op chooses; explain("ag_gemm", ...) says how
cp_engine_producer_all_gather_intra_node = triton_dist.ops.all_gather(x)
fast_allgather create_fast_allgather_context = triton_dist.ops.all_gather(x, out=out)
gemm_rs create_gemm_rs_context = triton_dist.ops.gemm_rs(x, weight)
create_gemm_ar_context create_ll_gemm_ar_context gemm_allreduce_op = triton_dist.ops.gemm_ar(x, weight)
low_latency_gemm_allreduce_op = triton_dist.ops.gemm_ar(x, weight)
fast_all_to_all create_all_to_all_context = triton_dist.ops.ep_dispatch, triton_dist.ops.all_to_all_vdev_2d
all_to_all_post_process = triton_dist.ops.ep_dispatch, triton_dist.ops.all_to_all_vdev_2d
cp_engine_producer_all_gather_inter_node ! triton_dist.ops.all_gather_2d
_forward_pull_kernel _forward_push_2d_kernel _forward_push_3d_kernel _forward_push_2d_ll_kernel ! triton_dist.ops.all_gather
_forward_push_2d_ll_multimem_kernel _forward_push_numa_2d_kernel _forward_push_numa_2d_ll_kernel ! triton_dist.ops.all_gather
_forward_push_numa_2d_ll_multinode_kernel ! triton_dist.ops.all_gather_2d
ag_group_gemm create_ag_group_gemm_context create_moe_rs_context ! triton_dist.layers.TPMoE, or ep_dispatch and ep_combine
create_ep_ll_a2a_ctx dispatch_kernel_v2 combine_kernel_v2 ! triton_dist.ops.ep_dispatch_send and ep_combine_send
gqa_fwd_batch_decode gqa_fwd_batch_decode_aot gqa_fwd_batch_decode_intra_rank ! no attention here
gqa_fwd_batch_decode_intra_rank_aot ! no attention here
gqa_fwd_batch_decode_persistent gqa_fwd_batch_decode_persistent_aot get_triton_combine_kv_algo_info ! no attention here
kernel_gqa_fwd_batch_decode_split_kv_persistent kernel_inter_rank_gqa_fwd_batch_decode_combine_kv ! no attention here
fused_sp_ag_attn_intra_node create_sp_ag_attention_context_intra_node ! no attention here
fused_sp_ag_attn_inter_node create_sp_ag_attention_context_inter_node ! no attention here
create_all_to_all_single_2d_context all_to_all_single_2d ! triton_dist.ops.all_to_all_single
create_all_to_all_single_gemm_context all_to_all_single_gemm ! triton_dist.ops.all_to_all_single, then a GEMM
chunk_gated_delta_rule_fwd ! no linear attention here
create_ulysses_sp_pre_attn_comm_context kernel_pre_attn_a2a kernel_post_attn_a2a ! triton_dist.ops.all_to_all_single
triton_dist.kernels.nvidia.allreduce:
all_reduce create_allreduce_ctx get_auto_allreduce_method AllReduceMethod = triton_dist.ops.all_reduce(x)
triton_dist.kernels.nvidia.common_ops:
barrier_on_this_grid unsafe_barrier_on_this_grid = language_extra.sync_grid(counter)
barrier_all_intra_node_atomic_cas_block barrier_all_intra_node_non_atomic_block = dl.barrier_all()
barrier_all_intra_node_non_atomic = dl.barrier_all()
BarrierAllContext barrier_all_on_stream = a kernel that calls dl.barrier_all()
bisect_left_kernel bisect_left_kernel_aligned bisect_right_kernel bisect_right_kernel_aligned = tl.sum of a comparison
log2 next_power_of_2 = triton.next_power_of_2
_wait_eq_cuda _set_signal_cuda _memcpy_async_cuda = wait_eq, set_signal of kernels.common_ops
cooperative_barrier_on_this_grid load_grid_ws_abi_address load_envreg ! barrier_on_this_grid(counter, ...)
triton_dist.kernels.common_ops:
wait_eq set_signal = a kernel that calls dl.wait, dl.notify
globaltimer pack_b32_v2 smid fence = language_extra
globaltimer_lo ! globaltimer()
triton_dist.kernels.amd:
ag_gemm_intra_node create_ag_gemm_intra_node_context = triton_dist.ops.ag_gemm(x, weight)
gemm_rs_intra_node create_gemm_rs_intra_node_context = triton_dist.ops.gemm_rs(x, weight)
""")

TABLES = {"Host names": HOST, "Device names": DEVICE, "Op names": OPS}

/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   triton_dist for programs without Python: a world of ranks on the GPUs of one host, symmetric memory, and the ops.

   One process, or one thread, is one rank with one device. Functions marked collective are called by all ranks in the same order;
   each waits for the others no longer than the world's timeout. A world is used by one thread at a time. All functions return a
   tdist_status (tdist_aot.h). CUDA only. docs/aot.md has an example. */
#ifndef TRITON_DIST_H
#define TRITON_DIST_H

#include "tdist_aot.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tdist_world tdist_world;
typedef struct tdist_plan tdist_plan;

/* What ranks find each other by. One rank makes it; the program brings it to the others, by a pipe, a file, MPI or a fork. */
typedef struct tdist_unique_id { unsigned char bytes[64]; } tdist_unique_id;
TDIST_API int tdist_unique_id_create(tdist_unique_id *id);

typedef struct tdist_world_options {
    uint32_t struct_size;         /* sizeof(tdist_world_options) */
    uint32_t timeout_ms;          /* how long a collective function waits for other ranks; 0: 60000 */
    uint64_t heap_bytes;          /* of symmetric memory on each rank, the same on all; 0: 1 GiB */
} tdist_world_options;

/* Collective: joins a world of `size` ranks (1 to 64) as `rank`, on a device of its own, and maps every rank's heap. The device's
   primary context is used. options: NULL for the defaults.
   TDIST_ERR_TIMEOUT where a rank does not come, TDIST_ERR_MISMATCH where ranks do not fit each other. */
TDIST_API int tdist_world_create(tdist_world **out, const tdist_unique_id *id, int rank, int size, int device,
                                 const tdist_world_options *options);
/* Collective: waits for all ranks' work, then unmaps the heap. All plans have to be destroyed before. What this rank holds is freed
   also where another rank does not come; then that is what it returns. */
TDIST_API int tdist_world_destroy(tdist_world *world);
TDIST_API int tdist_world_rank(const tdist_world *world);
TDIST_API int tdist_world_size(const tdist_world *world);
/* Collective: returns once all ranks have called it. It is the host that waits, no stream. */
TDIST_API int tdist_world_barrier(tdist_world *world);

/* Collective: zeroed memory at the same place of every rank's heap. */
TDIST_API int tdist_alloc(tdist_world *world, size_t bytes, void **out);
/* Collective: frees it, once this rank's device has finished and all ranks have come here. */
TDIST_API int tdist_free(tdist_world *world, void *address);
/* The same memory on another rank, as it is mapped here; NULL for an address outside of the heap. */
TDIST_API void *tdist_peer(const tdist_world *world, const void *address, int rank);

/* -- ops ------------------------------------------------------------------------------------------------------------------- */
/* A plan is made once for a shape, collectively: it finds its kernels in the library, loads them, takes symmetric memory. A call
   by it is a few launches. Calls are collective, go in the same order on all ranks, and may be captured in graphs unless a plan
   says otherwise. Plans of one kind share their memory: make all of them before the first capture. Same inputs give the same bits. */
typedef struct tdist_gemm {
    uint32_t struct_size;         /* sizeof(tdist_gemm) */
    uint32_t dtype;               /* TDIST_BF16 or TDIST_FP16: of x, weight, bias and out */
    int64_t m, n, k;              /* see the op */
    int32_t has_bias;
    int32_t comm_sms;             /* ag_gemm: SMs that send x, 1 to 32; 0: the copy engine, which cannot be captured */
    uint32_t hop_dtype;           /* gemm_rs: in which sums travel, that of x or TDIST_FP32; 0: that of x */
    int32_t block_n, group_m;     /* tiling: 256 or 128 columns, groups of 4, 8 or 16 tiles of rows; 0: the usual one */
    int32_t reserved;
} tdist_gemm;

/* out [size * m, n] = all_gather(x [m, k]) @ weight [n, k]^T + bias [n]. All matrices are contiguous, k and n multiples of 8. */
TDIST_API int tdist_ag_gemm_plan(tdist_world *world, const tdist_gemm *shape, tdist_plan **out);
TDIST_API int tdist_ag_gemm(tdist_plan *plan, tdist_stream stream, const void *x, const void *weight, const void *bias, void *out);

/* out [m, n] = this rank's rows of the sum over ranks of x [size * m, k] @ weight [n, k]^T, plus bias [n]. k is this rank's. */
TDIST_API int tdist_gemm_rs_plan(tdist_world *world, const tdist_gemm *shape, tdist_plan **out);
TDIST_API int tdist_gemm_rs(tdist_plan *plan, tdist_stream stream, const void *x, const void *weight, const void *bias, void *out);

typedef enum tdist_reduction_method { TDIST_AUTO = 0, TDIST_ONE_SHOT = 1, TDIST_TWO_SHOT = 2, TDIST_PUSH = 3 } tdist_reduction_method;
/* out [count] = sum over ranks of x [count], in fp32, rounded once; out may be x. Addresses and count * 2 are multiples of 16. */
TDIST_API int tdist_all_reduce_plan(tdist_world *world, uint32_t dtype, int64_t count, int method, tdist_plan **out);
TDIST_API int tdist_all_reduce(tdist_plan *plan, tdist_stream stream, const void *x, void *out);

/* Frees a plan. Its calls have to be finished, and graphs that hold them must not run any more. */
TDIST_API void tdist_plan_destroy(tdist_plan *plan);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   The host side from the inside. */
#ifndef TDIST_WORLD_H
#define TDIST_WORLD_H

#include "tdist_driver.h"
#include "tdist_internal.h"
#include "triton_dist.h"

#define TDIST_RESERVED 4096           /* bytes at the start of every heap: flags of barriers in kernels */
#define TDIST_MAX_PROGRAMS 1024       /* of a kernel that counts its calls */

/* hub.c: the sockets by which ranks talk, rank 0 in the middle. Messages are small and rare. */
typedef struct tdist_hub {
    int rank, size, timeout_ms;
    int sockets[TDIST_MAX_WORLD];     /* of rank 0: to every other rank; else [0]: to rank 0 */
    int listener;
    uint64_t count;                   /* exchanges so far */
    int broken;                       /* the status of an exchange that failed: those that follow fail alike */
} tdist_hub;
int tdist_hub_open(tdist_hub *hub, const tdist_unique_id *id, int rank, int size, int timeout_ms);
void tdist_hub_close(tdist_hub *hub);
/* Collective: all[r] of `bytes` is what rank r gave as `mine`. `what` names it in errors. */
int tdist_hub_exchange(tdist_hub *hub, const char *what, const void *mine, size_t bytes, void *all);
/* Collective: files[r] is a copy of rank r's file descriptor; files[rank] is -1. */
int tdist_hub_exchange_files(tdist_hub *hub, int mine, int *files);

/* Room that all plans of a kind share. */
typedef enum tdist_kind { TDIST_BY_COPIES, TDIST_BY_SMS, TDIST_RING, TDIST_SELF_FLAGGED, TDIST_PUSH_ONE_HOP, TDIST_PUSH_TWO_HOPS,
                          TDIST_KINDS } tdist_kind;
typedef struct tdist_space {
    uint64_t half_bytes, flag_count;
    unsigned char *data;              /* two halves */
    int32_t *flags, *control;
    uint32_t generation;              /* counts how often the buffers have moved */
    int32_t epoch;                    /* of TDIST_BY_COPIES, which the host counts */
    uint64_t calls;
    int captured, poisoned;
} tdist_space;

typedef struct tdist_block_of_heap { uint64_t offset, bytes; } tdist_block_of_heap;

struct tdist_world {
    tdist_hub hub;
    const tdist_cuda *cuda;
    const tdist_cuda_host *host;
    void *context;
    int device, sms, rank, size;
    uint64_t heap_bytes;
    unsigned char *bases[TDIST_MAX_WORLD];
    tdist_block_of_heap *blocks;      /* live, by offset */
    size_t block_count, block_room;
    tdist_space spaces[TDIST_KINDS];
    int32_t *team;                    /* device memory: what kernels read of the group of all ranks */
    void *side, *forked, *joined;     /* a stream for what runs beside an op, and events */
    void *ended;                      /* an event: the last call */
    unsigned long long last;          /* the id of its stream, which may be gone */
};

int tdist_cuda_failed(const char *call, int code);
/* Makes the world's context current; `before` is for tdist_leave. */
int tdist_enter(const tdist_world *world, void **before);
void tdist_leave(const tdist_world *world, void *before);
int tdist_world_wait(tdist_world *world);                   /* for the device, then for all ranks */
int tdist_heap_create(tdist_world *world, uint64_t bytes);
void tdist_heap_destroy(tdist_world *world);
int tdist_heap_take(tdist_world *world, size_t bytes, void **out);
int tdist_heap_give(tdist_world *world, void *address);

/* workspace.c */
int tdist_reserve(tdist_world *world, tdist_kind kind, uint64_t half_bytes, uint64_t flags);
/* A call begins on the stream, after the one before it. capturing: whether it is recorded. Copies count their epoch here. */
int tdist_begin(tdist_world *world, tdist_kind kind, tdist_stream stream, int *capturing);
/* It has ended with this status, which is returned, or with an error of its own; an error poisons the workspace. */
int tdist_end(tdist_world *world, tdist_kind kind, tdist_stream stream, int capturing, int status);
int tdist_fork(tdist_world *world, tdist_stream stream);    /* the side stream goes on after the stream, */
int tdist_join(tdist_world *world, tdist_stream stream);    /* and the stream after the side stream */
void tdist_spaces_destroy(tdist_world *world);

/* plan.c */
typedef enum tdist_op { TDIST_OP_AG_GEMM, TDIST_OP_GEMM_RS, TDIST_OP_ALL_REDUCE } tdist_op;
struct tdist_plan {
    tdist_world *world;
    tdist_op op;
    tdist_kind kind;
    uint32_t generation, dtype, hop_dtype;
    tdist_launch *main, *sender;
    tdist_gemm shape;
    int64_t count;                    /* of all_reduce */
    int32_t method, block_m, block_n, stages, programs;
    int64_t tiles, pitch, pieces, piece_tiles, wide, half_rows, block;
    int (*make)(tdist_plan *plan);    /* makes the launches, again where buffers have moved */
};
int tdist_plan_create(tdist_world *world, tdist_op op, tdist_plan **out);
int tdist_plan_finish(tdist_plan *plan, uint64_t half_bytes, uint64_t flags, tdist_plan **out);
int tdist_plan_ready(tdist_plan *plan);
/* A kept launch of the kernel, with values for the parameters before its constexprs, in place of *out. */
int tdist_plan_launch(const tdist_world *world, const char *kernel, const tdist_value *values, size_t count,
                      const tdist_option *options, size_t option_count, uint32_t programs, tdist_launch **out);
tdist_value tdist_of_pointer(uint32_t dtype, const void *address);
tdist_value tdist_of_integer(int64_t value);
tdist_value tdist_of_tensor(uint32_t dtype, const tdist_tensor *tensor);
tdist_tensor tdist_matrix(const void *data, int64_t rows, int64_t columns);
uint64_t tdist_power_of_two(uint64_t value);
uint64_t tdist_element_bytes(uint32_t dtype);
int tdist_gemm_check(const tdist_world *world, const tdist_gemm *shape, tdist_plan **out);

#endif

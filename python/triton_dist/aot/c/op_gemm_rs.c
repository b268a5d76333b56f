/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   gemm_rs on the Hopper core: a ring of tiles inside one kernel. As ops/gemm_rs has it. */
#include "tdist_world.h"

enum { BLOCK_M = 128, BLOCK_K = 64, BOX_ROWS = 32, BOX_BYTES = 128 };
/* How fast all SMs together may send; cores/hopper/cores.py says why. */
static const double SEND_GBS = 300, FULL_GBS = 430, HIDDEN = 0.45, FLOP_NS = 5300, CLOCK_GHZ = 1.7, MARGIN = 1.3;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t whole(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Bytes of a tile of each program, and nanoseconds that a tile takes. */
static double burst_of(const tdist_plan *p) {
    return (double)p->programs * BLOCK_M * p->block_n * (double)tdist_element_bytes(p->hop_dtype);
}

static double compute_of(const tdist_plan *p) { return 2.0 * BLOCK_M * p->block_n * (double)p->shape.k / FLOP_NS; }

/* How many tiles of the last two steps alternate, of each. */
static int64_t mixed_of(const tdist_plan *p) {
    int slow = p->world->size > 1 && MARGIN * burst_of(p) / SEND_GBS > compute_of(p);
    return slow && p->tiles > p->programs ? p->tiles - p->programs : 0;
}

/* Clock cycles from box to box when all programs send. */
static int64_t gap_of(const tdist_plan *p, int64_t box_bytes) {
    double waves = (double)p->tiles / p->programs, until_needed = compute_of(p) * (waves > 1 ? waves : 1);
    double rate = burst_of(p) / (HIDDEN * (until_needed > 1 ? until_needed : 1));
    rate = rate < SEND_GBS ? SEND_GBS : rate;
    rate = rate > FULL_GBS || mixed_of(p) > 0 ? FULL_GBS : rate;
    return (int64_t)((double)box_bytes * p->programs / rate * CLOCK_GHZ);
}

static int make(tdist_plan *p) {
    tdist_world *world = p->world;
    const tdist_space *space = &world->spaces[p->kind];
    int64_t m = p->shape.m, n = p->shape.n, k = p->shape.k, rows = (world->size > 1 ? world->size - 1 : 1) * p->pitch;
    int64_t element = (int64_t)tdist_element_bytes(p->hop_dtype), box = least(BLOCK_M, BOX_ROWS) * least(p->block_n, BOX_BYTES / element);
    int after = (world->rank + 1) % world->size;
    unsigned char *even = space->data, *odd = space->data + space->half_bytes;
    const tdist_tensor x = tdist_matrix(even, world->size * m, k), weight = tdist_matrix(even, n, k), out = tdist_matrix(even, m, n),
                       slots_even = tdist_matrix(even, rows, n), slots_odd = tdist_matrix(odd, rows, n),
                       next_even = tdist_matrix(tdist_peer(world, even, after), rows, n),
                       next_odd = tdist_matrix(tdist_peer(world, odd, after), rows, n);
    const tdist_value values[] = {
        tdist_of_tensor(p->dtype, &x), tdist_of_tensor(p->dtype, &weight), tdist_of_tensor(p->dtype, &out),
        tdist_of_tensor(p->hop_dtype, &slots_even), tdist_of_tensor(p->hop_dtype, &slots_odd),
        tdist_of_tensor(p->hop_dtype, &next_even), tdist_of_tensor(p->hop_dtype, &next_odd), tdist_of_pointer(p->dtype, even),
        tdist_of_pointer(TDIST_I32, space->flags), tdist_of_pointer(TDIST_I32, tdist_peer(world, space->flags, after)),
        tdist_of_pointer(TDIST_I32, space->control), tdist_of_integer(world->rank), tdist_of_integer(world->size), tdist_of_integer(m),
        tdist_of_integer(n), tdist_of_integer(k), tdist_of_integer(gap_of(p, box * element)),
        tdist_of_integer(mixed_of(p)),
    };
    const tdist_option options[] = {
        {"HAS_BIAS", NULL, p->shape.has_bias != 0}, {"COLUMNS", NULL, 0}, {"STAGES", NULL, p->stages}, {"BLOCK_M", NULL, BLOCK_M},
        {"BLOCK_N", NULL, p->block_n}, {"BLOCK_K", NULL, BLOCK_K}, {"GROUP_M", NULL, p->shape.group_m},
    };
    return tdist_plan_launch(p->world, "gemm_rs_ws", values, sizeof values / sizeof *values, options, sizeof options / sizeof *options,
                             (uint32_t)p->programs, &p->main);
}

int tdist_gemm_rs_plan(tdist_world *world, const tdist_gemm *shape, tdist_plan **out) {
    tdist_plan *p = NULL;
    int status = tdist_gemm_check(world, shape, out);
    if (status == TDIST_OK && shape->hop_dtype != 0 && shape->hop_dtype != shape->dtype && shape->hop_dtype != TDIST_FP32)
        status = tdist_fail(TDIST_ERR_ARGUMENT, "hop_dtype: expected 0, that of x or TDIST_FP32, found %u", shape->hop_dtype);
    if (status == TDIST_OK)
        status = tdist_plan_create(world, TDIST_OP_GEMM_RS, &p);
    if (status != TDIST_OK)
        return status;
    p->shape = *shape;
    p->dtype = shape->dtype;
    p->hop_dtype = shape->hop_dtype == 0 ? shape->dtype : shape->hop_dtype;
    p->make = make;
    p->kind = TDIST_RING;
    int64_t tiles_m = whole(shape->m, BLOCK_M);
    /* Half as wide where staging is fp32, for want of room, and where a chunk is much less than a wave of tiles. */
    int half = p->hop_dtype == TDIST_FP32 || 4 * tiles_m * whole(shape->n, 256) < 3 * world->sms;
    p->block_n = shape->block_n == 0 ? (half ? 128 : 256) : shape->block_n;
    p->stages = p->hop_dtype == TDIST_FP32 || p->block_n == 256 ? 3 : 5;
    p->method = p->block_n;
    p->shape.group_m = shape->group_m == 0 ? 8 : shape->group_m;
    p->tiles = tiles_m * whole(shape->n, p->block_n);
    p->pitch = tiles_m * BLOCK_M;
    p->programs = (int32_t)least(p->tiles * world->size, world->sms);
    int64_t hops = world->size > 1 ? world->size - 1 : 1;
    return tdist_plan_finish(p, (uint64_t)(hops * p->pitch * shape->n) * tdist_element_bytes(p->hop_dtype),
                             (uint64_t)(2 * hops * p->tiles), out);
}

int tdist_gemm_rs(tdist_plan *plan, tdist_stream stream, const void *x, const void *weight, const void *bias, void *out) {
    void *before = NULL;
    int capturing = 0;
    if (plan == NULL || plan->op != TDIST_OP_GEMM_RS || x == NULL || weight == NULL || out == NULL || (bias == NULL) == (plan->shape.has_bias != 0))
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_gemm_rs: expected its plan, x, weight, out, and a bias where the plan has one");
    int status = tdist_enter(plan->world, &before);
    if (status != TDIST_OK)
        return status;
    if (((uintptr_t)x | (uintptr_t)weight | (uintptr_t)out | (uintptr_t)bias) % 16 != 0)
        status = tdist_fail(TDIST_ERR_TENSOR, "tdist_gemm_rs: expected addresses that are multiples of 16");
    if (status == TDIST_OK)
        status = tdist_plan_ready(plan);
    if (status == TDIST_OK)
        status = tdist_begin(plan->world, plan->kind, stream, &capturing);
    if (status == TDIST_OK) {
        const tdist_space *space = &plan->world->spaces[plan->kind];
        unsigned char *even = space->data, *odd = even + space->half_bytes;
        int after = (plan->world->rank + 1) % plan->world->size;
        const void *next_even = tdist_peer(plan->world, even, after), *next_odd = tdist_peer(plan->world, odd, after);
        const int64_t values[] = {(int64_t)(uintptr_t)x, (int64_t)(uintptr_t)weight, (int64_t)(uintptr_t)out, (int64_t)(uintptr_t)even,
                                  (int64_t)(uintptr_t)odd, (int64_t)(uintptr_t)next_even, (int64_t)(uintptr_t)next_odd,
                                  (int64_t)(uintptr_t)(bias == NULL ? weight : bias)};
        status = tdist_end(plan->world, plan->kind, stream, capturing, tdist_launch_run_with(plan->main, stream, values, 8));
    }
    tdist_leave(plan->world, before);
    return status;
}

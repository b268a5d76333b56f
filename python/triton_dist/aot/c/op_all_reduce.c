/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   all_reduce: one kernel, in one hop or two, by stores that are their own flag or by plain ones. As ops/all_reduce has it. */
#include "tdist_world.h"

enum { VECTOR = 16, LANES = 32, MOST_EACH = 4, MOST_SELF_FLAGGED = 256 };
static const uint64_t KIB = 1 << 10, MIB = 1 << 20;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t whole(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* By size, from measurements on 2 and 4 H200 (ops/exchange/sizes.py); above the last step stores are still what there is. */
static int usual_method(int world, uint64_t bytes) {
    uint64_t one = world <= 2 ? 2 * MIB : world <= 4 ? 64 * KIB : 32 * KIB, two = world <= 2 ? 16 * MIB : MIB;
    return bytes <= one ? TDIST_ONE_SHOT : bytes <= two ? TDIST_TWO_SHOT : TDIST_PUSH;
}

/* One vector a thread on all SMs, in as few warps as that takes; then more vectors a thread. */
static void grid_of_vectors(const tdist_world *world, int64_t count, int64_t *threads, int64_t *each, int64_t *programs, int64_t *rounds) {
    int64_t most_threads = world->size == 2 ? 1024 : 512, most_each = world->size <= 4 ? MOST_EACH : 1;
    int64_t sms = least(world->sms, MOST_SELF_FLAGGED);
    *threads = 4 * LANES;
    *each = 1;
    while (*threads < most_threads && *threads * sms < count)
        *threads *= 2;
    while (*each < most_each && *threads * sms * *each < count)
        *each *= 2;
    *programs = most(1, least(whole(count, *threads * *each), sms));
    *rounds = whole(count, *threads * *each * *programs);
}

static void grid_of_blocks(const tdist_world *world, int64_t n, int64_t *block, int64_t *blocks, int64_t *programs, int64_t *warps) {
    int small = (uint64_t)n * 2 < 2 * MIB;
    int64_t bytes = (int64_t)(world->size == 2 ? (small ? 8 * KIB : 16 * KIB) : (small ? 4 * KIB : 8 * KIB));
    *warps = world->size == 2 && !small ? 16 : 8;
    *block = least(bytes / 2, (int64_t)tdist_power_of_two((uint64_t)n));
    *blocks = whole(n, *block);
    *programs = least(least(*blocks, 2 * world->sms), TDIST_MAX_PROGRAMS);
}

static int make_self_flagged(tdist_plan *p) {
    tdist_world *world = p->world;
    const tdist_space *space = &world->spaces[p->kind];
    int64_t vectors = whole(p->count * 2, VECTOR), threads, each, programs, rounds;
    int two = p->method == TDIST_TWO_SHOT;
    int64_t part = two ? whole(vectors, world->size) : vectors;
    grid_of_vectors(world, part, &threads, &each, &programs, &rounds);
    const tdist_value values[] = {
        tdist_of_pointer(p->dtype, space->data), tdist_of_pointer(p->dtype, space->data), tdist_of_pointer(TDIST_I32, space->data),
        tdist_of_integer((int64_t)space->half_bytes / 4), tdist_of_pointer(TDIST_I32, space->control),
        tdist_of_pointer(TDIST_I32, world->team), tdist_of_integer(p->count), tdist_of_integer(part), tdist_of_integer(rounds),
    };
    const tdist_option options[] = {
        {"OP", "sum", 0}, {"WORLD", NULL, world->size}, {"THREADS", NULL, (double)threads}, {"EACH", NULL, (double)each}, {"WHOLE", NULL, 1},
    };
    return tdist_plan_launch(p->world, two ? "all_reduce_two_hops" : "all_reduce_one_hop", values, sizeof values / sizeof *values, options, 5, (uint32_t)programs, &p->main);
}

static int make_push(tdist_plan *p) {
    tdist_world *world = p->world;
    const tdist_space *space = &world->spaces[p->kind];
    int two = p->kind == TDIST_PUSH_TWO_HOPS;
    int64_t n = two ? whole(p->count, world->size) : p->count, block, blocks, programs, warps;
    grid_of_blocks(world, n, &block, &blocks, &programs, &warps);
    const tdist_value values[] = {
        tdist_of_pointer(p->dtype, space->data), tdist_of_pointer(p->dtype, space->data), tdist_of_pointer(p->dtype, space->data),
        tdist_of_integer((int64_t)space->half_bytes / 2), tdist_of_pointer(TDIST_I32, space->flags),
        tdist_of_integer((int64_t)space->flag_count / 2), tdist_of_pointer(TDIST_I32, space->control),
        tdist_of_pointer(TDIST_I32, world->team), tdist_of_integer(p->count), tdist_of_integer(blocks),
        tdist_of_integer(whole(blocks, programs)),
    };
    const tdist_option options[] = {
        {"OP", "sum", 0}, {"WORLD", NULL, world->size}, {"BLOCK", NULL, (double)block}, {"num_warps", NULL, (double)warps},
    };
    return tdist_plan_launch(p->world, two ? "all_reduce_push" : "all_reduce_push_one_hop", values, sizeof values / sizeof *values, options, 4, (uint32_t)programs, &p->main);
}

int tdist_all_reduce_plan(tdist_world *world, uint32_t dtype, int64_t count, int method, tdist_plan **out) {
    tdist_plan *p = NULL;
    if (world == NULL || out == NULL || count < 1 || count >= (int64_t)1 << 30 || method < TDIST_AUTO || method > TDIST_PUSH)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_all_reduce_plan: expected a world, 1 to 2^30 elements and a method, found %lld and %d",
                          (long long)count, method);
    if ((dtype != TDIST_BF16 && dtype != TDIST_FP16) || count % 8 != 0)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_all_reduce_plan: expected TDIST_BF16 or TDIST_FP16 and a multiple of 8 elements");
    if (world->size == 1)
        return tdist_fail(TDIST_ERR_UNSUPPORTED, "tdist_all_reduce_plan: a world of one has nothing to reduce");
    int status = tdist_plan_create(world, TDIST_OP_ALL_REDUCE, &p);
    if (status != TDIST_OK)
        return status;
    uint64_t bytes = (uint64_t)count * 2, half, flags = 0;
    p->dtype = dtype;
    p->count = count;
    p->method = method == TDIST_AUTO ? usual_method(world->size, bytes) : method;
    if (p->method == TDIST_PUSH) {
        int64_t block, blocks, programs, warps, one = world->size == 2 && bytes <= 4 * MIB;
        grid_of_blocks(world, one ? count : whole(count, world->size), &block, &blocks, &programs, &warps);
        p->kind = one ? TDIST_PUSH_ONE_HOP : TDIST_PUSH_TWO_HOPS;
        p->make = make_push;
        half = (uint64_t)(world->size * blocks * block * 2);
        flags = (uint64_t)(2 * whole(blocks, programs) * programs * world->size);
    } else {
        uint64_t vectors = bytes / VECTOR, each = (vectors + (uint64_t)world->size - 1) / (uint64_t)world->size;
        p->kind = TDIST_SELF_FLAGGED;
        p->make = make_self_flagged;
        half = tdist_power_of_two(VECTOR * (uint64_t)world->size * (p->method == TDIST_TWO_SHOT ? 2 * each : vectors));
    }
    return tdist_plan_finish(p, half, flags, out);
}

int tdist_all_reduce(tdist_plan *plan, tdist_stream stream, const void *x, void *out) {
    void *before = NULL;
    int capturing = 0;
    if (plan == NULL || plan->op != TDIST_OP_ALL_REDUCE || x == NULL || out == NULL || ((uintptr_t)x | (uintptr_t)out) % 16 != 0)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_all_reduce: expected its plan, x and out, at multiples of 16 bytes");
    int status = tdist_enter(plan->world, &before);
    if (status != TDIST_OK)
        return status;
    status = tdist_plan_ready(plan);
    if (status == TDIST_OK)
        status = tdist_begin(plan->world, plan->kind, stream, &capturing);
    if (status == TDIST_OK) {
        const int64_t values[] = {(int64_t)(uintptr_t)x, (int64_t)(uintptr_t)out};
        status = tdist_end(plan->world, plan->kind, stream, capturing, tdist_launch_run_with(plan->main, stream, values, 2));
    }
    tdist_leave(plan->world, before);
    return status;
}

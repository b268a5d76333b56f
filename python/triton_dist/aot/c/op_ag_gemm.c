/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   ag_gemm on the Hopper core: the gather beside one kernel, by the copy engine or by SMs. As ops/ag_gemm has it. */
#include "tdist_world.h"

enum { MAX_PIECES = 4, MOST_SMS = 32, BLOCK_M = 128, BLOCK_K = 64, COPIED_PIECE = 8 << 20, STORED_PIECE = 2 << 20, NARROWEST = 8,
       LEAST_BLOCK = 4096, MOST_BLOCK = 16384, SENDER_WARPS = 16 };
#define CHECK(call, what) do { int code_ = (call); if (code_) return tdist_cuda_failed(what, code_); } while (0)

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t whole(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t row_bytes(const tdist_plan *p) { return p->shape.k * (int64_t)tdist_element_bytes(p->dtype); }

/* A shard is sent in pieces of whole tiles, so that a tile of rows waits for one flag. */
static void cut(tdist_plan *p, int64_t piece_bytes) {
    int64_t wanted = least(least(MAX_PIECES, most(1, p->shape.m * row_bytes(p) / piece_bytes)), p->tiles);
    p->piece_tiles = whole(p->tiles, wanted);
    p->pieces = whole(p->tiles, p->piece_tiles);
}

/* Tiles before the last wave, where that can be split in half tiles and is still a wave; else all. */
static void split_last_wave(tdist_plan *p) {
    int64_t tiles = p->tiles * whole(p->shape.n, p->block_n) * p->world->size;
    int64_t sms = most(1, p->world->sms - p->shape.comm_sms), last = tiles % sms;
    p->wide = p->block_n >= 2 * NARROWEST && 2 * last <= sms ? tiles - last : tiles;
    p->programs = (int32_t)most(1, least(2 * tiles - p->wide, sms));
}

static tdist_tensor in_chunks(const tdist_plan *p, const void *out) {
    int64_t m = p->shape.m, n = p->shape.n;
    return (tdist_tensor){.data = (void *)(uintptr_t)out, .rank = 3, .shape = {p->world->size, m, n}, .strides = {m * n, n, 1}};
}

static int make_sender(tdist_plan *p, const void *x) {
    const tdist_space *space = &p->world->spaces[p->kind];
    int64_t count = p->shape.m * p->shape.k, piece = p->piece_tiles * BLOCK_M * p->shape.k;
    int64_t each = (int64_t)tdist_power_of_two((uint64_t)whole(least(piece, count), p->shape.comm_sms));
    p->block = least(MOST_BLOCK, most(LEAST_BLOCK, each));
    const tdist_value values[] = {
        tdist_of_pointer(p->dtype, x), tdist_of_pointer(p->dtype, space->data), tdist_of_pointer(TDIST_I32, space->flags),
        tdist_of_pointer(TDIST_I32, space->control + TDIST_MAX_PROGRAMS), tdist_of_pointer(TDIST_I32, p->world->team),
        tdist_of_integer(p->half_rows * p->shape.k), tdist_of_integer(count), tdist_of_integer(p->pitch * p->shape.k),
        tdist_of_integer(piece), tdist_of_integer(p->pieces), tdist_of_integer(p->shape.comm_sms),
    };
    const tdist_option options[] = {{"BLOCK", NULL, (double)p->block}, {"MOST", NULL, MOST_SMS}, {"num_warps", NULL, SENDER_WARPS}};
    return tdist_plan_launch(p->world, "ag_gemm_push", values, sizeof values / sizeof *values, options, 3, (uint32_t)p->shape.comm_sms, &p->sender);
}

/* The launches with addresses that calls replace: the workspace is aligned as they have to be. */
static int make(tdist_plan *p) {
    const tdist_space *space = &p->world->spaces[p->kind];
    int by_sms = p->kind == TDIST_BY_SMS;
    int64_t rows = p->world->size * p->pitch;
    p->half_rows = whole((int64_t)space->half_bytes, row_bytes(p));
    const void *any = space->data;
    const tdist_tensor x = tdist_matrix(any, p->shape.m, p->shape.k), weight = tdist_matrix(any, p->shape.n, p->shape.k),
                       out = in_chunks(p, any), gathered = tdist_matrix(any, by_sms ? p->half_rows + rows : rows, p->shape.k);
    tdist_value values[32] = {
        tdist_of_tensor(p->dtype, &x), tdist_of_tensor(p->dtype, &gathered), tdist_of_tensor(p->dtype, &weight),
        tdist_of_tensor(p->dtype, &weight), tdist_of_tensor(p->dtype, &out), tdist_of_tensor(p->dtype, &out),
        tdist_of_pointer(p->dtype, any), tdist_of_pointer(TDIST_I32, space->flags),
    };
    size_t n = 8;
    if (by_sms) {
        values[n++] = tdist_of_pointer(TDIST_I32, space->control);
        values[n++] = tdist_of_integer(p->half_rows);
        values[n++] = tdist_of_integer(p->shape.comm_sms);
    } else {
        values[n++] = tdist_of_integer(0);
    }
    const int64_t rest[] = {p->world->rank, p->world->size, p->shape.m, p->shape.n, p->shape.k, p->pieces, p->piece_tiles, p->wide};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        values[n++] = tdist_of_integer(rest[i]);
    const tdist_option options[] = {
        {"HAS_BIAS", NULL, p->shape.has_bias != 0}, {"COLUMNS", NULL, 0}, {"NARROW", NULL, p->block_n >= 2 * NARROWEST},
        {"GATED", NULL, 0},
        {"STAGES", NULL, p->stages}, {"BLOCK_M", NULL, BLOCK_M}, {"BLOCK_N", NULL, p->block_n}, {"BLOCK_K", NULL, BLOCK_K},
        {"GROUP_M", NULL, p->shape.group_m},
    };
    int status = by_sms ? make_sender(p, any) : TDIST_OK;
    if (status != TDIST_OK)
        return status;
    return tdist_plan_launch(p->world, by_sms ? "ag_gemm_by_sms_ws" : "ag_gemm_ws", values, n, options, sizeof options / sizeof *options,
                             (uint32_t)p->programs, &p->main);
}

int tdist_ag_gemm_plan(tdist_world *world, const tdist_gemm *shape, tdist_plan **out) {
    tdist_plan *p = NULL;
    uint64_t flags, bytes;
    int status = tdist_gemm_check(world, shape, out);
    if (status == TDIST_OK && (shape->comm_sms < 0 || shape->comm_sms > MOST_SMS))
        status = tdist_fail(TDIST_ERR_ARGUMENT, "comm_sms: expected 0 to %d, found %d", MOST_SMS, shape->comm_sms);
    if (status == TDIST_OK)
        status = tdist_plan_create(world, TDIST_OP_AG_GEMM, &p);
    if (status != TDIST_OK)
        return status;
    p->shape = *shape;
    p->dtype = shape->dtype;
    p->make = make;
    p->kind = shape->comm_sms > 0 ? TDIST_BY_SMS : TDIST_BY_COPIES;
    p->method = shape->comm_sms;
    p->block_n = shape->block_n == 0 ? 256 : shape->block_n;
    p->stages = p->block_n == 256 ? 3 : 5;
    p->shape.group_m = shape->group_m == 0 ? 8 : shape->group_m;
    p->tiles = whole(shape->m, BLOCK_M);
    p->pitch = p->tiles * BLOCK_M;
    cut(p, p->kind == TDIST_BY_SMS ? STORED_PIECE : COPIED_PIECE);
    split_last_wave(p);
    bytes = (uint64_t)(world->size * p->pitch * row_bytes(p));
    flags = (uint64_t)world->size * MAX_PIECES;
    if (p->kind == TDIST_BY_SMS) {
        bytes += (uint64_t)row_bytes(p);                /* the second half begins with a whole row */
        flags *= 2 * MOST_SMS;
    }
    return tdist_plan_finish(p, bytes, flags, out);
}

/* Each rank begins with the one that works on its rows first. */
static int push(const tdist_plan *p, const unsigned char *x, const tdist_space *space) {
    const tdist_world *world = p->world;
    unsigned char *half = space->data + (space->epoch & 1) * (int64_t)space->half_bytes;
    int64_t row = row_bytes(p), piece_rows = p->piece_tiles * BLOCK_M;
    for (int hop = 1; hop < world->size; hop++) {
        int peer = (world->rank - hop + world->size) % world->size;
        unsigned char *to = (unsigned char *)tdist_peer(world, half, peer) + world->rank * p->pitch * row;
        int32_t *flags = tdist_peer(world, space->flags, peer);
        for (int64_t piece = 0; piece < p->pieces; piece++) {
            int64_t start = piece * piece_rows, end = least(p->shape.m, start + piece_rows);
            CHECK(world->host->copy((tdist_cu_address)(uintptr_t)(to + start * row), (tdist_cu_address)(uintptr_t)(x + start * row),
                                    (size_t)((end - start) * row), world->side), "cuMemcpyAsync");
            CHECK(world->host->write32(world->side, (tdist_cu_address)(uintptr_t)(flags + piece * world->size + world->rank),
                                       (uint32_t)space->epoch, 0), "cuStreamWriteValue32");
        }
    }
    return TDIST_OK;
}

static int run(tdist_plan *p, tdist_stream stream, const void *x, const void *weight, const void *bias, void *out) {
    tdist_world *world = p->world;
    const tdist_space *space = &world->spaces[p->kind];
    const int64_t w = (int64_t)(uintptr_t)weight, to = (int64_t)(uintptr_t)out, b = bias == NULL ? w : (int64_t)(uintptr_t)bias;
    const int64_t half = space->epoch & 1 ? (int64_t)space->half_bytes : 0;
    const int64_t gathered = (int64_t)(uintptr_t)space->data + (p->kind == TDIST_BY_COPIES ? half : 0);
    const int64_t values[] = {(int64_t)(uintptr_t)x, gathered, w, w, to, to, b, (int64_t)(uintptr_t)space->flags, space->epoch};
    int status = tdist_fork(world, stream);
    if (status == TDIST_OK)
        status = p->kind == TDIST_BY_COPIES ? push(p, x, space) : tdist_launch_run_with(p->sender, world->side, values, 1);
    if (status == TDIST_OK && p->kind == TDIST_BY_SMS && world->sms <= p->shape.comm_sms)
        status = tdist_join(world, stream);             /* no SM for a GEMM beside it */
    if (status == TDIST_OK)
        status = tdist_launch_run_with(p->main, stream, values, p->kind == TDIST_BY_COPIES ? 9 : 8);
    if (status == TDIST_OK)
        status = tdist_join(world, stream);
    return status;
}

int tdist_ag_gemm(tdist_plan *plan, tdist_stream stream, const void *x, const void *weight, const void *bias, void *out) {
    void *before = NULL;
    int capturing = 0;
    if (plan == NULL || plan->op != TDIST_OP_AG_GEMM || x == NULL || weight == NULL || out == NULL || (bias == NULL) == (plan->shape.has_bias != 0))
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_ag_gemm: expected its plan, x, weight, out, and a bias where the plan has one");
    int status = tdist_enter(plan->world, &before);
    if (status != TDIST_OK)
        return status;
    if (((uintptr_t)x | (uintptr_t)weight | (uintptr_t)out | (uintptr_t)bias) % 16 != 0)
        status = tdist_fail(TDIST_ERR_TENSOR, "tdist_ag_gemm: expected addresses that are multiples of 16");
    if (status == TDIST_OK)
        status = tdist_plan_ready(plan);
    if (status == TDIST_OK)
        status = tdist_begin(plan->world, plan->kind, stream, &capturing);
    if (status == TDIST_OK)
        status = tdist_end(plan->world, plan->kind, stream, capturing, run(plan, stream, x, weight, bias, out));
    tdist_leave(plan->world, before);
    return status;
}

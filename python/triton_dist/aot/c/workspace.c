/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Workspaces: the symmetric buffers, flags and epochs that calls of a kind share (protocol rules 6 to 12 of docs/protocol.md).

   Kernels count their calls in `control` themselves, one copy a program, so that graphs can replay them; pushes by the copy engine
   carry an epoch that the host counts. */
#include <string.h>

#include "tdist_world.h"

#define GRAIN ((uint64_t)1 << 16)
#define RENEW_EVERY ((uint64_t)1 << 29)     /* calls; a flag that none has written for 2^31 would look new */
#define CHECK(call, what) do { int code_ = (call); if (code_) return tdist_cuda_failed(what, code_); } while (0)

static int fill(tdist_world *world, void *to, int32_t value, uint64_t words) {
    CHECK(world->host->fill32((tdist_cu_address)(uintptr_t)to, (unsigned)value, words, world->side), "cuMemsetD32Async");
    CHECK(world->cuda->stream_wait(world->side), "cuStreamSynchronize");
    return TDIST_OK;
}

/* Collective: another buffer in place of *buffer, which a graph may still use. */
static int renew(tdist_world *world, tdist_space *space, void **buffer, uint64_t bytes) {
    void *old = *buffer;
    int status = TDIST_OK;
    if (old != NULL && !space->captured)
        status = tdist_heap_give(world, old);           /* waits for the device */
    *buffer = NULL;
    space->generation++;
    if (status == TDIST_OK)
        status = tdist_heap_take(world, bytes, buffer);
    return status;
}

int tdist_reserve(tdist_world *world, tdist_kind kind, uint64_t half_bytes, uint64_t flags) {
    tdist_space *space = &world->spaces[kind];
    int status = TDIST_OK;
    void *found;
    if (space->poisoned)
        return tdist_fail(TDIST_ERR_POISONED, "an earlier call failed after it had begun, so peers may be one call ahead");
    if (space->control == NULL) {
        tdist_cu_address control = 0;
        uint64_t words = (kind == TDIST_BY_SMS ? 2 : 1) * TDIST_MAX_PROGRAMS;
        CHECK(world->cuda->allocate(&control, words * sizeof(int32_t)), "cuMemAlloc");
        space->control = (int32_t *)(uintptr_t)control;
        status = fill(world, space->control, 0, words);
    }
    if (status == TDIST_OK && (space->data == NULL || half_bytes > space->half_bytes)) {
        space->half_bytes = (half_bytes + GRAIN - 1) / GRAIN * GRAIN;
        found = space->data;
        status = renew(world, space, &found, 2 * space->half_bytes);
        space->data = found;
        space->half_bytes = status == TDIST_OK ? space->half_bytes : 0;
    }
    if (status == TDIST_OK && flags > 0 && (space->flags == NULL || flags > space->flag_count)) {
        space->flag_count = (flags + 1023) / 1024 * 1024;
        found = space->flags;
        status = renew(world, space, &found, space->flag_count * sizeof(int32_t));
        space->flags = found;
        space->flag_count = status == TDIST_OK ? space->flag_count : 0;
        if (status == TDIST_OK && kind == TDIST_BY_COPIES && (status = fill(world, space->flags, space->epoch, space->flag_count)) == TDIST_OK)
            status = tdist_world_barrier(world);
    }
    return status;
}

/* Collective, once in 2^29 calls: all flags are as old as the last call. */
static int age(tdist_world *world, tdist_space *space) {
    int status = tdist_world_wait(world);
    if (status == TDIST_OK)
        status = fill(world, space->flags, space->epoch, space->flag_count);
    return status == TDIST_OK ? tdist_world_barrier(world) : status;
}

int tdist_begin(tdist_world *world, tdist_kind kind, tdist_stream stream, int *capturing) {
    tdist_space *space = &world->spaces[kind];
    int status = TDIST_OK;
    *capturing = 0;
    if (space->poisoned)
        return tdist_fail(TDIST_ERR_POISONED, "an earlier call failed after it had begun, so peers may be one call ahead");
    if (stream != NULL)
        CHECK(world->cuda->capturing(stream, capturing), "cuStreamIsCapturing");
    if (*capturing) {
        if (kind == TDIST_BY_COPIES)
            return tdist_fail(TDIST_ERR_CAPTURE, "pushes by the copy engine carry the number of the call: make a plan with comm_sms");
        space->captured = 1;                            /* and order between streams is that of the graph's replays */
        return TDIST_OK;
    }
    unsigned long long id = 0;
    CHECK(world->host->stream_id(stream, &id), "cuStreamGetId");
    if (world->last != id)                              /* before the first call the event has not been recorded: no wait */
        CHECK(world->host->event_wait(stream, world->ended, 0), "cuStreamWaitEvent");
    if (kind == TDIST_BY_COPIES) {
        if (++space->calls % RENEW_EVERY == 0)
            status = age(world, space);
        space->epoch = (int32_t)((uint32_t)space->epoch + 1u);
    }
    return status;
}

/* Its event stands for the call, since the program may destroy the stream. */
static int mark_end(tdist_world *world, tdist_stream stream) {
    CHECK(world->host->stream_id(stream, &world->last), "cuStreamGetId");
    CHECK(world->host->event_record(world->ended, stream), "cuEventRecord");
    return TDIST_OK;
}

int tdist_end(tdist_world *world, tdist_kind kind, tdist_stream stream, int capturing, int status) {
    int marked = capturing ? TDIST_OK : mark_end(world, stream);
    status = status == TDIST_OK ? marked : status;
    if (status != TDIST_OK)
        world->spaces[kind].poisoned = 1;
    return status;
}

int tdist_fork(tdist_world *world, tdist_stream stream) {
    CHECK(world->host->event_record(world->forked, stream), "cuEventRecord");
    CHECK(world->host->event_wait(world->side, world->forked, 0), "cuStreamWaitEvent");
    return TDIST_OK;
}

int tdist_join(tdist_world *world, tdist_stream stream) {
    CHECK(world->host->event_record(world->joined, world->side), "cuEventRecord");
    CHECK(world->host->event_wait(stream, world->joined, 0), "cuStreamWaitEvent");
    return TDIST_OK;
}

void tdist_spaces_destroy(tdist_world *world) {
    for (int kind = 0; kind < TDIST_KINDS; kind++)
        if (world->spaces[kind].control != NULL)
            world->cuda->release((tdist_cu_address)(uintptr_t)world->spaces[kind].control);
    memset(world->spaces, 0, sizeof world->spaces);     /* the rest lies in the heap */
}

/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Joining and leaving a world. */
#include <stdlib.h>
#include <string.h>

#include "tdist_world.h"

enum { USUAL_TIMEOUT_MS = 60000, LONGEST_TIMEOUT_MS = 1 << 30, SMS = 16, WRITES_FLAGS = 122, NON_BLOCKING = 1, NO_TIMING = 2, HIGH_PRIORITY = -1 };

#define TEAM_DELTAS (2 + TDIST_MAX_WORLD)               /* runtime/workspace.py has the same words */
#define TEAM_PEERS (TEAM_DELTAS + 2 * TDIST_MAX_WORLD)
#define TEAM_WORDS (TEAM_PEERS + 2 * TDIST_MAX_WORLD)

#define CHECK(call, what) do { int code_ = (call); if (code_) return tdist_cuda_failed(what, code_); } while (0)

/* What ranks compare when they meet. */
typedef struct greeting {
    uint64_t heap_bytes;
    int32_t version, writes_flags;
    tdist_cu_uuid uuid;
} greeting;

int tdist_cuda_failed(const char *call, int code) { return tdist_fail_driver(call, code); }

int tdist_enter(const tdist_world *world, void **before) {
    CHECK(world->cuda->context(before), "cuCtxGetCurrent");
    if (*before != world->context)
        CHECK(world->host->context_set(world->context), "cuCtxSetCurrent");
    return TDIST_OK;
}

void tdist_leave(const tdist_world *world, void *before) {
    if (before != world->context)
        world->host->context_set(before);
}

/* TRITON_DIST_SHARE_GPUS, as for Python's worlds: ranks take turns on a device, so results are right and times say nothing. */
static int shares_devices(void) {
    const char *word = getenv("TRITON_DIST_SHARE_GPUS");
    return word != NULL && word[0] != '\0' && strcmp(word, "0") != 0;
}

static int meet(tdist_world *world) {
    greeting mine = {.heap_bytes = world->heap_bytes, .version = TDIST_VERSION}, all[TDIST_MAX_WORLD];
    int handle = 0, can = 0;
    CHECK(world->host->device_uuid(&mine.uuid, world->device), "cuDeviceGetUuid");
    CHECK(world->cuda->attribute(&mine.writes_flags, WRITES_FLAGS, world->device), "cuDeviceGetAttribute");
    int status = tdist_hub_exchange(&world->hub, "meeting", &mine, sizeof mine, all);
    for (int r = 0; status == TDIST_OK && r < world->size; r++) {
        if (all[r].version != mine.version || all[r].heap_bytes != mine.heap_bytes)
            return tdist_fail(TDIST_ERR_MISMATCH, "rank %d has version %d and a heap of %llu bytes, this rank %d and %llu", r,
                              all[r].version, (unsigned long long)all[r].heap_bytes, mine.version, (unsigned long long)mine.heap_bytes);
        for (int other = 0; other < r && !shares_devices(); other++)
            if (memcmp(&all[other].uuid, &all[r].uuid, sizeof mine.uuid) == 0)
                return tdist_fail(TDIST_ERR_MISMATCH, "ranks %d and %d have the same device: their kernels would wait for each other "
                                  "in vain; TRITON_DIST_SHARE_GPUS=1 lets them take turns", other, r);
    }
    /* A peer's device may be hidden from this process; then mapping its memory shows whether it can be reached. */
    for (int ordinal = 0; status == TDIST_OK && world->host->device(&handle, ordinal) == 0; ordinal++) {
        tdist_cu_uuid uuid;
        if (handle == world->device || world->host->device_uuid(&uuid, handle) != 0)
            continue;
        for (int r = 0; r < world->size; r++)
            if (memcmp(&uuid, &all[r].uuid, sizeof uuid) == 0 && (world->host->can_access(&can, world->device, handle) || !can))
                return tdist_fail(TDIST_ERR_UNSUPPORTED, "the device of rank %d cannot load and store memory of rank %d's", world->rank, r);
    }
    return status;
}

/* What kernels read: the context global, and the team of all ranks. */
static int tell_kernels(tdist_world *world) {
    struct {
        int32_t rank, size, kernel, reserved;
        int64_t timeout_ns, diagnostics, pad, none;       /* none: the base that rank -1 would have, 0 */
        uint64_t bases[TDIST_MAX_WORLD];
    } context;
    int32_t words[TEAM_WORDS] = {world->size, world->rank};
    tdist_cu_address team = 0;
    memset(&context, 0, sizeof context);
    context.rank = world->rank;
    context.size = world->size;
    context.pad = (int64_t)(uintptr_t)world->bases[world->rank];
    for (int r = 0; r < world->size; r++) {
        int after = (world->rank + r) % world->size;
        int64_t to = world->bases[r] - world->bases[world->rank], to_after = world->bases[after] - world->bases[world->rank];
        context.bases[r] = (uint64_t)(uintptr_t)world->bases[r];
        words[2 + r] = r;
        memcpy(&words[TEAM_DELTAS + 2 * r], &to, sizeof to);
        memcpy(&words[TEAM_PEERS + 2 * r], &to_after, sizeof to_after);
    }
    CHECK(world->cuda->allocate(&team, sizeof words), "cuMemAlloc");
    world->team = (int32_t *)(uintptr_t)team;
    CHECK(world->cuda->to_device(team, words, sizeof words, world->side), "cuMemcpyHtoDAsync");
    CHECK(world->cuda->stream_wait(world->side), "cuStreamSynchronize");
    _Static_assert(sizeof context == TDIST_CONTEXT_BYTES, "what kernels have as tdist_ctx");
    return tdist_own_world(world, &context);
}

static int join(tdist_world *world, const tdist_unique_id *id, int timeout_ms, uint64_t heap_bytes) {
    int status = tdist_hub_open(&world->hub, id, world->rank, world->size, timeout_ms);
    world->heap_bytes = heap_bytes;
    if (status == TDIST_OK)
        status = meet(world);
    if (status == TDIST_OK)
        status = tdist_heap_create(world, heap_bytes);
    if (status != TDIST_OK)
        return status;
    CHECK(world->cuda->attribute(&world->sms, SMS, world->device), "cuDeviceGetAttribute");
    CHECK(world->cuda->stream_create(&world->side, NON_BLOCKING, HIGH_PRIORITY), "cuStreamCreateWithPriority");
    CHECK(world->host->event_create(&world->forked, NO_TIMING), "cuEventCreate");
    CHECK(world->host->event_create(&world->joined, NO_TIMING), "cuEventCreate");
    CHECK(world->host->event_create(&world->ended, NO_TIMING), "cuEventCreate");
    status = tell_kernels(world);
    return status == TDIST_OK ? tdist_world_barrier(world) : status;
}

/* All that this rank holds, in its context; waits for nobody. */
static void give_back(tdist_world *world) {
    void *const events[] = {world->forked, world->joined, world->ended};
    tdist_disown_world(world);
    tdist_spaces_destroy(world);
    if (world->team != NULL)
        world->cuda->release((tdist_cu_address)(uintptr_t)world->team);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i] != NULL)
            world->host->event_destroy(events[i]);
    if (world->side != NULL)
        world->cuda->stream_destroy(world->side);
    tdist_heap_destroy(world);
}

/* The context that was current, `before`, is current again. */
static void destroy(tdist_world *world, void *before) {
    give_back(world);
    tdist_leave(world, before);
    tdist_hub_close(&world->hub);
    world->host->primary_release(world->device);
    free(world->blocks);
    free(world);
}

int tdist_world_create(tdist_world **out, const tdist_unique_id *id, int rank, int size, int device, const tdist_world_options *options) {
    const tdist_cuda *cuda = NULL;
    const tdist_cuda_host *host = NULL;
    void *before = NULL;
    int handle = 0;
    if (out == NULL || id == NULL || size < 1 || size > TDIST_MAX_WORLD || rank < 0 || rank >= size)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_world_create: expected an id, and a rank of 1 to %d; found rank %d of %d",
                          TDIST_MAX_WORLD, rank, size);
    if (options != NULL && options->struct_size != sizeof *options)
        return tdist_fail(TDIST_ERR_VERSION, "tdist_world_options: expected a struct_size of %zu, found %u", sizeof *options,
                          options->struct_size);
    int status = tdist_get_cuda_host(&host);
    if (status == TDIST_OK)
        status = tdist_get_cuda(&cuda);
    if (status != TDIST_OK)
        return status;
    int code = host->device(&handle, device);
    if (code)
        return tdist_fail(TDIST_ERR_ARGUMENT, "device: expected one of the visible devices, found %d", device);
    tdist_world *world = calloc(1, sizeof *world);
    if (world == NULL)
        return tdist_fail(TDIST_ERR_MEMORY, "no memory for a world");
    *world = (tdist_world){.cuda = cuda, .host = host, .device = handle, .rank = rank, .size = size, .hub = {.listener = -1}};
    for (int r = 0; r < TDIST_MAX_WORLD; r++)
        world->hub.sockets[r] = -1;
    code = host->primary_retain(&world->context, handle);
    if (code) {
        free(world);
        return tdist_cuda_failed("cuDevicePrimaryCtxRetain", code);
    }
    status = tdist_enter(world, &before);
    if (status == TDIST_OK) {
        uint64_t bytes = options != NULL && options->heap_bytes > 0 ? options->heap_bytes : (uint64_t)1 << 30;
        uint32_t timeout = options != NULL && options->timeout_ms > 0 ? options->timeout_ms : USUAL_TIMEOUT_MS;
        status = join(world, id, timeout < LONGEST_TIMEOUT_MS ? (int)timeout : LONGEST_TIMEOUT_MS, bytes);
    }
    if (status != TDIST_OK) {
        destroy(world, before);
        return status;
    }
    tdist_leave(world, before);
    *out = world;
    return TDIST_OK;
}

int tdist_world_wait(tdist_world *world) {
    CHECK(world->host->context_wait(), "cuCtxSynchronize");
    return tdist_world_barrier(world);
}

int tdist_world_destroy(tdist_world *world) {
    void *before = NULL;
    if (world == NULL)
        return TDIST_OK;
    int status = tdist_enter(world, &before);
    if (status == TDIST_OK)
        status = tdist_world_wait(world);               /* a peer may still be storing into this heap */
    destroy(world, before);
    return status;
}

int tdist_world_rank(const tdist_world *world) { return world == NULL ? -1 : world->rank; }
int tdist_world_size(const tdist_world *world) { return world == NULL ? -1 : world->size; }

int tdist_world_barrier(tdist_world *world) {
    char all[TDIST_MAX_WORLD], mine = 1;
    if (world == NULL)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_world_barrier: no world");
    return tdist_hub_exchange(&world->hub, "barrier", &mine, sizeof mine, all);
}

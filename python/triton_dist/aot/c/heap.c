/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   The symmetric heap: one allocation on every device, mapped by all ranks, in which an object lies at the same offset everywhere.
   An allocation travels as a file descriptor. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tdist_world.h"

enum { PINNED = 1, FILE_DESCRIPTOR = 1, ON_DEVICE = 1, RECOMMENDED = 1, READ_WRITE = 3 };
#define ALIGNMENT 256u

#define CHECK(call, what) do { int code_ = (call); if (code_) return tdist_cuda_failed(what, code_); } while (0)

/* Maps a handle, and gives this device access. The mapping keeps the memory when the handle has been released. */
static int map(tdist_world *world, unsigned long long handle, int rank) {
    tdist_cu_access access = {{ON_DEVICE, world->device}, READ_WRITE};
    tdist_cu_address address = 0;
    CHECK(world->host->reserve(&address, world->heap_bytes, 0, 0, 0), "cuMemAddressReserve");
    int code = world->host->map(address, world->heap_bytes, 0, handle, 0);
    if (code) {
        world->host->reserve_end(address, world->heap_bytes);
        return tdist_cuda_failed("cuMemMap", code);
    }
    world->bases[rank] = (unsigned char *)(uintptr_t)address;
    CHECK(world->host->set_access(address, world->heap_bytes, &access, 1), "cuMemSetAccess");
    return TDIST_OK;
}

static int map_file(tdist_world *world, int file, int rank) {
    unsigned long long handle = 0;
    CHECK(world->host->memory_import(&handle, (void *)(intptr_t)file, FILE_DESCRIPTOR), "cuMemImportFromShareableHandle");
    int status = map(world, handle, rank);
    world->host->memory_release(handle);
    return status;
}

static int share(tdist_world *world, unsigned long long handle) {
    int file = -1, files[TDIST_MAX_WORLD];
    int status = map(world, handle, world->rank);
    if (status == TDIST_OK && world->size > 1) {
        int code = world->host->memory_export(&file, handle, FILE_DESCRIPTOR, 0);
        status = code ? tdist_cuda_failed("cuMemExportToShareableHandle", code) : TDIST_OK;
    }
    if (status != TDIST_OK)
        return status;
    status = tdist_hub_exchange_files(&world->hub, file, files);
    for (int r = 0; r < world->size; r++) {
        if (files[r] < 0)
            continue;
        if (status == TDIST_OK)
            status = map_file(world, files[r], r);
        close(files[r]);
    }
    if (file >= 0)
        close(file);
    return status;
}

int tdist_heap_create(tdist_world *world, uint64_t bytes) {
    tdist_cu_allocation what = {.type = PINNED, .handle_types = FILE_DESCRIPTOR, .location = {ON_DEVICE, world->device}};
    unsigned long long handle = 0;
    size_t granule = 0;
    CHECK(world->host->granularity(&granule, &what, RECOMMENDED), "cuMemGetAllocationGranularity");
    if (granule == 0)
        return tdist_fail(TDIST_ERR_UNSUPPORTED, "this device has no memory that ranks can share");
    world->heap_bytes = (bytes + granule - 1) / granule * granule;
    int code = world->host->memory_create(&handle, world->heap_bytes, &what, 0);
    if (code == 2)
        return tdist_fail(TDIST_ERR_OUT_OF_HEAP, "the device has no %llu bytes for a heap", (unsigned long long)world->heap_bytes);
    CHECK(code, "cuMemCreate");
    int status = share(world, handle);
    world->host->memory_release(handle);
    if (status != TDIST_OK)
        return status;
    CHECK(world->host->fill32((tdist_cu_address)(uintptr_t)world->bases[world->rank], 0, world->heap_bytes / 4, NULL),
          "cuMemsetD32Async");
    CHECK(world->host->context_wait(), "cuCtxSynchronize");
    return TDIST_OK;                                    /* the barrier that ends tdist_world_create publishes the zeros */
}

void tdist_heap_destroy(tdist_world *world) {
    for (int r = 0; r < world->size; r++) {
        if (world->bases[r] == NULL)
            continue;
        tdist_cu_address address = (tdist_cu_address)(uintptr_t)world->bases[r];
        world->host->unmap(address, world->heap_bytes);
        world->host->reserve_end(address, world->heap_bytes);
        world->bases[r] = NULL;
    }
}

/* The lowest gap, the same on all ranks, since all have had the same objects. */
static uint64_t gap_for(const tdist_world *world, uint64_t bytes, size_t *at) {
    uint64_t start = TDIST_RESERVED;
    for (*at = 0; *at < world->block_count; (*at)++) {
        if (world->blocks[*at].offset - start >= bytes)
            return start;
        start = world->blocks[*at].offset + world->blocks[*at].bytes;
    }
    return world->heap_bytes >= start && world->heap_bytes - start >= bytes ? start : 0;
}

static int agree(tdist_world *world, const char *what, uint64_t a, uint64_t b) {
    uint64_t mine[2] = {a, b}, all[2 * TDIST_MAX_WORLD];
    int status = tdist_hub_exchange(&world->hub, what, mine, sizeof mine, all);
    for (int r = 0; status == TDIST_OK && r < world->size; r++)
        if (memcmp(&all[2 * r], mine, sizeof mine) != 0)
            status = tdist_fail(TDIST_ERR_MISMATCH, "%s: rank %d has %llu at %llu, this rank %llu at %llu", what, r,
                                (unsigned long long)all[2 * r], (unsigned long long)all[2 * r + 1], (unsigned long long)a,
                                (unsigned long long)b);
    return status;
}

int tdist_heap_take(tdist_world *world, size_t bytes, void **out) {
    uint64_t need = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t at = 0;
    need = need < ALIGNMENT ? ALIGNMENT : need;
    uint64_t offset = bytes > world->heap_bytes ? 0 : gap_for(world, need, &at);
    int status = agree(world, "an allocation", bytes, offset);
    if (status != TDIST_OK)
        return status;
    if (offset == 0)
        return tdist_fail(TDIST_ERR_OUT_OF_HEAP, "%zu bytes find no room in a heap of %llu: give the world a larger one", bytes,
                          (unsigned long long)world->heap_bytes);
    if (world->block_count == world->block_room) {
        size_t room = world->block_room == 0 ? 16 : 2 * world->block_room;
        tdist_block_of_heap *more = realloc(world->blocks, room * sizeof *more);
        if (more == NULL)
            return tdist_fail(TDIST_ERR_MEMORY, "no memory for the heap's list");
        world->blocks = more;
        world->block_room = room;
    }
    memmove(&world->blocks[at + 1], &world->blocks[at], (world->block_count - at) * sizeof *world->blocks);
    world->blocks[at] = (tdist_block_of_heap){offset, need};
    world->block_count++;
    unsigned char *found = world->bases[world->rank] + offset;
    CHECK(world->host->fill32((tdist_cu_address)(uintptr_t)found, 0, need / 4, world->side), "cuMemsetD32Async");
    CHECK(world->cuda->stream_wait(world->side), "cuStreamSynchronize");
    status = tdist_world_barrier(world);                /* nobody stores what its owner has yet to clear */
    *out = found;
    return status;
}

int tdist_heap_give(tdist_world *world, void *address) {
    uint64_t offset = (uint64_t)((unsigned char *)address - world->bases[world->rank]);
    size_t at = 0;
    while (at < world->block_count && world->blocks[at].offset != offset)
        at++;
    CHECK(world->host->context_wait(), "cuCtxSynchronize");
    int status = agree(world, "a free", offset, at < world->block_count);
    if (status != TDIST_OK)
        return status;
    if (at == world->block_count)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_free: expected what tdist_alloc has given, and once");
    world->block_count--;
    memmove(&world->blocks[at], &world->blocks[at + 1], (world->block_count - at) * sizeof *world->blocks);
    return TDIST_OK;
}

int tdist_alloc(tdist_world *world, size_t bytes, void **out) {
    void *before = NULL;
    if (world == NULL || out == NULL)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_alloc: no world, or no place for the address");
    int status = tdist_enter(world, &before);
    if (status != TDIST_OK)
        return status;
    status = tdist_heap_take(world, bytes, out);
    tdist_leave(world, before);
    return status;
}

int tdist_free(tdist_world *world, void *address) {
    void *before = NULL;
    if (world == NULL)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_free: no world");
    int status = tdist_enter(world, &before);
    if (status != TDIST_OK)
        return status;
    status = tdist_heap_give(world, address);
    tdist_leave(world, before);
    return status;
}

void *tdist_peer(const tdist_world *world, const void *address, int rank) {
    if (world == NULL || rank < 0 || rank >= world->size)
        return NULL;
    uint64_t offset = (uint64_t)((const unsigned char *)address - world->bases[world->rank]);
    return offset < world->heap_bytes ? world->bases[rank] + offset : NULL;
}

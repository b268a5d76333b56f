/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   host SCENARIO RANKS: forks ranks, each of which plays the scenario and prints what it got. On the mock driver, where copies and
   flags are real and kernels are not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tdist_world.h"

enum { M = 200, N = 256, K = 64 };

static int rank, ranks;
static tdist_unique_id id, ids[3];
static tdist_world *world;

static int told(const char *what, int status) {
    printf("rank %d: %s: %s%s%s\n", rank, what, tdist_status_name(status), status ? ": " : "", status ? tdist_last_error() : "");
    fflush(stdout);
    return status;
}

#define EXPECT(condition) do { if (!(condition)) { printf("rank %d: line %d: not %s: %s\n", rank, __LINE__, #condition, \
    tdist_last_error()); exit(3); } } while (0)

static int join(int as, int size, int device, uint64_t heap) {
    tdist_world_options options = {.struct_size = sizeof options, .timeout_ms = 1500, .heap_bytes = heap};
    return tdist_world_create(&world, &id, as, size, device, &options);
}

static tdist_gemm gemm(int comm_sms) {
    return (tdist_gemm){.struct_size = sizeof(tdist_gemm), .dtype = TDIST_BF16, .m = M, .n = N, .k = K, .has_bias = 1, .comm_sms = comm_sms};
}

static void *memory(size_t bytes) {
    tdist_cu_address found = 0;
    EXPECT(world->cuda->allocate(&found, bytes) == 0);
    memset((void *)(uintptr_t)found, 0, bytes);
    return (void *)(uintptr_t)found;
}

static void release(void *address) { world->cuda->release((tdist_cu_address)(uintptr_t)address); }

static void heap_objects(void) {
    int32_t *a = NULL, *b = NULL, *again = NULL;
    EXPECT(tdist_alloc(world, 1000, (void **)&a) == TDIST_OK && tdist_alloc(world, 4, (void **)&b) == TDIST_OK);
    for (int i = 0; i < 250; i++)
        EXPECT(a[i] == 0);
    EXPECT(tdist_world_barrier(world) == TDIST_OK);
    for (int r = 0; r < ranks; r++)
        ((int32_t *)tdist_peer(world, a, r))[rank] = 100 * rank + r;
    EXPECT(tdist_world_barrier(world) == TDIST_OK);
    for (int r = 0; r < ranks; r++)
        EXPECT(a[r] == 100 * r + rank);
    EXPECT(tdist_peer(world, &rank, 0) == NULL && tdist_peer(world, a, ranks) == NULL);
    EXPECT(tdist_free(world, a) == TDIST_OK);
    EXPECT(tdist_alloc(world, 1024, (void **)&again) == TDIST_OK && again == a && again[rank] == 0);
    EXPECT(tdist_free(world, again) == TDIST_OK && tdist_free(world, b) == TDIST_OK && tdist_free(world, b) == TDIST_ERR_ARGUMENT);
}

/* After the push of call `epoch` every chunk but the own one has arrived, and a flag for each of its pieces. */
static void gathered(const tdist_plan *plan, int epoch) {
    const tdist_space *space = &world->spaces[TDIST_BY_COPIES];
    const unsigned char *half = space->data + (epoch & 1) * space->half_bytes;
    EXPECT(space->epoch == epoch && plan->pieces == 1 && plan->pitch == 256);
    for (int r = 0; r < ranks; r++) {
        if (r == rank)
            continue;
        const unsigned char *chunk = half + r * plan->pitch * K * 2;
        for (int i = 0; i < M * K * 2; i++)
            EXPECT(chunk[i] == (unsigned char)(r + 16 * epoch));
        EXPECT(chunk[M * K * 2] == 0 && space->flags[r] == epoch);
    }
    EXPECT(tdist_world_barrier(world) == TDIST_OK);     /* before a peer's next call sets the flag again */
}

static void ops(void) {
    tdist_plan *copies = NULL, *sms = NULL, *larger = NULL, *ring = NULL, *one = NULL, *two = NULL, *push = NULL;
    void *stream = NULL;
    tdist_gemm shape = gemm(0);
    EXPECT(told("world", join(rank, ranks, rank, 64 << 20)) == TDIST_OK);
    void *before = NULL;
    EXPECT(world->host->context_set(world->context) == 0 && tdist_enter(world, &before) == TDIST_OK);
    heap_objects();
    unsigned char *x = memory(ranks * M * K * 2), *w = memory(N * K * 2), *bias = memory(N * 2), *out = memory(ranks * M * N * 2);
    EXPECT(world->cuda->stream_create(&stream, 1, 0) == 0);
    EXPECT(told("ag_gemm plan", tdist_ag_gemm_plan(world, &shape, &copies)) == TDIST_OK);
    printf("rank %d: variant: %s\n", rank, tdist_launch_key(copies->main));
    for (int call = 1; call <= 3; call++) {
        memset(x, rank + 16 * call, M * K * 2);
        EXPECT(tdist_ag_gemm(copies, call == 2 ? NULL : stream, x, w, bias, out) == TDIST_OK);
        EXPECT(tdist_world_barrier(world) == TDIST_OK);
        gathered(copies, call);
    }
    EXPECT(told("without a bias", tdist_ag_gemm(copies, stream, x, w, NULL, out)) == TDIST_ERR_ARGUMENT);
    EXPECT(told("off by two bytes", tdist_ag_gemm(copies, stream, x + 2, w, bias, out)) == TDIST_ERR_TENSOR);
    shape.m = 3 * M;                                    /* moves the buffers of the plan before */
    EXPECT(tdist_ag_gemm_plan(world, &shape, &larger) == TDIST_OK && copies->generation != larger->generation);
    memset(x, rank + 16 * 4, M * K * 2);
    EXPECT(tdist_ag_gemm(copies, stream, x, w, bias, out) == TDIST_OK && copies->generation == larger->generation);
    EXPECT(tdist_world_barrier(world) == TDIST_OK);
    gathered(copies, 4);
    shape = gemm(4);
    EXPECT(told("ag_gemm by SMs", tdist_ag_gemm_plan(world, &shape, &sms)) == TDIST_OK);
    EXPECT(tdist_ag_gemm(sms, stream, x, w, bias, out) == TDIST_OK);
    shape.has_bias = 0;
    shape.m = M;
    EXPECT(told("gemm_rs plan", tdist_gemm_rs_plan(world, &shape, &ring)) == TDIST_OK);
    EXPECT(tdist_gemm_rs(ring, stream, x, w, NULL, out) == TDIST_OK);
    EXPECT(told("one shot", tdist_all_reduce_plan(world, TDIST_BF16, 4096, TDIST_AUTO, &one)) == TDIST_OK);
    EXPECT(told("two shot", tdist_all_reduce_plan(world, TDIST_BF16, 4096, TDIST_TWO_SHOT, &two)) == TDIST_OK);
    EXPECT(told("push", tdist_all_reduce_plan(world, TDIST_BF16, 4096, TDIST_PUSH, &push)) == TDIST_OK);
    EXPECT(tdist_all_reduce(one, stream, x, x) == TDIST_OK && tdist_all_reduce(two, stream, x, out) == TDIST_OK);
    EXPECT(tdist_all_reduce(push, stream, x, out) == TDIST_OK);
    extern int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
    void *graph = NULL;
    EXPECT(cuStreamBeginCapture_v2(stream, 0) == 0);
    EXPECT(told("captured copies", tdist_ag_gemm(copies, stream, x, w, bias, out)) == TDIST_ERR_CAPTURE);
    EXPECT(tdist_ag_gemm(sms, stream, x, w, bias, out) == TDIST_OK && world->spaces[TDIST_BY_SMS].captured);
    EXPECT(cuStreamEndCapture(stream, &graph) == 0);
    EXPECT(tdist_ag_gemm(copies, stream, x, w, bias, out) == TDIST_OK);
    tdist_plan *all[] = {copies, sms, larger, ring, one, two, push};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tdist_plan_destroy(all[i]);
    release(x), release(w), release(bias), release(out);
    world->cuda->stream_destroy(stream);
    EXPECT(tdist_unload() == TDIST_OK);
    told("left", tdist_world_destroy(world));
}

static const unsigned char *context_of(const tdist_variant *variant, const void *owner) {
    tdist_loaded *entry = NULL;
    EXPECT(tdist_module(variant, owner, NULL, &entry) == TDIST_OK && entry->world != 0 && entry->filled);
    return (const unsigned char *)(uintptr_t)entry->world;
}

static size_t modules_of(const tdist_variant *variant) {
    size_t found = 0;
    for (tdist_loaded *entry = atomic_load(&variant->state->loaded); entry != NULL; entry = entry->next)
        found += entry->module != NULL;
    return found;
}

/* Two worlds in a process, beside launches that belong to none: kernels of each keep their own ranks and heaps. */
static void worlds(void) {
    tdist_plan *plans[2];
    tdist_world *made[2];
    tdist_gemm shape = gemm(4);
    unsigned char process[TDIST_CONTEXT_BYTES], first[TDIST_CONTEXT_BYTES];
    const tdist_kernel *kernel = tdist_find_kernel("ag_gemm_push");
    EXPECT(kernel != NULL);
    for (int i = 0; i < 2; i++) {
        id = ids[i];
        EXPECT(told("world", join(rank, ranks, rank, (uint64_t)32 << (20 + i))) == TDIST_OK);
        made[i] = world;
        EXPECT(tdist_ag_gemm_plan(world, &shape, &plans[i]) == TDIST_OK);
    }
    EXPECT(world->host->context_set(world->context) == 0);
    const tdist_variant *variant = tdist_find_variant(tdist_launch_key(plans[0]->sender));
    const unsigned char *of[] = {context_of(variant, made[0]), context_of(variant, made[1]), context_of(variant, NULL)};
    EXPECT(modules_of(variant) == 3 && memcmp(of[0], of[1], TDIST_CONTEXT_BYTES) != 0);
    EXPECT(memcmp(of[0], of[2], TDIST_CONTEXT_BYTES) == 0);     /* nobody has set another */
    memcpy(first, of[0], sizeof first);
    for (int i = 0; i < 2; i++) {
        uint64_t base = 0;
        memcpy(&base, of[i] + 48 + 8 * (ranks - 1), sizeof base);
        EXPECT(base == (uint64_t)(uintptr_t)made[i]->bases[ranks - 1]);
    }
    memset(process, 7, sizeof process);
    EXPECT(tdist_set_world(process, sizeof process) == TDIST_OK);
    EXPECT(memcmp(of[0], first, sizeof first) == 0 && memcmp(of[2], process, sizeof process) == 0);
    tdist_plan_destroy(plans[0]);
    EXPECT(tdist_world_destroy(made[0]) == TDIST_OK && modules_of(variant) == 2);
    EXPECT(memcmp(of[2], process, sizeof process) == 0);
    EXPECT(tdist_unload() == TDIST_OK && modules_of(variant) == 1);     /* the other world's kernels stay */
    unsigned char *x = memory(ranks * M * K * 2);
    EXPECT(tdist_ag_gemm(plans[1], NULL, x, x, x, x) == TDIST_OK);
    release(x);
    tdist_plan_destroy(plans[1]);
    EXPECT(tdist_world_destroy(made[1]) == TDIST_OK && modules_of(variant) == 0);
    /* What the first world lends goes with it. */
    EXPECT(tdist_set_world(NULL, 0) == TDIST_OK);
    id = ids[2];
    EXPECT(join(rank, ranks, rank, 32 << 20) == TDIST_OK && context_of(variant, NULL) != NULL);
    tdist_loaded *entry = NULL;
    EXPECT(tdist_world_destroy(world) == TDIST_OK && tdist_module(variant, NULL, NULL, &entry) == TDIST_OK && !entry->filled);
    told("left", tdist_unload());
}

/* Calls on streams that the program makes and destroys, also before their work is done; a new stream may have an old one's handle. */
static void streams(void) {
    tdist_plan *plan = NULL;
    void *stream = NULL;
    EXPECT(told("world", join(rank, ranks, rank, 64 << 20)) == TDIST_OK);
    EXPECT(tdist_all_reduce_plan(world, TDIST_BF16, 4096, TDIST_ONE_SHOT, &plan) == TDIST_OK);
    EXPECT(world->host->context_set(world->context) == 0);
    unsigned char *x = memory(8192);
    told("call", tdist_all_reduce(plan, NULL, x, x));
    for (int i = 0; i < 3; i++) {
        EXPECT(world->cuda->stream_create(&stream, 1, 0) == 0);
        told("call", tdist_all_reduce(plan, stream, x, x));
        told("call", tdist_all_reduce(plan, stream, x, x));
        EXPECT(world->cuda->stream_destroy(stream) == 0);
    }
    told("call", tdist_all_reduce(plan, NULL, x, x));
    release(x);
    tdist_plan_destroy(plan);
    EXPECT(world->host->context_set(NULL) == 0);
    told("left", tdist_world_destroy(world));
}

static void failing_launch(void) {
    tdist_plan *plan = NULL;
    tdist_gemm shape = gemm(0);
    EXPECT(told("world", join(rank, ranks, rank, 64 << 20)) == TDIST_OK && tdist_ag_gemm_plan(world, &shape, &plan) == TDIST_OK);
    EXPECT(world->host->context_set(world->context) == 0);
    unsigned char *x = memory(M * K * 2);
    told("call", tdist_ag_gemm(plan, NULL, x, x, x, x));
    told("call", tdist_ag_gemm(plan, NULL, x, x, x, x));
}

/* Rank 0 may open one file more, too few for the sockets of its peers; rank 1 four, too few for what peers send it. */
static void few_files(void) {
    const char *most = getenv("TDIST_FILES");
    int next = dup(0), wanted = most == NULL ? -1 : atoi(most + 2 * rank);
    struct rlimit limit = {(rlim_t)(next + wanted), (rlim_t)(next + wanted)};
    close(next);
    if (wanted > 0)
        setrlimit(RLIMIT_NOFILE, &limit);
}

static void play(const char *scenario) {
    tdist_gemm shape = gemm(0);
    tdist_plan *plan = NULL;
    void *found = NULL;
    uint64_t heap = 16 << 20;
    if (strcmp(scenario, "ops") == 0) {
        ops();
    } else if (strcmp(scenario, "worlds") == 0) {
        worlds();
    } else if (strcmp(scenario, "launch") == 0) {
        failing_launch();
    } else if (strcmp(scenario, "streams") == 0) {
        streams();
    } else if (strcmp(scenario, "files") == 0) {
        few_files();
        told("world", join(rank, ranks, rank, heap));
    } else if (strcmp(scenario, "forever") == 0) {
        tdist_world_options options = {.struct_size = sizeof options, .timeout_ms = UINT32_MAX, .heap_bytes = heap};
        told("world", tdist_world_create(&world, &id, rank, ranks, rank, &options));
    } else if (strcmp(scenario, "late") == 0) {
        if (rank != 1)
            told("world", join(rank, ranks, rank, heap));
    } else if (strcmp(scenario, "first is late") == 0) {
        if (rank != 0)
            told("world", join(rank, ranks, rank, heap));
    } else if (strcmp(scenario, "sizes") == 0) {
        told("world", join(rank, rank == 1 ? ranks + 1 : ranks, rank, heap));
    } else if (strcmp(scenario, "twice") == 0) {
        told("world", join(rank == 2 ? 1 : rank, ranks, rank, heap));
    } else if (strcmp(scenario, "heaps") == 0) {
        told("world", join(rank, ranks, rank, heap << rank));
    } else if (strcmp(scenario, "device") == 0) {
        told("world", join(rank, ranks, 0, heap));
    } else if (strcmp(scenario, "driver") == 0) {
        if (rank == 1)
            setenv("TDIST_MOCK_FAIL", getenv("TDIST_RANK_1_FAILS"), 1);
        told("world", join(rank, ranks, rank, heap));
    } else if (told("world", join(rank, ranks, rank, heap)) != TDIST_OK) {
        return;
    } else if (strcmp(scenario, "die") == 0) {
        if (rank == 1)
            _exit(0);
        told("barrier", tdist_world_barrier(world));
        told("barrier", tdist_world_barrier(world));
        told("left", tdist_world_destroy(world));
    } else if (strcmp(scenario, "sleep") == 0) {
        struct timespec long_time = {4, 500000000};
        if (rank == 1)
            nanosleep(&long_time, NULL);
        told("barrier", tdist_world_barrier(world));
    } else if (strcmp(scenario, "alloc") == 0) {
        told("alloc", tdist_alloc(world, 100u << rank, &found));
    } else if (strcmp(scenario, "full") == 0) {
        told("alloc", tdist_alloc(world, 15 << 20, &found));
        told("alloc", tdist_alloc(world, 2 << 20, &found));
        told("alloc", tdist_alloc(world, 1 << 10, &found));
    } else if (strcmp(scenario, "confused") == 0) {
        told("call", rank == 0 ? tdist_world_barrier(world) : tdist_alloc(world, 100, &found));
    } else if (strcmp(scenario, "variant") == 0) {
        shape.group_m = rank == 1 ? 5 : 8;
        told("plan", tdist_ag_gemm_plan(world, &shape, &plan));
        told("barrier", tdist_world_barrier(world));
    } else if (strcmp(scenario, "shape") == 0) {
        shape.m += rank;
        told("plan", tdist_ag_gemm_plan(world, &shape, &plan));
    } else if (strcmp(scenario, "odd") == 0) {
        shape.k = 63;
        told("plan", tdist_ag_gemm_plan(world, &shape, &plan));
        shape.struct_size = 4;
        told("plan", tdist_ag_gemm_plan(world, &shape, &plan));
    }
}

int main(int argc, char **argv) {
    if (argc != 3 || (ranks = atoi(argv[2])) < 1 || ranks > 8 || tdist_unique_id_create(&id) != TDIST_OK ||
        tdist_unique_id_create(&ids[0]) != TDIST_OK || tdist_unique_id_create(&ids[1]) != TDIST_OK ||
        tdist_unique_id_create(&ids[2]) != TDIST_OK)
        return 2;
    for (rank = 0; rank < ranks; rank++)
        if (fork() == 0) {
            play(argv[1]);
            exit(0);
        }
    int failed = 0, status = 0;
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}

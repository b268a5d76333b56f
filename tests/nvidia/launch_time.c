/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Host time of a launch from C: ag_gemm's kernel with its six tensor maps, of one rank alone, which waits for nobody. All addresses
   and the epoch are given anew at each launch. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tdist_aot.h"

enum { CALLS = 200, ROUNDS = 41, SETS = 4 };

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static void require(int status) {
    if (status) {
        fprintf(stderr, "%s: %s\n", tdist_status_name(status), tdist_last_error());
        exit(1);
    }
}

static void *function(const char *name) {
    static void *library;
    library = library ? library : dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library ? dlsym(library, name) : NULL;
    if (found == NULL)
        exit(2);
    return found;
}

int main(void) {
    int (*init)(unsigned) = function("cuInit"), (*retain)(void **, int) = function("cuDevicePrimaryCtxRetain");
    int (*set)(void *) = function("cuCtxSetCurrent"), (*wait)(void) = function("cuCtxSynchronize");
    int (*allocate)(unsigned long long *, size_t) = function("cuMemAlloc_v2");
    int (*zero)(unsigned long long, unsigned char, size_t) = function("cuMemsetD8_v2");
    void *context = NULL;
    unsigned long long memory = 0;
    if (init(0) || retain(&context, 0) || set(context) || allocate(&memory, 16 << 20) || zero(memory, 0, 16 << 20))
        return 2;
    tdist_tensor x = {.data = (void *)memory, .rank = 2, .shape = {128, 64}, .strides = {64, 1}}, w = x, half = x, out = x;
    w.shape[0] = 256;
    half.shape[0] = 256;
    out.rank = 3;
    out.shape[0] = 1, out.shape[1] = 128, out.shape[2] = 256;
    out.strides[0] = 128 * 256, out.strides[1] = 256, out.strides[2] = 1;
    const uint32_t box = TDIST_TENSOR | TDIST_BF16, grid[3] = {2, 1, 1};
    const tdist_tensor *boxes[6] = {&x, &x, &w, &half, &out, &out};
    tdist_value values[64] = {{0}};
    for (int i = 0; i < 6; i++) {
        values[i].type = box;
        values[i].as.tensor = boxes[i];
    }
    values[6].type = TDIST_POINTER | TDIST_BF16;
    values[7].type = TDIST_POINTER | TDIST_I32;
    values[6].as.pointer = values[7].as.pointer = (void *)memory;
    const int64_t rest[9] = {1, 0, 1, 128, 256, 64, 1, 1, 0};      /* epoch, index, world, m, n, k, pieces, piece_tiles, wide */
    for (int i = 0; i < 9; i++) {
        values[8 + i].type = TDIST_I32;
        values[8 + i].as.integer = rest[i];
    }
    const tdist_kernel *kernel = tdist_find_kernel("ag_gemm_ws");
    const size_t count = tdist_kernel_parameter_count(kernel);
    for (size_t i = 17; i < count; i++)
        values[i].type = TDIST_CONSTEXPR;
    const tdist_option options[] = {{"HAS_BIAS", NULL, 1}, {"NARROW", NULL, 1}, {"COLUMNS", NULL, 0}, {"BLOCK_N", NULL, 256}, {"GROUP_M", NULL, 8}};
    const tdist_variant *variant = NULL;
    tdist_launch *launch = NULL;
    require(tdist_select(kernel, values, count, options, 5, &variant));
    require(tdist_launch_create(variant, grid, values, count, &launch));
    double kept[ROUNDS], fresh[ROUNDS];
    int64_t given[17];
    for (int i = 0; i < 9; i++)
        given[8 + i] = rest[i];
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_us();
        for (int call = 0; call < CALLS; call++) {
            for (int i = 0; i < 8; i++)
                given[i] = (int64_t)memory + ((int64_t)(call % SETS) << 20);
            given[8] = call;
            require(tdist_launch_run_with(launch, NULL, given, 17));
        }
        kept[round] = (now_us() - start) / CALLS;
        if (wait())
            return 3;
        start = now_us();
        for (int call = 0; call < CALLS; call++)
            require(tdist_launch_kernel(kernel, NULL, grid, values, count, options, 5));
        fresh[round] = (now_us() - start) / CALLS;
        if (wait())
            return 3;
    }
    qsort(kept, ROUNDS, sizeof *kept, compare);
    qsort(fresh, ROUNDS, sizeof *fresh, compare);
    printf("C: a launch that is kept, all 17 arguments anew: %.2f us; picked and encoded at each launch: %.2f us\n", kept[ROUNDS / 2],
           fresh[ROUNDS / 2]);
    tdist_launch_destroy(launch);
    return 0;
}

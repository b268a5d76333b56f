/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Calls the functions of the test library from several threads and on two devices, as a program in C does. Compiled with
   sanitizers: what it looks at beside statuses is what they find. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "add.h"
#include "copy_box.h"
#include "copy_by_made_descriptor.h"
#include "fill.h"
#include "tdist_internal.h"
#include "who_am_i.h"

#define THREADS 8
#define UNLOADS 500
#define EXPECT(call, status) do { int got_ = (call); if (got_ != (status)) { \
    printf("line %d: expected %s, found %s: %s\n", __LINE__, tdist_status_name(status), tdist_status_name(got_), tdist_last_error()); \
    exit(1); } } while (0)

extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);

static void use_device(int device) {
    void *context = NULL;
    if (cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
        exit(2);
}

static void *address(uintptr_t value) { return (void *)value; }

static void *work(void *number) {
    use_device((int)(intptr_t)number % 2);
    for (int i = 0; i < 20; i++) {
        EXPECT(add_fp32(NULL, address(0x1000), address(0x2000), address(0x3000), 4096), TDIST_OK);
        EXPECT(add_fp32(NULL, address(0x1000), address(0x2000), address(0x3000), 1), TDIST_OK);
        EXPECT(add_fp32(NULL, address(0x1004), address(0x2000), address(0x3000), 1), TDIST_ERR_NOT_BUILT);
        EXPECT(fill(NULL, address(0x4000), 1000), TDIST_OK);
    }
    return NULL;
}

static atomic_int started, finished;
static const tdist_variant *shared;

/* One thread unloads and loads on its device, while another one looks up the same kernel for its own device. */
static void *unload_and_load(void *unused) {
    (void)unused;
    use_device(0);
    while (!started)
        continue;
    for (int i = 0; i < UNLOADS; i++) {
        EXPECT(tdist_unload(), TDIST_OK);
        EXPECT(tdist_load(shared, NULL, NULL), TDIST_OK);
    }
    finished = 1;
    return NULL;
}

static void *look_up(void *unused) {
    (void)unused;
    use_device(1);
    for (started = 1; !finished;)
        EXPECT(tdist_load(shared, NULL, NULL), TDIST_OK);
    return NULL;
}

static void unload_on_one_device(void) {
    tdist_value values[3] = {{.type = TDIST_POINTER | TDIST_I32, .as.pointer = address(0x4000)}, {.type = TDIST_I32, .as.integer = 7},
                             {.type = TDIST_CONSTEXPR}};
    pthread_t threads[2];
    size_t entries = 0;
    use_device(0);
    EXPECT(tdist_select(&fill_kernel, values, 3, NULL, 0, &shared), TDIST_OK);
    if (pthread_create(&threads[0], NULL, look_up, NULL) || pthread_create(&threads[1], NULL, unload_and_load, NULL))
        exit(2);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (tdist_loaded *entry = shared->state->loaded; entry != NULL; entry = entry->next)
        entries++;
    if (entries != 2) {
        printf("%zu entries for two devices\n", entries);
        exit(1);
    }
}

static void kept_launches(void) {
    const uint32_t grid[3] = {2, 1, 1};
    tdist_tensor x = {.data = address(0x10000), .rank = 2, .shape = {128, 256}, .strides = {256, 1}}, wrong = x;
    tdist_value values[5] = {{.type = TDIST_TENSOR | TDIST_BF16, .as.tensor = &x}, {.type = TDIST_TENSOR | TDIST_BF16, .as.tensor = &x},
                             {.type = TDIST_I32, .as.integer = 64}, {.type = TDIST_CONSTEXPR}, {.type = TDIST_CONSTEXPR}};
    const tdist_variant *variant = NULL;
    tdist_launch *launch = NULL;
    EXPECT(tdist_select(&copy_box_kernel, values, 5, NULL, 0, &variant), TDIST_OK);
    EXPECT(tdist_launch_create(variant, grid, values, 5, &launch), TDIST_OK);
    for (int64_t i = 0; i < 40; i++) {
        int64_t again[3] = {0x10000 + 0x1000 * (i % 20), 0x90000, i};
        EXPECT(tdist_launch_run_with(launch, NULL, again, 3), TDIST_OK);
    }
    EXPECT(tdist_launch_set(launch, 0, 0x10000), TDIST_OK);
    EXPECT(tdist_launch_set(launch, 0, 0x10008), TDIST_ERR_TENSOR);
    EXPECT(tdist_launch_set(launch, 5, 0), TDIST_ERR_ARGUMENT);
    EXPECT(tdist_launch_run(launch, NULL), TDIST_OK);
    tdist_launch_destroy(launch);
    wrong.strides[1] = 2;
    EXPECT(copy_box(NULL, grid, &wrong, &x, 0), TDIST_ERR_TENSOR);
    EXPECT(copy_box(NULL, grid, NULL, &x, 0), TDIST_ERR_ARGUMENT);
    values[0].type = TDIST_TENSOR | TDIST_FP16;
    EXPECT(tdist_select(&copy_box_kernel, values, 5, NULL, 0, &variant), TDIST_ERR_NOT_BUILT);
    EXPECT(tdist_select(&copy_box_kernel, values, 4, NULL, 0, &variant), TDIST_ERR_ARGUMENT);
}

int main(void) {
    pthread_t threads[THREADS];
    unsigned char context[560] = {1};
    const uint32_t grid[3] = {1, 1, 1}, none[3] = {0, 1, 1};
    for (intptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i))
            return 2;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    EXPECT(add_fp32(NULL, address(0x1000), address(0x2000), address(0x3000), 4096), TDIST_ERR_ARGUMENT);     /* no context here */
    unload_on_one_device();
    add_fp32_options asked = {.BLOCK = 256, .num_warps = 2};
    EXPECT(add_fp32_ex(NULL, address(0x1000), address(0x2000), address(0x3000), 77, &asked), TDIST_OK);
    asked.BLOCK = 512;
    EXPECT(add_fp32_ex(NULL, address(0x1000), address(0x2000), address(0x3000), 77, &asked), TDIST_ERR_NOT_BUILT);
    kept_launches();
    EXPECT(copy_by_made_descriptor(NULL, grid, address(0x1000), address(0x2000), 64, 64), TDIST_OK);
    EXPECT(copy_by_made_descriptor(NULL, none, address(0x1000), address(0x2000), 64, 64), TDIST_OK);
    EXPECT(who_am_i(NULL, grid, address(0x1000), address(0x2000)), TDIST_ERR_NO_WORLD);
    EXPECT(tdist_set_world(context, sizeof context - 1), TDIST_ERR_VERSION);
    EXPECT(tdist_set_world(context, sizeof context), TDIST_OK);
    EXPECT(who_am_i(NULL, grid, address(0x1000), address(0x2000)), TDIST_OK);
    EXPECT(tdist_set_world(NULL, 0), TDIST_OK);
    EXPECT(who_am_i(NULL, grid, address(0x1000), address(0x2000)), TDIST_ERR_NO_WORLD);
    for (int device = 0; device < 2; device++) {
        use_device(device);
        EXPECT(tdist_unload(), TDIST_OK);
    }
    puts("all as expected");
    return 0;
}

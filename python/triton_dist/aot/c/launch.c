/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Launches. */
#include <string.h>

#include "tdist_driver.h"
#include "tdist_internal.h"

/* Bytes of global memory that a launch needs beside its arguments: [0] by the kernel, [1] by its profiler. */
void tdist_scratch_of(const tdist_variant *variant, const uint32_t *grid, uint64_t *bytes) {
    uint64_t programs = (uint64_t)grid[0] * grid[1] * grid[2] * variant->clusters;
    bytes[0] = programs * variant->scratch_bytes;
    bytes[1] = programs * variant->profile_bytes;
}

void tdist_set_scratch(const tdist_variant *variant, tdist_block *made, const uint64_t *addresses) {
    for (size_t p = 0; p < variant->param_count; p++)
        if (variant->params[p].kind >= TDIST_PARAM_SCRATCH)
            made->cells[p] = addresses[variant->params[p].kind - TDIST_PARAM_SCRATCH];
}

int tdist_run(const tdist_driver *driver, const tdist_variant *variant, const tdist_loaded *entry, const uint32_t *grid,
               tdist_stream stream, void **params) {
    if (entry->world != 0 && !atomic_load_explicit(&((tdist_loaded *)(uintptr_t)entry)->filled, memory_order_relaxed))
        return tdist_fail(TDIST_ERR_NO_WORLD, "%s asks for its rank or for peers: call tdist_set_world, or make a world, first",
                          variant->name);
    tdist_launch_config config = {
        .function = entry->function, .stream = stream, .grid = {grid[0], grid[1], grid[2]}, .block = variant->block,
        .shared = variant->shared, .clusters = variant->clusters, .cooperative = variant->cooperative,
        .overlaps = variant->overlaps, .params = params,
    };
    return driver->launch(&config);
}

int tdist_grid(const tdist_variant *variant, const uint32_t *given, const tdist_value *values, uint32_t *grid) {
    const tdist_driver *driver = NULL;
    int64_t wide[3];
    void *context = NULL;
    int count = 0, device = 0;
    if (given != NULL) {
        memcpy(grid, given, 3 * sizeof *grid);
        return TDIST_OK;
    }
    if (variant->grid == NULL)
        return tdist_fail(TDIST_ERR_ARGUMENT, "%s was declared without a grid, so a launch has to give one", variant->name);
    int status = tdist_get_driver(&driver);
    if (status == TDIST_OK)
        status = driver->context(&context, &device);
    if (status == TDIST_OK)
        status = driver->sms(device, &count);
    if (status != TDIST_OK)
        return status;
    if (variant->grid(values, count, wide))
        return tdist_fail(TDIST_ERR_ARGUMENT, "%s: its grid divides by zero for these values", variant->name);
    for (int d = 0; d < 3; d++) {
        if (wide[d] < 0 || wide[d] > (d == 0 ? 0x7fffffff : 0xffff))
            return tdist_fail(TDIST_ERR_ARGUMENT, "%s: dimension %d of its grid is %lld for these values", variant->name, d,
                              (long long)wide[d]);
        grid[d] = (uint32_t)wide[d];
    }
    return TDIST_OK;
}

int tdist_check(const tdist_variant *variant, const tdist_value *values, size_t count) {
    if (variant == NULL || (values == NULL && count > 0))
        return tdist_fail(TDIST_ERR_ARGUMENT, "a launch without a variant or values");
    if (count != variant->type_count)
        return tdist_fail(TDIST_ERR_ARGUMENT, "%s: expected %d values, found %zu", variant->name, variant->type_count, count);
    for (size_t i = 0; i < count; i++) {
        if (variant->types[i] != TDIST_CONSTEXPR && variant->types[i] != values[i].type)
            return tdist_fail(TDIST_ERR_NOT_BUILT, "%s: value %zu: expected type %#x, found %#x", variant->name, i,
                              variant->types[i], values[i].type);
        if (!tdist_hint_holds(variant->hints[i], &values[i]))
            return tdist_fail(TDIST_ERR_NOT_BUILT, "%s: value %zu does not have the alignment or value it was built for",
                              variant->name, i);
    }
    return TDIST_OK;
}

int tdist_launch_variant(const tdist_variant *variant, tdist_stream stream, const uint32_t *given, const tdist_value *values,
                         size_t count) {
    const tdist_driver *driver = NULL;
    tdist_loaded *entry = NULL;
    tdist_map_bytes maps[TDIST_MAX_MAPS];
    tdist_block made;
    uint32_t grid[3];
    uint64_t bytes[2], scratch[2] = {0, 0};
    int status = tdist_check(variant, values, count);
    if (status == TDIST_OK)
        status = tdist_grid(variant, given, values, grid);
    if (status != TDIST_OK || grid[0] == 0 || grid[1] == 0 || grid[2] == 0)
        return status;                                  /* an empty grid launches nothing, as Triton has it */
    status = tdist_module(variant, NULL, stream, &entry);
    if (status == TDIST_OK)
        status = tdist_get_driver(&driver);
    if (status == TDIST_OK)
        status = tdist_fill(variant, values, &made, maps);
    if (status != TDIST_OK)
        return status;
    tdist_scratch_of(variant, grid, bytes);
    for (int s = 0; s < 2 && status == TDIST_OK; s++)
        if (bytes[s] > 0)
            status = driver->allocate(&scratch[s], bytes[s], stream);
    if (status == TDIST_OK) {
        tdist_set_scratch(variant, &made, scratch);
        status = tdist_run(driver, variant, entry, grid, stream, made.params);
    }
    for (int s = 0; s < 2; s++)
        if (scratch[s] != 0) {
            int freed = driver->release(scratch[s], stream);
            status = status == TDIST_OK ? freed : status;
        }
    return status;
}

int tdist_launch_kernel(const tdist_kernel *kernel, tdist_stream stream, const uint32_t *grid, const tdist_value *values,
                        size_t count, const tdist_option *options, size_t option_count) {
    const tdist_variant *variant = NULL;
    int status = tdist_select(kernel, values, count, options, option_count, &variant);
    return status == TDIST_OK ? tdist_launch_variant(variant, stream, grid, values, count) : status;
}

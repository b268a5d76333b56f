/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Launches that are kept. */
#include <stdlib.h>
#include <string.h>

#include "tdist_driver.h"
#include "tdist_internal.h"

enum { REMEMBERED = 8 };         /* tensor maps of a parameter, by address */

typedef struct remembered {
    void *address[REMEMBERED];
    tdist_map_bytes maps[REMEMBERED];
} remembered;

struct tdist_launch {
    tdist_block made;
    const tdist_variant *variant;
    const tdist_driver *driver;
    tdist_loaded *entry;
    tdist_tensor *tensors;                      /* one for each parameter of the kernel */
    remembered *maps;
    uint64_t scratch[2];
    uint32_t grid[3];
};

static int aim(tdist_launch *launch, size_t p, void *address) {
    const tdist_param *param = &launch->variant->params[p];
    remembered *known = &launch->maps[param->index];
    size_t slot = ((uintptr_t)address >> 8 ^ (uintptr_t)address >> 20) % REMEMBERED;
    if (known->address[slot] != address || address == NULL) {       /* an empty slot has NULL */
        int status = tdist_encode(launch->variant, param, &launch->tensors[param->source], address, known->maps[slot].bytes);
        if (status != TDIST_OK) {
            known->address[slot] = NULL;
            return status;
        }
        known->address[slot] = address;
    }
    launch->made.params[p] = known->maps[slot].bytes;
    return TDIST_OK;
}

static int prepare(tdist_launch *launch, const tdist_value *values, size_t count) {
    const tdist_variant *variant = launch->variant;
    uint64_t bytes[2];
    int status = TDIST_OK;
    for (size_t i = 0; i < count; i++)
        if (values[i].type & TDIST_TENSOR && values[i].as.tensor != NULL)
            launch->tensors[i] = *values[i].as.tensor;
    for (size_t p = 0; p < variant->param_count && status == TDIST_OK; p++) {
        const tdist_param *param = &variant->params[p];
        const tdist_value *value = &values[param->source];
        launch->made.params[p] = &launch->made.cells[p];
        if (param->kind >= TDIST_PARAM_SCRATCH)
            continue;
        if (value->type & TDIST_TENSOR && value->as.tensor == NULL)
            return tdist_fail(TDIST_ERR_ARGUMENT, "%s: value %d: no tensor", variant->name, param->source);
        if (param->kind == TDIST_PARAM_MAP)
            status = aim(launch, p, value->as.tensor->data);
        else
            launch->made.cells[p] = tdist_bits_of(param, value);
    }
    tdist_scratch_of(variant, launch->grid, bytes);
    for (int s = 0; s < 2 && status == TDIST_OK; s++)
        if (bytes[s] > 0)
            status = launch->driver->allocate_kept(&launch->scratch[s], bytes[s]);
    tdist_set_scratch(variant, &launch->made, launch->scratch);
    return status;
}

int tdist_launch_create(const tdist_variant *variant, const uint32_t *given, const tdist_value *values, size_t count,
                        tdist_launch **out) {
    return tdist_launch_of(variant, NULL, given, values, count, out);
}

int tdist_launch_of(const tdist_variant *variant, const void *owner, const uint32_t *given, const tdist_value *values, size_t count,
                    tdist_launch **out) {
    int status = tdist_check(variant, values, count);
    if (status == TDIST_OK && out == NULL)
        status = tdist_fail(TDIST_ERR_ARGUMENT, "tdist_launch_create: no place for the launch");
    if (status != TDIST_OK)
        return status;
    tdist_launch *launch = calloc(1, sizeof *launch);
    remembered *maps = aligned_alloc(64, sizeof *maps * (variant->map_count + 1u));
    tdist_tensor *tensors = calloc(count + 1, sizeof *tensors);
    if (launch == NULL || maps == NULL || tensors == NULL) {
        free(launch);
        free(maps);
        free(tensors);
        return tdist_fail(TDIST_ERR_MEMORY, "no memory for a launch");
    }
    memset(maps, 0, sizeof *maps * (variant->map_count + 1u));
    launch->variant = variant;
    launch->maps = maps;
    launch->tensors = tensors;
    status = tdist_grid(variant, given, values, launch->grid);
    if (status == TDIST_OK)
        status = tdist_get_driver(&launch->driver);
    if (status == TDIST_OK)
        status = tdist_module(variant, owner, NULL, &launch->entry);
    if (status == TDIST_OK)
        status = prepare(launch, values, count);
    if (status != TDIST_OK) {
        tdist_launch_destroy(launch);
        return status;
    }
    *out = launch;
    return TDIST_OK;
}

int tdist_launch_set(tdist_launch *launch, size_t index, int64_t value) {
    if (launch == NULL || index >= launch->variant->type_count)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_launch_set: no such value");
    uint32_t type = launch->variant->types[index];
    if (type == TDIST_CONSTEXPR || (type >= TDIST_FP16 && type <= TDIST_FP64))
        return tdist_fail(TDIST_ERR_ARGUMENT, "%s: value %zu is %s, which a kept launch keeps: make another launch",
                          launch->variant->name, index, type == TDIST_CONSTEXPR ? "a constexpr" : "a floating-point number");
    uint8_t hint = launch->variant->hints[index];
    if (hint != 0 && (hint == 1 ? value != 1 : (uint64_t)value % hint != 0))
        return tdist_fail(TDIST_ERR_NOT_BUILT, "%s: value %zu: expected a multiple of %d, or 1 where it was built for 1",
                          launch->variant->name, index, hint);
    for (size_t p = 0; p < launch->variant->param_count; p++) {
        const tdist_param *param = &launch->variant->params[p];
        if (param->source != index)
            continue;
        if (param->kind == TDIST_PARAM_MAP) {
            int status = aim(launch, p, (void *)(uintptr_t)value);
            if (status != TDIST_OK)
                return status;
        } else if (param->kind <= TDIST_PARAM_BITS64 || param->kind == TDIST_PARAM_BASE) {
            launch->made.cells[p] = (uint64_t)value;
        }
    }
    return TDIST_OK;
}

int tdist_launch_run(tdist_launch *launch, tdist_stream stream) {
    if (launch == NULL)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_launch_run: no launch");
    if (launch->grid[0] == 0 || launch->grid[1] == 0 || launch->grid[2] == 0)
        return TDIST_OK;
    return tdist_run(launch->driver, launch->variant, launch->entry, launch->grid, stream, launch->made.params);
}

int tdist_launch_run_with(tdist_launch *launch, tdist_stream stream, const int64_t *values, size_t count) {
    int status = TDIST_OK;
    if (launch == NULL || (values == NULL && count > 0) || count > launch->variant->type_count)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_launch_run_with: no launch, or values that it does not have");
    for (size_t p = 0; p < launch->variant->param_count && status == TDIST_OK; p++) {
        const tdist_param *param = &launch->variant->params[p];
        if (param->source >= count || param->kind >= TDIST_PARAM_SCRATCH)
            continue;
        int64_t value = values[param->source];
        if (launch->variant->hints[param->source] == 16 && value % 16 != 0)
            return tdist_fail(TDIST_ERR_NOT_BUILT, "%s: value %d: expected a multiple of 16", launch->variant->name, param->source);
        if (param->kind == TDIST_PARAM_MAP)
            status = aim(launch, p, (void *)(uintptr_t)value);
        else if (param->kind <= TDIST_PARAM_BITS64 || param->kind == TDIST_PARAM_BASE)
            launch->made.cells[p] = (uint64_t)value;
    }
    return status == TDIST_OK ? tdist_launch_run(launch, stream) : status;
}

const char *tdist_launch_key(const tdist_launch *launch) { return launch == NULL ? NULL : launch->variant->key; }

void tdist_launch_destroy(tdist_launch *launch) {
    if (launch == NULL)
        return;
    for (int s = 0; s < 2; s++)
        if (launch->scratch[s] != 0)
            launch->driver->release_kept(launch->scratch[s]);
    free(launch->maps);
    free(launch->tensors);
    free(launch);
}

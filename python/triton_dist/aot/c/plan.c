/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   What the plans of all ops share. */
#include <stdlib.h>
#include <string.h>

#include "tdist_world.h"

enum { MOST_VALUES = 64 };

tdist_value tdist_of_pointer(uint32_t dtype, const void *address) {
    tdist_value value = {.type = TDIST_POINTER | dtype};
    value.as.pointer = (void *)(uintptr_t)address;
    return value;
}

tdist_value tdist_of_integer(int64_t number) {
    tdist_value value = {.type = TDIST_I32};
    value.as.integer = number;
    return value;
}

tdist_value tdist_of_tensor(uint32_t dtype, const tdist_tensor *tensor) {
    tdist_value value = {.type = TDIST_TENSOR | dtype};
    value.as.tensor = tensor;
    return value;
}

tdist_tensor tdist_matrix(const void *data, int64_t rows, int64_t columns) {
    return (tdist_tensor){.data = (void *)(uintptr_t)data, .rank = 2, .shape = {rows, columns}, .strides = {columns, 1}};
}

uint64_t tdist_power_of_two(uint64_t value) {
    uint64_t found = 1;
    while (found < value)
        found *= 2;
    return found;
}

uint64_t tdist_element_bytes(uint32_t dtype) { return dtype == TDIST_FP32 ? 4 : 2; }

int tdist_plan_launch(const tdist_world *world, const char *name, const tdist_value *given, size_t count, const tdist_option *options,
                      size_t option_count, uint32_t programs, tdist_launch **out) {
    const uint32_t grid[3] = {programs, 1, 1};
    const tdist_kernel *kernel = tdist_find_kernel(name);
    const tdist_variant *variant = NULL;
    tdist_launch *made = NULL;
    tdist_value values[MOST_VALUES];
    size_t all = tdist_kernel_parameter_count(kernel);
    if (kernel == NULL)
        return TDIST_ERR_NOT_BUILT;
    if (all < count || all > MOST_VALUES)
        return tdist_fail(TDIST_ERR_VERSION, "%s has %zu parameters, but this host side knows of %zu", name, all, count);
    for (size_t i = 0; i < count; i++)
        if (given[i].type == TDIST_I32 && given[i].as.integer != (int32_t)given[i].as.integer)
            return tdist_fail(TDIST_ERR_UNSUPPORTED, "%s: %lld does not fit 32 bits: the shape is too large for one call", name,
                              (long long)given[i].as.integer);
    memcpy(values, given, count * sizeof *values);
    for (size_t i = count; i < all; i++)
        values[i] = (tdist_value){.type = TDIST_CONSTEXPR};
    int status = tdist_select(kernel, values, all, options, option_count, &variant);
    if (status == TDIST_OK)
        status = tdist_launch_of(variant, world, grid, values, all, &made);
    if (status == TDIST_OK) {
        tdist_launch_destroy(*out);
        *out = made;
    }
    return status;
}

/* What `make` returns on this rank, or the first error of another one: a plan is there on all ranks or on none. */
static int on_all(tdist_plan *plan, int status) {
    int32_t mine = status, all[TDIST_MAX_WORLD];
    int met = tdist_hub_exchange(&plan->world->hub, "a plan", &mine, sizeof mine, all);
    if (status != TDIST_OK || met != TDIST_OK)
        return status != TDIST_OK ? status : met;
    for (int r = 0; r < plan->world->size; r++)
        if (all[r] != TDIST_OK)
            return tdist_fail(all[r], "rank %d has no plan: %s", r, tdist_status_name(all[r]));
    return TDIST_OK;
}

/* Collective. `half_bytes` and `flags` are set by the op in the plan it gives, with all that ranks must agree on. */
int tdist_plan_finish(tdist_plan *plan, uint64_t half_bytes, uint64_t flags, tdist_plan **out) {
    struct agreed { uint64_t op, kind, half_bytes, flags; int64_t m, n_of_all, pieces, count; uint32_t dtype, hop_dtype; int64_t method; } mine;
    struct agreed all[TDIST_MAX_WORLD];
    tdist_world *world = plan->world;
    void *before = NULL;
    memset(&mine, 0, sizeof mine);
    mine = (struct agreed){plan->op, plan->kind, half_bytes, flags, plan->shape.m, plan->op == TDIST_OP_GEMM_RS ? plan->shape.n : plan->shape.k,
                           plan->pieces, plan->count, plan->dtype, plan->hop_dtype, plan->method};
    int status = tdist_hub_exchange(&world->hub, "a plan's shape", &mine, sizeof mine, all);
    for (int r = 0; status == TDIST_OK && r < world->size; r++)
        if (memcmp(&all[r], &mine, sizeof mine) != 0)
            status = tdist_fail(TDIST_ERR_MISMATCH, "a plan: rank %d has another op, shape, dtype or method than rank %d", r, world->rank);
    if (status == TDIST_OK)
        status = tdist_enter(world, &before);
    if (status == TDIST_OK) {
        status = tdist_reserve(world, plan->kind, half_bytes, flags);
        if (status == TDIST_OK)
            status = on_all(plan, plan->make(plan));
        plan->generation = world->spaces[plan->kind].generation;
        tdist_leave(world, before);
    }
    if (status != TDIST_OK) {
        tdist_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return TDIST_OK;
}

int tdist_plan_create(tdist_world *world, tdist_op op, tdist_plan **out) {
    tdist_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return tdist_fail(TDIST_ERR_MEMORY, "no memory for a plan");
    plan->world = world;
    plan->op = op;
    *out = plan;
    return TDIST_OK;
}

int tdist_plan_ready(tdist_plan *plan) {
    uint32_t now = plan->world->spaces[plan->kind].generation;
    if (plan->generation == now)
        return TDIST_OK;
    int status = plan->make(plan);
    plan->generation = status == TDIST_OK ? now : plan->generation;
    return status;
}

void tdist_plan_destroy(tdist_plan *plan) {
    if (plan == NULL)
        return;
    tdist_launch_destroy(plan->main);
    tdist_launch_destroy(plan->sender);
    free(plan);
}

int tdist_gemm_check(const tdist_world *world, const tdist_gemm *shape, tdist_plan **out) {
    if (world == NULL || shape == NULL || out == NULL)
        return tdist_fail(TDIST_ERR_ARGUMENT, "a plan without a world, a shape, or a place for it");
    if (shape->struct_size != sizeof *shape)
        return tdist_fail(TDIST_ERR_VERSION, "tdist_gemm: expected a struct_size of %zu, found %u", sizeof *shape, shape->struct_size);
    if (shape->dtype != TDIST_BF16 && shape->dtype != TDIST_FP16)
        return tdist_fail(TDIST_ERR_ARGUMENT, "dtype: expected TDIST_BF16 or TDIST_FP16, found %u", shape->dtype);
    if (shape->m < 1 || shape->n < 1 || shape->k < 1 || shape->m * world->size >= (int64_t)1 << 31 || shape->n >= (int64_t)1 << 31 ||
        shape->k >= (int64_t)1 << 31)
        return tdist_fail(TDIST_ERR_ARGUMENT, "m, n, k: expected sizes of at least 1 and less than 2^31, found %lld, %lld, %lld",
                          (long long)shape->m, (long long)shape->n, (long long)shape->k);
    if (shape->n % 8 != 0 || shape->k % 8 != 0)
        return tdist_fail(TDIST_ERR_TENSOR, "n, k: expected multiples of 8, found %lld, %lld", (long long)shape->n, (long long)shape->k);
    return TDIST_OK;
}

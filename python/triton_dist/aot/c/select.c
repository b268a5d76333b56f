/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Which variant serves a call. */
#include <stdio.h>
#include <string.h>

#include "tdist_driver.h"
#include "tdist_internal.h"

const tdist_kernel *tdist_find_kernel(const char *name) {
    for (size_t k = 0; name != NULL && k < tdist_kernels_count; k++)
        if (strcmp(tdist_kernels[k]->name, name) == 0)
            return tdist_kernels[k];
    tdist_fail(TDIST_ERR_NOT_BUILT, "no kernel %s in this library", name == NULL ? "(null)" : name);
    return NULL;
}

size_t tdist_kernel_count(void) { return tdist_kernels_count; }

const tdist_kernel *tdist_kernel_at(size_t index) { return index < tdist_kernels_count ? tdist_kernels[index] : NULL; }

const char *tdist_kernel_name(const tdist_kernel *kernel) { return kernel == NULL ? NULL : kernel->name; }

size_t tdist_kernel_parameter_count(const tdist_kernel *kernel) { return kernel == NULL ? 0 : kernel->parameter_count; }

const tdist_variant *tdist_find_variant(const char *key) {
    for (size_t k = 0; key != NULL && k < tdist_kernels_count; k++)
        for (size_t v = 0; v < tdist_kernels[k]->variant_count; v++)
            if (strcmp(tdist_kernels[k]->variants[v]->key, key) == 0)
                return tdist_kernels[k]->variants[v];
    tdist_fail(TDIST_ERR_NOT_BUILT, "no variant %.16s... in this library", key == NULL ? "(null)" : key);
    return NULL;
}

const char *tdist_variant_key(const tdist_variant *variant) { return variant == NULL ? NULL : variant->key; }

int tdist_hint_holds(uint8_t hint, const tdist_value *value) {
    uint64_t bits;
    if (hint == 0)
        return 1;
    if (value->type & TDIST_TENSOR)
        return value->as.tensor != NULL && (uint64_t)(uintptr_t)value->as.tensor->data % hint == 0;
    bits = value->type & TDIST_POINTER ? (uint64_t)(uintptr_t)value->as.pointer : (uint64_t)value->as.integer;
    return hint == 1 ? bits == 1 : bits % hint == 0;
}

/* CUDA binaries run on later minor versions, those of sm_90 and up use what only that very architecture has. */
static int runs_on(const tdist_variant *variant, int vendor, uint32_t arch) {
    if ((int)variant->vendor != vendor)
        return 0;
    if (vendor == TDIST_CUDA && variant->arch < 90)
        return arch / 10 == variant->arch / 10 && arch >= variant->arch;
    return arch == variant->arch;
}

static int types_fit(const tdist_variant *variant, const tdist_value *values, size_t *wrong) {
    for (size_t i = 0; i < variant->type_count; i++)
        if (variant->types[i] != TDIST_CONSTEXPR && variant->types[i] != values[i].type) {
            *wrong = i;
            return 0;
        }
    return 1;
}

static int same_option(const tdist_option *have, const tdist_option *want) {
    if ((have->text == NULL) != (want->text == NULL))
        return 0;
    return have->text == NULL ? have->value == want->value : strcmp(have->text, want->text) == 0;
}

/* wrong: the first option that no variant has beside all those before it. */
static int options_fit(const tdist_variant *variant, const tdist_option *options, size_t count, size_t *wrong) {
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        while (at < variant->option_count && strcmp(variant->options[at].name, options[i].name) != 0)
            at++;
        if (at == variant->option_count || !same_option(&variant->options[at], &options[i])) {
            *wrong = i > *wrong ? i : *wrong;
            return 0;
        }
    }
    return 1;
}

static int hints_hold(const tdist_variant *variant, const tdist_value *values, size_t *wrong) {
    for (size_t i = 0; i < variant->type_count; i++)
        if (!tdist_hint_holds(variant->hints[i], &values[i])) {
            *wrong = i;
            return 0;
        }
    return 1;
}

int tdist_select(const tdist_kernel *kernel, const tdist_value *values, size_t count, const tdist_option *options,
                 size_t option_count, const tdist_variant **found) {
    const tdist_driver *driver = NULL;
    const tdist_variant *best = NULL;
    void *context = NULL;
    int device = 0, on_arch = 0, stage = 0;
    uint32_t arch = 0;
    size_t wrong = 0, no_hint = 0, no_type = 0, no_option = 0;
    if (kernel == NULL || found == NULL || (values == NULL && count > 0) || (options == NULL && option_count > 0))
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_select: a null pointer");
    if (count != kernel->parameter_count)
        return tdist_fail(TDIST_ERR_ARGUMENT, "%s: expected %zu values, found %zu", kernel->name, kernel->parameter_count, count);
    int status = tdist_get_driver(&driver);
    if (status == TDIST_OK)
        status = driver->context(&context, &device);
    if (status == TDIST_OK)
        status = driver->arch(device, &arch);
    if (status != TDIST_OK)
        return status;
    for (size_t v = 0; v < kernel->variant_count; v++) {
        const tdist_variant *variant = kernel->variants[v];
        if (!runs_on(variant, driver->vendor, arch))
            continue;
        on_arch = 1;
        if (!types_fit(variant, values, &wrong)) {
            no_type = wrong;
        } else if (!options_fit(variant, options, option_count, &no_option)) {
            stage = stage < 1 ? 1 : stage;
        } else if (!hints_hold(variant, values, &wrong)) {
            stage = 2;
            no_hint = wrong;
        } else if (best == NULL || variant->hint_count > best->hint_count) {
            best = variant;
        }
    }
    *found = best;
    if (best != NULL)
        return TDIST_OK;
    if (!on_arch)
        return tdist_fail(TDIST_ERR_WRONG_ARCH, driver->vendor == TDIST_CUDA ? "%s: not built for sm_%u" : "%s: not built for gfx%x",
                          kernel->name, arch);
    if (stage == 0)
        return tdist_fail(TDIST_ERR_NOT_BUILT, "%s: no variant has %s of type %#x", kernel->name, kernel->parameters[no_type],
                          values[no_type].type);
    if (stage == 1)
        return tdist_fail(TDIST_ERR_NOT_BUILT, "%s: no variant of these types has %s as asked", kernel->name,
                          options[no_option].name);
    return tdist_fail(TDIST_ERR_NOT_BUILT, "%s: all variants need another alignment or value of %s", kernel->name,
                      kernel->parameters[no_hint]);
}

/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Which driver this process has. */
#include "tdist_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "tdist_internal.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const tdist_driver *driver;
static int status = TDIST_ERR_NO_DRIVER;
static char reason[256];

int tdist_symbol(void *library, const char *name, void *slot) {
    void *found = dlsym(library, name);
    if (found == NULL)
        return tdist_fail(TDIST_ERR_NO_DRIVER, "the driver library has no %s: it is too old", name);
    memcpy(slot, &found, sizeof found);
    return TDIST_OK;
}

static int has_vendor(int vendor) {
    for (size_t k = 0; k < tdist_kernels_count; k++)
        for (size_t v = 0; v < tdist_kernels[k]->variant_count; v++)
            if (tdist_kernels[k]->variants[v]->vendor == (uint32_t)vendor)
                return 1;
    return tdist_kernels_count == 0;
}

static void find(void) {
    if (has_vendor(TDIST_CUDA))
        status = tdist_open_cuda(&driver);
    if (status == TDIST_ERR_NO_DRIVER && has_vendor(TDIST_HIP)) {
        const tdist_driver *other = NULL;
        int found = tdist_open_hip(&other);
        if (found == TDIST_OK || !has_vendor(TDIST_CUDA)) {
            status = found;
            driver = other;
        }
    }
    if (status != TDIST_OK)
        strncpy(reason, tdist_last_error(), sizeof reason - 1);
}

int tdist_get_driver(const tdist_driver **out) {
    pthread_once(&once, find);
    if (status != TDIST_OK)
        return tdist_fail(status, "%s", reason);
    *out = driver;
    return TDIST_OK;
}

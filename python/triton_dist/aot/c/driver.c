/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Which driver this process has. */
#include "tdist_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tdist_internal.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const tdist_driver *driver;
static int status = TDIST_ERR_NO_DRIVER;
static int failed_with;                 /* the driver's code, where status is TDIST_ERR_DRIVER */
static char reason[512];

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
    if (has_vendor(TDIST_CUDA) && status != TDIST_OK) {
        snprintf(reason, sizeof reason, "%s", tdist_last_error());
        failed_with = tdist_driver_code();
    }
    if (status == TDIST_OK || !has_vendor(TDIST_HIP))
        return;
    int of_hip = tdist_open_hip(&driver);       /* also where CUDA's driver is there, and finds no device */
    if (of_hip != TDIST_OK && status != TDIST_ERR_NO_DRIVER)
        return;
    status = of_hip;
    failed_with = tdist_driver_code();
    size_t told = strlen(reason);
    snprintf(reason + told, sizeof reason - told, "%s%s", told > 0 ? "; " : "", tdist_last_error());
}

int tdist_get_driver(const tdist_driver **out) {
    pthread_once(&once, find);
    if (status == TDIST_ERR_DRIVER)
        tdist_fail_driver("", failed_with);     /* of this thread too */
    if (status != TDIST_OK)
        return tdist_fail(status, "%s", reason);
    *out = driver;
    return TDIST_OK;
}

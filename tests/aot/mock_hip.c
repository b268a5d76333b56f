/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   A libamdhip64.so for machines without a GPU, declared by the real hip_runtime_api.h. Calls are written to the file TDIST_MOCK_LOG.
   TDIST_MOCK_GFX: the architecture. TDIST_MOCK_PARAMS: how many parameters of a launch are recorded, as words of 8 bytes. */
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock_elf.h"

static void say(const char *format, ...) {
    const char *path = getenv("TDIST_MOCK_LOG");
    FILE *file = path == NULL ? NULL : fopen(path, "a");
    va_list rest;
    if (file == NULL)
        return;
    va_start(rest, format);
    vfprintf(file, format, rest);
    va_end(rest);
    fputc('\n', file);
    fclose(file);
}

hipError_t hipInit(unsigned flags) { say("hipInit %u", flags); return hipSuccess; }
hipError_t hipCtxGetCurrent(hipCtx_t *context) { *context = NULL; return hipSuccess; }
hipError_t hipGetDevice(int *device) { *device = 1; return hipSuccess; }
hipError_t hipGetDeviceProperties(hipDeviceProp_t *found, int device) {
    const char *arch = getenv("TDIST_MOCK_GFX");
    (void)device;
    memset(found, 0, sizeof *found);
    snprintf(found->gcnArchName, sizeof found->gcnArchName, "%s:sramecc+:xnack-", arch == NULL ? "gfx942" : arch);
    return hipSuccess;
}
hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device) {
    (void)device;
    *value = attribute == hipDeviceAttributeMultiprocessorCount ? 304 : attribute == hipDeviceAttributeMaxSharedMemoryPerBlock ? 65536 : 0;
    return hipSuccess;
}
hipError_t hipModuleLoadData(hipModule_t *out, const void *image) {
    say("hipModuleLoadData");
    *out = (hipModule_t)(uintptr_t)image;
    return memcmp(image, "\177ELF", 4) == 0 ? hipSuccess : hipErrorInvalidImage;
}
hipError_t hipModuleUnload(hipModule_t it) { (void)it; say("hipModuleUnload"); return hipSuccess; }
hipError_t hipModuleGetFunction(hipFunction_t *out, hipModule_t it, const char *name) {
    (void)it;
    *out = (hipFunction_t)strdup(name);
    return hipSuccess;
}
hipError_t hipModuleGetGlobal(hipDeviceptr_t *address, size_t *size, hipModule_t it, const char *name) {
    const Elf64_Sym *found = symbol((const unsigned char *)it, ".dynsym", ".dynstr", name);
    if (found == NULL)
        return hipErrorNotFound;
    *size = found->st_size;
    *address = calloc(1, *size);
    return hipSuccess;
}

static void said(const char *call, hipFunction_t f, unsigned x, unsigned block, unsigned shared, hipStream_t stream, void **params) {
    char words[4096] = "";
    int n = 0, count = getenv("TDIST_MOCK_PARAMS") == NULL ? 0 : atoi(getenv("TDIST_MOCK_PARAMS"));
    for (int p = 0; p < count; p++) {
        n += snprintf(words + n, sizeof words - (size_t)n, " p%d=", p);
        for (int b = 0; b < 8; b++)
            n += snprintf(words + n, sizeof words - (size_t)n, "%02x", ((unsigned char *)params[p])[b]);
    }
    say("%s %s grid=%u block=%u shared=%u stream=%p%s", call, (const char *)f, x, block, shared, (void *)stream, words);
}
hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                                 unsigned shared, hipStream_t stream, void **params, void **extra) {
    (void)y, (void)z, (void)by, (void)bz, (void)extra;
    said("hipModuleLaunchKernel", f, x, bx, shared, stream, params);
    return hipSuccess;
}
hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                                            unsigned shared, hipStream_t stream, void **params) {
    (void)y, (void)z, (void)by, (void)bz;
    said("hipModuleLaunchCooperativeKernel", f, x, bx, shared, stream, params);
    return hipSuccess;
}
hipError_t hipStreamIsCapturing(hipStream_t it, hipStreamCaptureStatus *status) {
    (void)it;
    *status = hipStreamCaptureStatusNone;
    return hipSuccess;
}
hipError_t hipStreamCreateWithFlags(hipStream_t *out, unsigned flags) { (void)flags; *out = (hipStream_t)malloc(1); return hipSuccess; }
hipError_t hipStreamDestroy(hipStream_t it) { free(it); return hipSuccess; }
hipError_t hipStreamSynchronize(hipStream_t it) { (void)it; return hipSuccess; }
hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, const void *from, size_t size, hipStream_t on) {
    (void)on;
    say("hipMemcpyHtoDAsync %zu", size);
    memcpy(to, from, size);
    return hipSuccess;
}
hipError_t hipMalloc(void **out, size_t size) { *out = malloc(size); return hipSuccess; }
hipError_t hipFree(void *it) { free(it); return hipSuccess; }
hipError_t hipMallocAsync(void **out, size_t size, hipStream_t on) { (void)on; *out = malloc(size); return hipSuccess; }
hipError_t hipFreeAsync(void *it, hipStream_t on) { (void)on; free(it); return hipSuccess; }

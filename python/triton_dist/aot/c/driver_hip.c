/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   HIP's driver, libamdhip64.so. */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "tdist_driver.h"
#include "tdist_internal.h"

enum { NOT_FOUND = 500, SMS = 63, SHARED_PER_BLOCK = 74, STREAM_NON_BLOCKING = 1 };   /* hipError_t, hipDeviceAttribute_t */

static tdist_hip hip;

#define CHECK(call, what) do { int code_ = (call); if (code_) return tdist_fail_driver(what, code_); } while (0)

static int context(void **current, int *device) {
    CHECK(hip.context_device(device), "hipGetDevice");
    *current = (void *)(uintptr_t)(*device + 1);        /* a device has one */
    return TDIST_OK;
}

static int arch(int device, uint32_t *found) {
    union { char bytes[TDIST_HIP_PROPERTIES_BYTES]; uint64_t aligned; } properties;
    memset(&properties, 0, sizeof properties);
    CHECK(hip.properties(&properties, device), "hipGetDeviceProperties");
    const char *name = properties.bytes + TDIST_HIP_ARCH_OFFSET;
    if (strncmp(name, "gfx", 3) != 0)
        return tdist_fail(TDIST_ERR_VERSION, "the HIP library describes devices otherwise than was expected");
    *found = (uint32_t)strtoul(name + 3, NULL, 16);     /* up to a colon and features */
    return TDIST_OK;
}

static int sms(int device, int *count) {
    CHECK(hip.attribute(count, SMS, device), "hipDeviceGetAttribute");
    return TDIST_OK;
}

static int module_load(const void *image, const char *symbol, uint32_t shared, int device, void **module, void **function) {
    int most = 0;
    CHECK(hip.attribute(&most, SHARED_PER_BLOCK, device), "hipDeviceGetAttribute");
    if ((int64_t)shared > most)
        return tdist_fail(TDIST_ERR_SHARED_MEMORY, "the kernel takes %u bytes of shared memory, the device has %d", shared, most);
    CHECK(hip.module_load(module, image), "hipModuleLoadData");
    int code = hip.module_function(function, *module, symbol);
    if (code) {
        hip.module_unload(*module);
        return tdist_fail_driver("hipModuleGetFunction", code);
    }
    return TDIST_OK;
}

static int module_unload(void *module) {
    CHECK(hip.module_unload(module), "hipModuleUnload");
    return TDIST_OK;
}

static int module_global(void *module, const char *name, uint64_t *address, size_t *size) {
    void *found = NULL;
    int code = hip.module_global(&found, size, module, name);
    *address = code ? 0 : (uint64_t)(uintptr_t)found;
    if (code && code != NOT_FOUND)
        return tdist_fail_driver("hipModuleGetGlobal", code);
    return TDIST_OK;
}

static int launch(const tdist_launch_config *asked) {
    const uint32_t *g = asked->grid;
    if (asked->cooperative)
        CHECK(hip.launch_cooperative(asked->function, g[0], g[1], g[2], asked->block, 1, 1, asked->shared, asked->stream,
                                     asked->params), "hipModuleLaunchCooperativeKernel");
    else
        CHECK(hip.launch(asked->function, g[0], g[1], g[2], asked->block, 1, 1, asked->shared, asked->stream, asked->params,
                         NULL), "hipModuleLaunchKernel");
    return TDIST_OK;
}

static int capturing(void *stream, int *yes) {
    *yes = 0;
    CHECK(hip.capturing(stream, yes), "hipStreamIsCapturing");
    return TDIST_OK;
}

static int to_device(uint64_t address, const void *bytes, size_t size) {
    void *stream = NULL;
    CHECK(hip.stream_create(&stream, STREAM_NON_BLOCKING), "hipStreamCreateWithFlags");
    int code = hip.to_device((void *)(uintptr_t)address, bytes, size, stream);
    if (!code)
        code = hip.stream_wait(stream);
    hip.stream_destroy(stream);
    CHECK(code, "hipMemcpyHtoDAsync");
    return TDIST_OK;
}

static int allocate(uint64_t *address, size_t size, void *stream) {
    void *found = NULL;
    CHECK(hip.allocate_async(&found, size, stream), "hipMallocAsync");
    *address = (uint64_t)(uintptr_t)found;
    return TDIST_OK;
}

static int release(uint64_t address, void *stream) {
    CHECK(hip.release_async((void *)(uintptr_t)address, stream), "hipFreeAsync");
    return TDIST_OK;
}

static int allocate_kept(uint64_t *address, size_t size) {
    void *found = NULL;
    CHECK(hip.allocate(&found, size), "hipMalloc");
    *address = (uint64_t)(uintptr_t)found;
    return TDIST_OK;
}

static int release_kept(uint64_t address) {
    CHECK(hip.release((void *)(uintptr_t)address), "hipFree");
    return TDIST_OK;
}

static const tdist_driver table = {
    TDIST_HIP, context, arch, sms, module_load, module_unload, module_global, launch, capturing, to_device, allocate, release,
    allocate_kept, release_kept,
};

/* Under a lock of the loader, so nothing is opened here. */
static int is_hip(struct dl_phdr_info *info, size_t size, void *path) {
    const char *name = strrchr(info->dlpi_name, '/');
    (void)size;
    if (name == NULL || strncmp(name, "/libamdhip64.so", 15) != 0 || strlen(info->dlpi_name) >= PATH_MAX)
        return 0;
    strcpy(path, info->dlpi_name);
    return 1;
}

/* The copy that this process has, such as torch's: two copies do not know each other's streams. Else the system's, which has a name
   without a number only where its headers are installed. */
static void *open_library(void) {
    static const char *const names[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
    char path[PATH_MAX];
    void *library = dl_iterate_phdr(is_hip, path) ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

int tdist_open_hip(const tdist_driver **out) {
    int status = TDIST_OK;
    void *library = open_library();
    if (library == NULL)
        return tdist_fail(TDIST_ERR_NO_DRIVER, "cannot load libamdhip64.so, .7, .6 or .5");
#define LOOK_UP(name, symbol, parameters) if (status == TDIST_OK) status = tdist_symbol(library, #symbol, &hip.name);
    TDIST_HIP_CORE(LOOK_UP)
#undef LOOK_UP
    if (status != TDIST_OK)
        return status;
    CHECK(hip.init(0), "hipInit");
    *out = &table;
    return TDIST_OK;
}

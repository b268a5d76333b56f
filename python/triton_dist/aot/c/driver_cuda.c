/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   CUDA's driver, libcuda.so.1. */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "tdist_driver.h"
#include "tdist_internal.h"

enum {
    OUT_OF_MEMORY = 2, NOT_FOUND = 500,                                              /* CUresult */
    SMS = 16, MAJOR = 75, MINOR = 76, SHARED_OPTIN = 97,                              /* CUdevice_attribute */
    FUNCTION_STATIC_SHARED = 1, FUNCTION_MAX_DYNAMIC_SHARED = 8, FUNCTION_NON_PORTABLE_CLUSTER = 14,
    LAUNCH_COOPERATIVE = 2, LAUNCH_CLUSTER = 4, LAUNCH_CLUSTER_POLICY = 5, LAUNCH_OVERLAPPING = 6, POLICY_SPREAD = 1,
    STREAM_NON_BLOCKING = 1, PORTABLE_CLUSTER = 8, SMALL_SHARED = 49152
};

static tdist_cuda cuda;
static tdist_cuda_host host;
static void *library;

#define CHECK(call, what) do { int code_ = (call); if (code_) return failed(what, code_); } while (0)

static int failed(const char *call, int code) {
    const char *name = NULL;
    int status = tdist_fail_driver(call, code);
    if (cuda.error_name != NULL && cuda.error_name(code, &name) == 0 && name != NULL)
        tdist_fail(status, "%s failed with %d, %s", call, code, name);
    return status;
}

static int context(void **current, int *device) {
    *current = NULL;
    CHECK(cuda.context(current), "cuCtxGetCurrent");
    if (*current == NULL)
        return tdist_fail(TDIST_ERR_ARGUMENT, "no driver context is current in this thread; set the device first");
    CHECK(cuda.context_device(device), "cuCtxGetDevice");
    return TDIST_OK;
}

static int arch(int device, uint32_t *found) {
    int major = 0, minor = 0;
    CHECK(cuda.attribute(&major, MAJOR, device), "cuDeviceGetAttribute");
    CHECK(cuda.attribute(&minor, MINOR, device), "cuDeviceGetAttribute");
    *found = (uint32_t)(10 * major + minor);
    return TDIST_OK;
}

static int sms(int device, int *count) {
    CHECK(cuda.attribute(count, SMS, device), "cuDeviceGetAttribute");
    return TDIST_OK;
}

static int widen(void *function, uint32_t shared, int device) {
    int most = 0, taken = 0;
    CHECK(cuda.attribute(&most, SHARED_OPTIN, device), "cuDeviceGetAttribute");
    CHECK(cuda.function_get(&taken, FUNCTION_STATIC_SHARED, function), "cuFuncGetAttribute");
    if ((int64_t)shared + taken > most)
        return tdist_fail(TDIST_ERR_SHARED_MEMORY, "the kernel takes %u + %d bytes of shared memory, the device has %d", shared,
                          taken, most);
    CHECK(cuda.function_set(function, FUNCTION_MAX_DYNAMIC_SHARED, most - taken), "cuFuncSetAttribute");
    return TDIST_OK;
}

static int module_load(const void *image, const char *symbol, uint32_t shared, int device, void **module, void **function) {
    CHECK(cuda.module_load(module, image), "cuModuleLoadData");
    int code = cuda.module_function(function, *module, symbol);
    int status = code ? failed("cuModuleGetFunction", code) : TDIST_OK;
    if (status == TDIST_OK && shared > SMALL_SHARED)
        status = widen(*function, shared, device);
    if (status != TDIST_OK)
        cuda.module_unload(*module);
    return status;
}

static int module_unload(void *module) {
    CHECK(cuda.module_unload(module), "cuModuleUnload");
    return TDIST_OK;
}

static int module_global(void *module, const char *name, uint64_t *address, size_t *size) {
    tdist_cu_address found = 0;
    int code = cuda.module_global(&found, size, module, name);
    *address = code ? 0 : found;
    if (code && code != NOT_FOUND)
        return failed("cuModuleGetGlobal", code);
    return TDIST_OK;
}

static int launch(const tdist_launch_config *asked) {
    tdist_cu_attribute attributes[3];
    unsigned count = 0;
    if (asked->cooperative || asked->overlaps) {
        attributes[count].id = asked->cooperative ? LAUNCH_COOPERATIVE : LAUNCH_OVERLAPPING;
        attributes[count++].value.flag = 1;
    }
    if (asked->clusters > 1) {
        if (asked->clusters > PORTABLE_CLUSTER)
            CHECK(cuda.function_set(asked->function, FUNCTION_NON_PORTABLE_CLUSTER, 1), "cuFuncSetAttribute");
        attributes[count].id = LAUNCH_CLUSTER;
        attributes[count].value.dims.x = asked->clusters;
        attributes[count].value.dims.y = attributes[count].value.dims.z = 1;
        count++;
        attributes[count].id = LAUNCH_CLUSTER_POLICY;
        attributes[count++].value.flag = POLICY_SPREAD;
    }
    tdist_cu_config config = {
        .grid = {asked->grid[0] * asked->clusters, asked->grid[1], asked->grid[2]}, .block = {asked->block, 1, 1},
        .shared = asked->shared, .stream = asked->stream, .attributes = attributes, .attribute_count = count,
    };
    CHECK(cuda.launch(&config, asked->function, asked->params, NULL), "cuLaunchKernelEx");
    return TDIST_OK;
}

static int capturing(void *stream, int *yes) {
    *yes = 0;
    CHECK(cuda.capturing(stream, yes), "cuStreamIsCapturing");
    return TDIST_OK;
}

static int to_device(uint64_t address, const void *bytes, size_t size) {
    void *stream = NULL;                /* one that does not wait for the legacy default stream */
    CHECK(cuda.stream_create(&stream, STREAM_NON_BLOCKING, 0), "cuStreamCreateWithPriority");
    int code = cuda.to_device(address, bytes, size, stream);
    if (!code)
        code = cuda.stream_wait(stream);
    cuda.stream_destroy(stream);
    CHECK(code, "cuMemcpyHtoDAsync");
    return TDIST_OK;
}

static int allocate(uint64_t *address, size_t size, void *stream) {
    tdist_cu_address found = 0;
    CHECK(cuda.allocate_async(&found, size, stream), "cuMemAllocAsync");
    *address = found;
    return TDIST_OK;
}

static int release(uint64_t address, void *stream) {
    CHECK(cuda.release_async(address, stream), "cuMemFreeAsync");
    return TDIST_OK;
}

static int allocate_kept(uint64_t *address, size_t size) {
    tdist_cu_address found = 0;
    CHECK(cuda.allocate(&found, size), "cuMemAlloc");
    *address = found;
    return TDIST_OK;
}

static int release_kept(uint64_t address) {
    CHECK(cuda.release(address), "cuMemFree");
    return TDIST_OK;
}

static const tdist_driver table = {
    TDIST_CUDA, context, arch, sms, module_load, module_unload, module_global, launch, capturing, to_device, allocate, release,
    allocate_kept, release_kept,
};

int tdist_open_cuda(const tdist_driver **out) {
    int status = TDIST_OK;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return tdist_fail(TDIST_ERR_NO_DRIVER, "cannot load libcuda.so.1: %s", dlerror());
#define LOOK_UP(name, symbol, parameters) if (status == TDIST_OK) status = tdist_symbol(library, #symbol, &cuda.name);
    TDIST_CUDA_CORE(LOOK_UP)
#undef LOOK_UP
    if (status != TDIST_OK)
        return status;
    CHECK(cuda.init(0), "cuInit");
    *out = &table;
    return TDIST_OK;
}

int tdist_get_cuda(const tdist_cuda **out) {
    const tdist_driver *driver = NULL;
    int status = tdist_get_driver(&driver);
    if (status != TDIST_OK)
        return status;
    if (driver->vendor != TDIST_CUDA)
        return tdist_fail(TDIST_ERR_UNSUPPORTED, "this needs CUDA's driver");
    *out = &cuda;
    return TDIST_OK;
}

static pthread_once_t host_once = PTHREAD_ONCE_INIT;
static int host_status;
static char host_reason[128];

static void look_up_host(void) {
#define LOOK_UP(name, symbol, parameters) \
    if (host_status == TDIST_OK) host_status = tdist_symbol(library, #symbol, &host.name);
    TDIST_CUDA_HOST(LOOK_UP)
#undef LOOK_UP
    if (host_status != TDIST_OK)
        strncpy(host_reason, tdist_last_error(), sizeof host_reason - 1);
}

int tdist_get_cuda_host(const tdist_cuda_host **out) {
    const tdist_cuda *core = NULL;
    int status = tdist_get_cuda(&core);
    if (status != TDIST_OK)
        return status;
    pthread_once(&host_once, look_up_host);
    if (host_status != TDIST_OK)
        return tdist_fail(host_status, "%s", host_reason);
    *out = &host;
    return TDIST_OK;
}

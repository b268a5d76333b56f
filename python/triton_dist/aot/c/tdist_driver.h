/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   The driver, looked up at run time, and as much of its interface as is used: there is no cuda.h to install, and no driver to
   link with. tests/aot compares the declarations with cuda.h and hip_runtime_api.h. */
#ifndef TDIST_DRIVER_H
#define TDIST_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* -- CUDA ---------------------------------------------------------------------------------------------------------------- */
typedef unsigned long long tdist_cu_address;
typedef struct tdist_cu_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int flag;
        struct { unsigned x, y, z; } dims;
    } value;
} tdist_cu_attribute;

typedef struct tdist_cu_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    tdist_cu_attribute *attributes;
    unsigned attribute_count;
} tdist_cu_config;

typedef struct tdist_cu_location { int type, id; } tdist_cu_location;
typedef struct tdist_cu_allocation {
    int type, handle_types;
    tdist_cu_location location;
    void *windows;
    struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} tdist_cu_allocation;
typedef struct tdist_cu_access { tdist_cu_location location; int flags; } tdist_cu_access;
typedef struct tdist_cu_uuid { char bytes[16]; } tdist_cu_uuid;

/* X(name, exported symbol, parameters) */
#define TDIST_CUDA_CORE(X) \
    X(init, cuInit, (unsigned)) \
    X(error_name, cuGetErrorName, (int, const char **)) \
    X(context, cuCtxGetCurrent, (void **)) \
    X(context_device, cuCtxGetDevice, (int *)) \
    X(attribute, cuDeviceGetAttribute, (int *, int, int)) \
    X(module_load, cuModuleLoadData, (void **, const void *)) \
    X(module_unload, cuModuleUnload, (void *)) \
    X(module_function, cuModuleGetFunction, (void **, void *, const char *)) \
    X(module_global, cuModuleGetGlobal_v2, (tdist_cu_address *, size_t *, void *, const char *)) \
    X(function_set, cuFuncSetAttribute, (void *, int, int)) \
    X(function_get, cuFuncGetAttribute, (int *, int, void *)) \
    X(launch, cuLaunchKernelEx, (const tdist_cu_config *, void *, void **, void **)) \
    X(encode, cuTensorMapEncodeTiled, (void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *, \
                                       const uint32_t *, int, int, int, int)) \
    X(capturing, cuStreamIsCapturing, (void *, int *)) \
    X(stream_create, cuStreamCreateWithPriority, (void **, unsigned, int)) \
    X(stream_destroy, cuStreamDestroy_v2, (void *)) \
    X(stream_wait, cuStreamSynchronize, (void *)) \
    X(to_device, cuMemcpyHtoDAsync_v2, (tdist_cu_address, const void *, size_t, void *)) \
    X(allocate, cuMemAlloc_v2, (tdist_cu_address *, size_t)) \
    X(release, cuMemFree_v2, (tdist_cu_address)) \
    X(allocate_async, cuMemAllocAsync, (tdist_cu_address *, size_t, void *)) \
    X(release_async, cuMemFreeAsync, (tdist_cu_address, void *))

/* What the host side (triton_dist.h) needs beside that. */
#define TDIST_CUDA_HOST(X) \
    X(driver_version, cuDriverGetVersion, (int *)) \
    X(device, cuDeviceGet, (int *, int)) \
    X(device_uuid, cuDeviceGetUuid_v2, (tdist_cu_uuid *, int)) \
    X(can_access, cuDeviceCanAccessPeer, (int *, int, int)) \
    X(primary_retain, cuDevicePrimaryCtxRetain, (void **, int)) \
    X(primary_release, cuDevicePrimaryCtxRelease_v2, (int)) \
    X(context_set, cuCtxSetCurrent, (void *)) \
    X(context_wait, cuCtxSynchronize, (void)) \
    X(copy, cuMemcpyAsync, (tdist_cu_address, tdist_cu_address, size_t, void *)) \
    X(fill32, cuMemsetD32Async, (tdist_cu_address, unsigned, size_t, void *)) \
    X(write32, cuStreamWriteValue32_v2, (void *, tdist_cu_address, uint32_t, unsigned)) \
    X(stream_id, cuStreamGetId, (void *, unsigned long long *)) \
    X(event_create, cuEventCreate, (void **, unsigned)) \
    X(event_destroy, cuEventDestroy_v2, (void *)) \
    X(event_record, cuEventRecord, (void *, void *)) \
    X(event_wait, cuStreamWaitEvent, (void *, void *, unsigned)) \
    X(granularity, cuMemGetAllocationGranularity, (size_t *, const tdist_cu_allocation *, int)) \
    X(memory_create, cuMemCreate, (unsigned long long *, size_t, const tdist_cu_allocation *, unsigned long long)) \
    X(memory_release, cuMemRelease, (unsigned long long)) \
    X(memory_export, cuMemExportToShareableHandle, (void *, unsigned long long, int, unsigned long long)) \
    X(memory_import, cuMemImportFromShareableHandle, (unsigned long long *, void *, int)) \
    X(reserve, cuMemAddressReserve, (tdist_cu_address *, size_t, size_t, tdist_cu_address, unsigned long long)) \
    X(reserve_end, cuMemAddressFree, (tdist_cu_address, size_t)) \
    X(map, cuMemMap, (tdist_cu_address, size_t, size_t, unsigned long long, unsigned long long)) \
    X(unmap, cuMemUnmap, (tdist_cu_address, size_t)) \
    X(set_access, cuMemSetAccess, (tdist_cu_address, size_t, const tdist_cu_access *, size_t))

#define TDIST_DECLARE(name, symbol, parameters) int (*name) parameters;
typedef struct tdist_cuda { TDIST_CUDA_CORE(TDIST_DECLARE) } tdist_cuda;
typedef struct tdist_cuda_host { TDIST_CUDA_HOST(TDIST_DECLARE) } tdist_cuda_host;

/* -- HIP ----------------------------------------------------------------------------------------------------------------- */
#define TDIST_HIP_PROPERTIES_BYTES 1472     /* hipDeviceProp_t, and where gcnArchName lies in it */
#define TDIST_HIP_ARCH_OFFSET 1160
#define TDIST_HIP_CORE(X) \
    X(init, hipInit, (unsigned)) \
    X(context, hipCtxGetCurrent, (void **)) \
    X(context_device, hipGetDevice, (int *)) \
    X(properties, hipGetDevicePropertiesR0600, (void *, int)) \
    X(attribute, hipDeviceGetAttribute, (int *, int, int)) \
    X(module_load, hipModuleLoadData, (void **, const void *)) \
    X(module_unload, hipModuleUnload, (void *)) \
    X(module_function, hipModuleGetFunction, (void **, void *, const char *)) \
    X(module_global, hipModuleGetGlobal, (void **, size_t *, void *, const char *)) \
    X(launch, hipModuleLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, \
                                      void **, void **)) \
    X(launch_cooperative, hipModuleLaunchCooperativeKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                                                             unsigned, void *, void **)) \
    X(capturing, hipStreamIsCapturing, (void *, int *)) \
    X(stream_create, hipStreamCreateWithFlags, (void **, unsigned)) \
    X(stream_destroy, hipStreamDestroy, (void *)) \
    X(stream_wait, hipStreamSynchronize, (void *)) \
    X(to_device, hipMemcpyHtoDAsync, (void *, const void *, size_t, void *)) \
    X(allocate, hipMalloc, (void **, size_t)) \
    X(release, hipFree, (void *)) \
    X(allocate_async, hipMallocAsync, (void **, size_t, void *)) \
    X(release_async, hipFreeAsync, (void *, void *))
typedef struct tdist_hip { TDIST_HIP_CORE(TDIST_DECLARE) } tdist_hip;

/* -- either -------------------------------------------------------------------------------------------------------------- */
typedef struct tdist_launch_config {
    void *function, *stream;
    uint32_t grid[3], block, shared, clusters;
    int cooperative, overlaps;
    void **params;
} tdist_launch_config;

/* What the runtime asks of a driver. Each call returns a tdist_status and keeps words for what failed. */
typedef struct tdist_driver {
    int vendor;
    int (*context)(void **context, int *device);
    int (*arch)(int device, uint32_t *arch);
    int (*sms)(int device, int *count);
    int (*module_load)(const void *image, const char *symbol, uint32_t shared, int device, void **module, void **function);
    int (*module_unload)(void *module);
    int (*module_global)(void *module, const char *name, uint64_t *address, size_t *size);    /* address 0: there is none */
    int (*launch)(const tdist_launch_config *config);
    int (*capturing)(void *stream, int *yes);
    int (*to_device)(uint64_t address, const void *bytes, size_t size);     /* returns once it is there */
    int (*allocate)(uint64_t *address, size_t size, void *stream);          /* in the order of the stream, */
    int (*release)(uint64_t address, void *stream);
    int (*allocate_kept)(uint64_t *address, size_t size);                   /* or at once */
    int (*release_kept)(uint64_t address);
} tdist_driver;

/* The driver of this process: CUDA's where there is one, else HIP's. */
int tdist_get_driver(const tdist_driver **out);
int tdist_get_cuda(const tdist_cuda **out);
int tdist_get_cuda_host(const tdist_cuda_host **out);
/* driver_cuda.c, driver_hip.c. A missing library is TDIST_ERR_NO_DRIVER. */
int tdist_open_cuda(const tdist_driver **out);
int tdist_open_hip(const tdist_driver **out);
/* Opens a library once, and looks symbols up in it. */
int tdist_symbol(void *library, const char *name, void *slot);

#endif

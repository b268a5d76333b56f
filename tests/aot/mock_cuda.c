/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   A libcuda.so.1 for machines without a GPU. Its functions are declared by the real cuda.h, so that a wrong signature does not
   compile. Calls are written to the file TDIST_MOCK_LOG, one a line. Device memory is host memory, allocations that can be
   shared are memfds, streams run at once, and kernels only have their parameters recorded: sizes are read off the cubin.

   TDIST_MOCK_ARCH: 90 and the like. TDIST_MOCK_DEVICES: how many. TDIST_MOCK_FAIL: "cuName,code", that call fails. */
#define _GNU_SOURCE
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mock_elf.h"

#define GRANULE ((size_t)2 << 20)
#define MOST_PARAMS 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local CUcontext current;

typedef struct { const unsigned char *image; int loads; } module;
typedef struct { module *of; char name[256]; int count, sizes[MOST_PARAMS], attributes[16]; } function;
typedef struct { int capturing, gone; unsigned long long id; } stream;

static int number(const char *name, int usual) {
    const char *text = getenv(name);
    return text != NULL && *text ? atoi(text) : usual;
}

static void say(const char *format, ...) {
    const char *path = getenv("TDIST_MOCK_LOG");
    if (path == NULL)
        return;
    char line[16384];
    va_list rest;
    va_start(rest, format);
    int n = vsnprintf(line, sizeof line - 1, format, rest);
    va_end(rest);
    n = n < (int)sizeof line - 2 ? n : (int)sizeof line - 2;
    line[n++] = '\n';
    pthread_mutex_lock(&lock);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file >= 0) {
        ssize_t written = write(file, line, (size_t)n);
        (void)written;
        close(file);
    }
    pthread_mutex_unlock(&lock);
}

static CUresult wanted(const char *name) {
    const char *fail = getenv("TDIST_MOCK_FAIL");
    size_t n = strlen(name);
    if (fail != NULL && strncmp(fail, name, n) == 0 && fail[n] == ',')
        return (CUresult)atoi(fail + n + 1);
    return CUDA_SUCCESS;
}

/* What CUDA does for the current context. */
#define NEEDS_CONTEXT() do { if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT; } while (0)
/* Some tests name a stream by a small number. */
#define NEEDS_STREAM(it) do { if ((uintptr_t)(it) > 4096 && ((stream *)(it))->gone) return CUDA_ERROR_INVALID_HANDLE; } while (0)
#define ENTER(...) do { say(__VA_ARGS__); CUresult fail_ = wanted(__func__); if (fail_) return fail_; } while (0)
/* __func__ of what cuda.h renames ends in _v2. */

CUresult CUDAAPI cuInit(unsigned flags) { ENTER("cuInit %u", flags); return CUDA_SUCCESS; }
CUresult CUDAAPI cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
CUresult CUDAAPI cuGetErrorName(CUresult error, const char **name) {
    *name = error == CUDA_ERROR_INVALID_IMAGE ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR_OF_THE_MOCK";
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) { (void)error; *text = "as asked"; return CUDA_SUCCESS; }

/* -- devices and contexts -------------------------------------------------------------------------------------------------- */
CUresult CUDAAPI cuDeviceGetCount(int *count) { *count = number("TDIST_MOCK_DEVICES", 2); return CUDA_SUCCESS; }
CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
    if (ordinal < 0 || ordinal >= number("TDIST_MOCK_DEVICES", 2))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    int arch = number("TDIST_MOCK_ARCH", 90);
    (void)device;
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = arch / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = arch % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = number("TDIST_MOCK_SHARED", 232448); break;
    default: *value = 1;
    }
    return wanted("cuDeviceGetAttribute");
}
CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[15] = (char)(device + 1);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b) {
    *can = a != b && number("TDIST_MOCK_PEERS", 1);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER("cuDevicePrimaryCtxRetain %d", device);
    *context = (CUcontext)(uintptr_t)(0xc0 + device);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) { ENTER("cuDevicePrimaryCtxRelease %d", device); return CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) { current = context; return CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context) { *context = current; return CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxGetDevice(CUdevice *device) {
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = (CUdevice)((uintptr_t)current - 0xc0);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSynchronize(void) { return wanted("cuCtxSynchronize"); }

/* -- modules: what is read off a cubin ------------------------------------------------------------------------------------- */
/* EIATTR_KPARAM_INFO: index, ordinal and offset, size in the upper bits. */
static void read_params(function *f) {
    char name[300];
    snprintf(name, sizeof name, ".nv.info.%s", f->name);
    const Elf64_Shdr *info = section(f->of->image, name);
    if (info == NULL)
        return;
    const unsigned char *at = f->of->image + info->sh_offset, *end = at + info->sh_size;
    while (at + 4 <= end) {
        uint16_t size;
        memcpy(&size, at + 2, 2);
        if (at[0] == 4 && at[1] == 0x17) {
            uint16_t ordinal;
            uint32_t flags;
            memcpy(&ordinal, at + 8, 2);
            memcpy(&flags, at + 12, 4);
            if (ordinal < MOST_PARAMS) {
                f->sizes[ordinal] = (int)(flags >> 18);
                f->count = ordinal + 1 > f->count ? ordinal + 1 : f->count;
            }
        }
        at += at[0] == 4 ? 4 + size : 4;
    }
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *out, const void *image) {
    ENTER("cuModuleLoadData %p", image);
    if (memcmp(image, ELFMAG, SELFMAG) != 0 || (uintptr_t)image % 8 != 0)
        return CUDA_ERROR_INVALID_IMAGE;
    module *made = calloc(1, sizeof *made);
    made->image = image;
    *out = (CUmodule)made;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleUnload(CUmodule it) { ENTER("cuModuleUnload"); free(it); return CUDA_SUCCESS; }
CUresult CUDAAPI cuModuleGetFunction(CUfunction *out, CUmodule it, const char *name) {
    ENTER("cuModuleGetFunction %s", name);
    if (symbol(((module *)it)->image, ".symtab", ".strtab", name) == NULL)
        return CUDA_ERROR_NOT_FOUND;
    function *made = calloc(1, sizeof *made);           /* lives as long as the process */
    made->of = (module *)it;
    snprintf(made->name, sizeof made->name, "%s", name);
    read_params(made);
    *out = (CUfunction)made;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetGlobal(CUdeviceptr *address, size_t *size, CUmodule it, const char *name) {
    CUresult fail = wanted("cuModuleGetGlobal");
    const Elf64_Sym *found = symbol(((module *)it)->image, ".symtab", ".strtab", name);
    if (fail || found == NULL)
        return fail ? fail : CUDA_ERROR_NOT_FOUND;
    *size = found->st_size;
    *address = (CUdeviceptr)(uintptr_t)calloc(1, *size);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) {
    ENTER("cuFuncSetAttribute %s %d=%d", ((function *)f)->name, (int)attribute, value);
    ((function *)f)->attributes[attribute % 16] = value;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f) {
    *value = ((function *)f)->attributes[attribute % 16];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction it, void **params, void **extra) {
    char words[12288];
    const function *f = (const function *)it;
    int n = 0;
    (void)extra;
    for (unsigned a = 0; a < config->numAttrs; a++)
        n += snprintf(words + n, sizeof words - (size_t)n, " attribute=%d:%d", (int)config->attrs[a].id,
                      config->attrs[a].value.cooperative);
    for (int p = 0; p < f->count; p++) {
        n += snprintf(words + n, sizeof words - (size_t)n, " p%d=", p);
        for (int b = 0; b < f->sizes[p] && n < (int)sizeof words - 8; b++)
            n += snprintf(words + n, sizeof words - (size_t)n, "%02x", ((unsigned char *)params[p])[b]);
    }
    words[n] = 0;
    ENTER("cuLaunchKernelEx %s device=%d grid=%u,%u,%u block=%u shared=%u stream=%p%s", f->name, (int)((uintptr_t)current - 0xc0),
          config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->sharedMemBytes, (void *)config->hStream,
          words);
    if ((int)config->sharedMemBytes > 49152 && f->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] <
        (int)config->sharedMemBytes)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* The map's bytes are what it was made of, so that a test can read them: type, rank, swizzle, fill, address, then u32 dims and
   box, u64 strides of up to 3 dimensions. */
CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                        const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                        const cuuint32_t *ones, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                        CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    unsigned char *to = (unsigned char *)map;
    (void)interleave;
    (void)promotion;
    ENTER("cuTensorMapEncodeTiled type=%d rank=%u address=%p dims=%llu,%llu strides=%llu box=%u,%u swizzle=%d fill=%d", (int)type, rank,
          address, (unsigned long long)dims[0], (unsigned long long)dims[1], (unsigned long long)strides[0], box[0], box[1],
          (int)swizzle, (int)fill);
    if ((uintptr_t)map % 64 != 0 || address == NULL || (uintptr_t)address % 16 != 0 || rank < 1 || rank > 5)
        return CUDA_ERROR_INVALID_VALUE;
    memset(to, 0, 128);
    for (cuuint32_t d = 0; d < rank; d++) {
        if (ones[d] != 1 || box[d] > 256 || (d + 1 < rank && strides[d] % 16 != 0))
            return CUDA_ERROR_INVALID_VALUE;
        if (d < 3) {
            uint32_t size = (uint32_t)dims[d];
            memcpy(to + 16 + 4 * d, &size, 4);
            memcpy(to + 32 + 4 * d, &box[d], 4);
            memcpy(to + 48 + 8 * d, &strides[d], 8);
        }
    }
    to[0] = (unsigned char)type;
    to[1] = (unsigned char)rank;
    to[2] = (unsigned char)swizzle;
    to[3] = (unsigned char)fill;
    memcpy(to + 8, &address, 8);
    return CUDA_SUCCESS;
}

static _Thread_local stream *spare;

/* -- streams and events: all that is put on a stream has run when the call returns ------------------------------------------ */
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    (void)flags;
    (void)priority;
    NEEDS_CONTEXT();
    static unsigned long long ids = 2;                  /* those of the default streams */
    stream *made = spare != NULL ? spare : calloc(1, sizeof *made);
    spare = NULL;
    *made = (stream){.id = __atomic_add_fetch(&ids, 1, __ATOMIC_RELAXED)};
    *out = (CUstream)made;
    return CUDA_SUCCESS;
}
/* The next stream has the same handle. */
CUresult CUDAAPI cuStreamDestroy(CUstream it) {
    NEEDS_STREAM(it);
    ((stream *)it)->gone = 1;
    spare = (stream *)it;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetId(CUstream it, unsigned long long *id) {
    NEEDS_STREAM(it);
    *id = it == NULL ? 0 : (uintptr_t)it > 4096 ? ((stream *)it)->id : 100000 + (uintptr_t)it;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamSynchronize(CUstream it) { NEEDS_STREAM(it); return wanted("cuStreamSynchronize"); }
CUresult CUDAAPI cuStreamIsCapturing(CUstream it, CUstreamCaptureStatus *status) {
    *status = (uintptr_t)it > 4096 && ((stream *)it)->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamBeginCapture(CUstream it, CUstreamCaptureMode mode) {
    (void)mode;
    ((stream *)it)->capturing = 1;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamEndCapture(CUstream it, CUgraph *graph) {
    ((stream *)it)->capturing = 0;
    *graph = (CUgraph)it;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    (void)flags;
    *out = (CUgraphExec)graph;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphLaunch(CUgraphExec graph, CUstream it) { (void)graph; (void)it; return CUDA_SUCCESS; }
CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec graph) { (void)graph; return CUDA_SUCCESS; }
CUresult CUDAAPI cuGraphDestroy(CUgraph graph) { (void)graph; return CUDA_SUCCESS; }
CUresult CUDAAPI cuEventCreate(CUevent *out, unsigned flags) {
    (void)flags;
    NEEDS_CONTEXT();
    *out = (CUevent)calloc(1, 1);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventDestroy(CUevent it) { free(it); return CUDA_SUCCESS; }
CUresult CUDAAPI cuEventRecord(CUevent it, CUstream on) {
    NEEDS_STREAM(on);
    say("cuEventRecord %p %p", (void *)it, (void *)on);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventSynchronize(CUevent it) { (void)it; return CUDA_SUCCESS; }
CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent a, CUevent b) { (void)a; (void)b; *ms = 1; return CUDA_SUCCESS; }
#ifdef cuEventElapsedTime               /* newer headers rename it; drivers have both */
#undef cuEventElapsedTime
CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent a, CUevent b);
CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent a, CUevent b) { (void)a; (void)b; *ms = 1; return CUDA_SUCCESS; }
#endif
CUresult CUDAAPI cuStreamWaitEvent(CUstream it, CUevent event, unsigned flags) {
    (void)flags;
    NEEDS_STREAM(it);
    say("cuStreamWaitEvent %p %p", (void *)it, (void *)event);
    return CUDA_SUCCESS;
}

/* -- memory ------------------------------------------------------------------------------------------------------------------ */
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *address, size_t size) {
    ENTER("cuMemAlloc %zu", size);
    NEEDS_CONTEXT();
    *address = (CUdeviceptr)(uintptr_t)aligned_alloc(512, (size + 511) / 512 * 512);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
    ENTER("cuMemFree");
    NEEDS_CONTEXT();
    say("freed");
    free((void *)(uintptr_t)address);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream on) {
    ENTER("cuMemAllocAsync %zu %p", size, (void *)on);
    *address = (CUdeviceptr)(uintptr_t)malloc(size);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream on) {
    ENTER("cuMemFreeAsync %p", (void *)on);
    free((void *)(uintptr_t)address);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream on) {
    ENTER("cuMemcpyHtoDAsync %zu %p", size, (void *)on);
    memcpy((void *)(uintptr_t)to, from, size);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream on) {
    (void)on;
    memcpy(to, (void *)(uintptr_t)from, size);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream on) {
    ENTER("cuMemcpyAsync %zu %p", size, (void *)on);
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, size);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream on) {
    (void)on;
    for (size_t i = 0; i < count; i++)
        ((unsigned *)(uintptr_t)to)[i] = value;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamWriteValue32(CUstream on, CUdeviceptr to, cuuint32_t value, unsigned flags) {
    (void)flags;
    ENTER("cuStreamWriteValue32 %p %u", (void *)on, value);
    __atomic_store_n((uint32_t *)(uintptr_t)to, value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

/* -- memory that can be shared: a handle is a file descriptor ---------------------------------------------------------------- */
CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *what,
                                               CUmemAllocationGranularity_flags flags) {
    (void)flags;
    *granularity = what->type == CU_MEM_ALLOCATION_TYPE_PINNED ? GRANULE : 0;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *what,
                             unsigned long long flags) {
    (void)flags;
    ENTER("cuMemCreate %zu device=%d", size, what->location.id);
    if (what->type != CU_MEM_ALLOCATION_TYPE_PINNED || what->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        what->location.type != CU_MEM_LOCATION_TYPE_DEVICE || size % GRANULE != 0)
        return CUDA_ERROR_INVALID_VALUE;
    int file = memfd_create("mock", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)size) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUmemGenericAllocationHandle)file;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER("cuMemRelease");
    return close((int)handle) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                              unsigned long long flags) {
    (void)flags;
    ENTER("cuMemExportToShareableHandle %d", (int)type);
    *(int *)out = dup((int)handle);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *file, CUmemAllocationHandleType type) {
    ENTER("cuMemImportFromShareableHandle %d", (int)type);
    int copy = dup((int)(intptr_t)file);
    if (copy < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUmemGenericAllocationHandle)copy;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
    (void)alignment;
    (void)hint;
    (void)flags;
    ENTER("cuMemAddressReserve %zu", size);
    void *found = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = (CUdeviceptr)(uintptr_t)found;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t size) {
    ENTER("cuMemAddressFree %zu", size);
    return munmap((void *)(uintptr_t)address, size) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    (void)flags;
    ENTER("cuMemMap %zu", size);
    void *at = (void *)(uintptr_t)address;
    return mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, (off_t)offset) == at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t size) {
    ENTER("cuMemUnmap %zu", size);
    void *at = (void *)(uintptr_t)address;
    return mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at ? CUDA_SUCCESS
                                                                                                         : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
    ENTER("cuMemSetAccess %zu device=%d", size, access->location.id);
    if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    return mprotect((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

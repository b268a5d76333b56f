/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Modules: one for each variant and driver context, loaded on first use and made ready before anybody else sees it. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tdist_driver.h"
#include "tdist_internal.h"

#define NVSHMEM_LIBRARY "libnvshmem_host.so.3"

/* What modules of one driver context have as their context global. */
typedef struct world {
    struct world *next;
    void *context;
    int set;
    unsigned char bytes[TDIST_CONTEXT_BYTES];
} world;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;        /* of all that follows, and of changes to the lists of loaded */
static world *worlds;

static tdist_loaded *find(const tdist_variant *variant, const void *context) {
    tdist_loaded *entry = atomic_load_explicit(&variant->state->loaded, memory_order_acquire);
    while (entry != NULL && entry->context != context)
        entry = entry->next;
    return entry;
}

static world *world_of(const void *context) {
    world *found = worlds;
    while (found != NULL && found->context != context)
        found = found->next;
    return found;
}

/* Tells NVSHMEM of a module, or that it goes. */
static int tell_nvshmem(const char *function, void *module) {
    void *library = dlopen(NVSHMEM_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    int (*call)(void *) = NULL;
    if (library == NULL || tdist_symbol(library, function, &call) != TDIST_OK)
        return tdist_fail(TDIST_ERR_NO_NVSHMEM, "a kernel calls NVSHMEM, but this process has not initialised " NVSHMEM_LIBRARY);
    int code = call(module);
    dlclose(library);
    return code ? tdist_fail(TDIST_ERR_NO_NVSHMEM, "%s failed with %d", function, code) : TDIST_OK;
}

static int complete(const tdist_driver *driver, const tdist_variant *variant, tdist_loaded *entry) {
    size_t size = 0;
    int status = driver->module_global(entry->module, TDIST_CONTEXT_SYMBOL, &entry->world, &size);
    if (status == TDIST_OK && entry->world != 0 && size != TDIST_CONTEXT_BYTES)
        return tdist_fail(TDIST_ERR_VERSION, "%s: its context has %zu bytes, this runtime's %d; build the library again",
                          variant->name, size, TDIST_CONTEXT_BYTES);
    world *known = world_of(entry->context);
    if (status == TDIST_OK && entry->world != 0 && known != NULL && known->set) {
        status = driver->to_device(entry->world, known->bytes, sizeof known->bytes);
        atomic_store(&entry->filled, status == TDIST_OK);
    }
    if (status == TDIST_OK && variant->uses_nvshmem)
        status = tell_nvshmem("nvshmemx_cumodule_init", entry->module);
    return status;
}

/* Under the lock. */
static int load(const tdist_driver *driver, const tdist_variant *variant, tdist_stream stream, void *context, int device,
                tdist_loaded **out) {
    int yes = 0, status = stream == NULL ? TDIST_OK : driver->capturing(stream, &yes);
    if (status != TDIST_OK)
        return status;
    if (yes)
        return tdist_fail(TDIST_ERR_CAPTURE, "%s: its first launch loads it, which cannot be captured; call tdist_load or "
                          "tdist_launch_create before the capture", variant->name);
    tdist_loaded *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return tdist_fail(TDIST_ERR_MEMORY, "no memory for a module");
    entry->context = context;
    entry->device = device;
    status = driver->module_load(variant->image, variant->symbol, variant->shared, device, &entry->module, &entry->function);
    if (status == TDIST_OK) {
        status = complete(driver, variant, entry);
        if (status != TDIST_OK)
            driver->module_unload(entry->module);
    }
    if (status != TDIST_OK) {
        free(entry);
        return status;
    }
    entry->next = atomic_load_explicit(&variant->state->loaded, memory_order_relaxed);
    atomic_store_explicit(&variant->state->loaded, entry, memory_order_release);
    *out = entry;
    return TDIST_OK;
}

int tdist_module(const tdist_variant *variant, tdist_stream stream, tdist_loaded **out) {
    const tdist_driver *driver = NULL;
    void *context = NULL;
    int device = 0, status = tdist_get_driver(&driver);
    if (status == TDIST_OK && (int)variant->vendor != driver->vendor)
        status = tdist_fail(TDIST_ERR_WRONG_ARCH, "%s was built for another vendor's devices", variant->name);
    if (status == TDIST_OK)
        status = driver->context(&context, &device);
    if (status != TDIST_OK)
        return status;
    *out = find(variant, context);
    if (*out != NULL)
        return TDIST_OK;
    pthread_mutex_lock(&lock);
    *out = find(variant, context);              /* another thread may have been quicker */
    status = *out != NULL ? TDIST_OK : load(driver, variant, stream, context, device, out);
    pthread_mutex_unlock(&lock);
    return status;
}

int tdist_load(const tdist_variant *variant, void **module, void **function) {
    tdist_loaded *entry = NULL;
    if (variant == NULL)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_load: no variant");
    int status = tdist_module(variant, NULL, &entry);
    if (status == TDIST_OK && module != NULL)
        *module = entry->module;
    if (status == TDIST_OK && function != NULL)
        *function = entry->function;
    return status;
}

static int unload_variant(const tdist_driver *driver, const tdist_variant *variant, const void *context) {
    tdist_loaded *entry = find(variant, context), *head = atomic_load(&variant->state->loaded);
    if (entry == NULL)
        return TDIST_OK;
    if (head == entry) {
        atomic_store(&variant->state->loaded, entry->next);
    } else {
        while (head->next != entry)
            head = head->next;
        head->next = entry->next;
    }
    if (variant->uses_nvshmem)
        tell_nvshmem("nvshmemx_cumodule_finalize", entry->module);
    int status = driver->module_unload(entry->module);
    free(entry);
    return status;
}

int tdist_unload(void) {
    const tdist_driver *driver = NULL;
    void *context = NULL;
    int device = 0, status = tdist_get_driver(&driver);
    if (status == TDIST_OK)
        status = driver->context(&context, &device);
    if (status != TDIST_OK)
        return status;
    pthread_mutex_lock(&lock);
    for (size_t k = 0; k < tdist_kernels_count; k++)
        for (size_t v = 0; v < tdist_kernels[k]->variant_count; v++) {
            int one = unload_variant(driver, tdist_kernels[k]->variants[v], context);
            status = status == TDIST_OK ? one : status;
        }
    pthread_mutex_unlock(&lock);
    return status;
}

/* Under the lock. */
static int fill(const tdist_driver *driver, world *known, const void *bytes) {
    int status = TDIST_OK;
    known->set = bytes != NULL;
    if (bytes != NULL)
        memcpy(known->bytes, bytes, sizeof known->bytes);
    for (size_t k = 0; k < tdist_kernels_count; k++)
        for (size_t v = 0; v < tdist_kernels[k]->variant_count && status == TDIST_OK; v++) {
            tdist_loaded *entry = find(tdist_kernels[k]->variants[v], known->context);
            if (entry == NULL || entry->world == 0)
                continue;
            if (bytes != NULL)
                status = driver->to_device(entry->world, known->bytes, sizeof known->bytes);
            atomic_store(&entry->filled, bytes != NULL && status == TDIST_OK);
        }
    return status;
}

int tdist_set_world(const void *bytes, size_t size) {
    const tdist_driver *driver = NULL;
    void *context = NULL;
    int device = 0, status = tdist_get_driver(&driver);
    if (status == TDIST_OK && bytes != NULL && size != TDIST_CONTEXT_BYTES)
        status = tdist_fail(TDIST_ERR_VERSION, "a context has %d bytes, found %zu", TDIST_CONTEXT_BYTES, size);
    if (status == TDIST_OK)
        status = driver->context(&context, &device);
    if (status != TDIST_OK)
        return status;
    pthread_mutex_lock(&lock);
    world *known = world_of(context);
    if (known == NULL && (known = calloc(1, sizeof *known)) != NULL) {
        known->context = context;
        known->next = worlds;
        worlds = known;
    }
    status = known == NULL ? tdist_fail(TDIST_ERR_MEMORY, "no memory for a world") : fill(driver, known, bytes);
    pthread_mutex_unlock(&lock);
    return status;
}

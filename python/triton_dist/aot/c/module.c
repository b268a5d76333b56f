/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Modules: one for each variant, driver context and owner, loaded on first use and made ready before anybody else sees it. An
   owner is a tdist_world, whose kernels must not see the ranks and heaps of another world of this process; NULL stands for the
   launches that belong to none, which see what tdist_set_world was given, or else the first tdist_world of their device. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tdist_driver.h"
#include "tdist_internal.h"

#define NVSHMEM_LIBRARY "libnvshmem_host.so.3"

/* What modules of one driver context and owner have as their context global. */
typedef struct world {
    struct world *next;
    void *context;
    const void *owner, *lender;         /* lender: the owner whose bytes these are, where owner is NULL and nobody has set others */
    int set;
    unsigned char bytes[TDIST_CONTEXT_BYTES];
} world;

static const char nobody;               /* the owner of entries whose module has been unloaded; `load` uses them again */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;        /* of all that follows, and of changes to the lists of loaded */
static world *worlds;

static tdist_loaded *find(const tdist_variant *variant, const void *context, const void *owner) {
    tdist_loaded *entry = atomic_load_explicit(&variant->state->loaded, memory_order_acquire);
    while (entry != NULL && (entry->context != context || atomic_load_explicit(&entry->owner, memory_order_acquire) != owner))
        entry = entry->next;
    return entry;
}

static world *world_of(const void *context, const void *owner) {
    world *found = worlds;
    while (found != NULL && (found->context != context || found->owner != owner))
        found = found->next;
    return found;
}

/* Tells NVSHMEM of a module, or that it goes. */
static int tell_nvshmem(const char *function, void *module) {
    void *library = dlopen(NVSHMEM_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    int (*call)(void *) = NULL;
    if (library == NULL)
        return tdist_fail(TDIST_ERR_NO_NVSHMEM, "a kernel calls NVSHMEM, but this process has not initialised " NVSHMEM_LIBRARY);
    int status = tdist_symbol(library, function, &call), code = status == TDIST_OK ? call(module) : 0;
    dlclose(library);
    if (status != TDIST_OK)
        return tdist_fail(TDIST_ERR_NO_NVSHMEM, NVSHMEM_LIBRARY " has no %s: it is too old", function);
    return code ? tdist_fail(TDIST_ERR_NO_NVSHMEM, "%s failed with %d", function, code) : TDIST_OK;
}

static int complete(const tdist_driver *driver, const tdist_variant *variant, const void *owner, tdist_loaded *entry) {
    size_t size = 0;
    int status = driver->module_global(entry->module, TDIST_CONTEXT_SYMBOL, &entry->world, &size);
    if (status == TDIST_OK && entry->world != 0 && size != TDIST_CONTEXT_BYTES)
        return tdist_fail(TDIST_ERR_VERSION, "%s: its context has %zu bytes, this runtime's %d; build the library again",
                          variant->name, size, TDIST_CONTEXT_BYTES);
    world *known = world_of(entry->context, owner);
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
                const void *owner, tdist_loaded **out) {
    int yes = 0, status = stream == NULL ? TDIST_OK : driver->capturing(stream, &yes);
    if (status != TDIST_OK)
        return status;
    if (yes)
        return tdist_fail(TDIST_ERR_CAPTURE, "%s: its first launch loads it, which cannot be captured; call tdist_load or "
                          "tdist_launch_create before the capture", variant->name);
    tdist_loaded *used = find(variant, context, &nobody), *entry = used != NULL ? used : calloc(1, sizeof *entry);
    if (entry == NULL)
        return tdist_fail(TDIST_ERR_MEMORY, "no memory for a module");
    if (used == NULL) {
        entry->context = context;
        atomic_init(&entry->owner, &nobody);
    }
    entry->device = device;
    entry->world = 0;
    atomic_store(&entry->filled, 0);
    status = driver->module_load(variant->image, variant->symbol, variant->shared, device, &entry->module, &entry->function);
    if (status == TDIST_OK) {
        status = complete(driver, variant, owner, entry);
        if (status != TDIST_OK)
            driver->module_unload(entry->module);
    }
    if (status != TDIST_OK) {
        entry->module = NULL;
        if (used == NULL)
            free(entry);
        return status;
    }
    atomic_store_explicit(&entry->owner, owner, memory_order_release);
    if (used == NULL) {
        entry->next = atomic_load_explicit(&variant->state->loaded, memory_order_relaxed);
        atomic_store_explicit(&variant->state->loaded, entry, memory_order_release);
    }
    *out = entry;
    return TDIST_OK;
}

int tdist_module(const tdist_variant *variant, const void *owner, tdist_stream stream, tdist_loaded **out) {
    const tdist_driver *driver = NULL;
    void *context = NULL;
    int device = 0, status = tdist_get_driver(&driver);
    if (status == TDIST_OK && (int)variant->vendor != driver->vendor)
        status = tdist_fail(TDIST_ERR_WRONG_ARCH, "%s was built for another vendor's devices", variant->name);
    if (status == TDIST_OK)
        status = driver->context(&context, &device);
    if (status != TDIST_OK)
        return status;
    *out = find(variant, context, owner);
    if (*out != NULL)
        return TDIST_OK;
    pthread_mutex_lock(&lock);
    *out = find(variant, context, owner);       /* another thread may have been quicker */
    status = *out != NULL ? TDIST_OK : load(driver, variant, stream, context, device, owner, out);
    pthread_mutex_unlock(&lock);
    return status;
}

int tdist_load(const tdist_variant *variant, void **module, void **function) {
    tdist_loaded *entry = NULL;
    if (variant == NULL)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_load: no variant");
    int status = tdist_module(variant, NULL, NULL, &entry);
    if (status == TDIST_OK && module != NULL)
        *module = entry->module;
    if (status == TDIST_OK && function != NULL)
        *function = entry->function;
    return status;
}

/* Under the lock: unloads the owner's module, if there is one. Its entry stays, because threads of other devices or owners may be
   reading the list. */
static int unload(const tdist_driver *driver, const tdist_variant *variant, const void *context, const void *owner) {
    tdist_loaded *entry = find(variant, context, owner);
    if (entry == NULL)
        return TDIST_OK;
    if (variant->uses_nvshmem)
        tell_nvshmem("nvshmemx_cumodule_finalize", entry->module);
    int status = driver->module_unload(entry->module);
    entry->module = NULL;
    atomic_store(&entry->owner, &nobody);
    return status;
}

/* Under the lock: unloads all modules of the owner. Returns the first error. */
static int unload_all(const tdist_driver *driver, const void *context, const void *owner) {
    int status = TDIST_OK;
    for (size_t k = 0; k < tdist_kernels_count; k++)
        for (size_t v = 0; v < tdist_kernels[k]->variant_count; v++) {
            int one = unload(driver, tdist_kernels[k]->variants[v], context, owner);
            status = status == TDIST_OK ? one : status;
        }
    return status;
}

/* The driver, and the context that is current. */
static int current(const tdist_driver **driver, void **context) {
    int device = 0, status = tdist_get_driver(driver);
    return status == TDIST_OK ? (*driver)->context(context, &device) : status;
}

int tdist_unload(void) {
    const tdist_driver *driver = NULL;
    void *context = NULL;
    int status = current(&driver, &context);
    if (status != TDIST_OK)
        return status;
    pthread_mutex_lock(&lock);
    status = unload_all(driver, context, NULL);
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
            tdist_loaded *entry = find(tdist_kernels[k]->variants[v], known->context, known->owner);
            if (entry == NULL || entry->world == 0)
                continue;
            if (bytes != NULL)
                status = driver->to_device(entry->world, known->bytes, sizeof known->bytes);
            atomic_store(&entry->filled, bytes != NULL && status == TDIST_OK);
        }
    return status;
}

/* Under the lock: the record of an owner in a context, made where there is none yet; NULL where memory is missing. */
static world *record_of(void *context, const void *owner) {
    world *known = world_of(context, owner);
    if (known == NULL && (known = calloc(1, sizeof *known)) != NULL) {
        known->context = context;
        known->owner = owner;
        known->next = worlds;
        worlds = known;
    }
    if (known == NULL)
        tdist_fail(TDIST_ERR_MEMORY, "no memory for a world");
    return known;
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
    world *known = record_of(context, NULL);
    status = known == NULL ? TDIST_ERR_MEMORY : fill(driver, known, bytes);
    if (known != NULL)
        known->lender = NULL;
    pthread_mutex_unlock(&lock);
    return status;
}

int tdist_own_world(const void *owner, const void *bytes) {
    const tdist_driver *driver = NULL;
    void *context = NULL;
    int status = current(&driver, &context);
    if (status != TDIST_OK)
        return status;
    pthread_mutex_lock(&lock);
    world *own = record_of(context, owner), *common = record_of(context, NULL);
    status = own == NULL || common == NULL ? TDIST_ERR_MEMORY : fill(driver, own, bytes);
    if (status == TDIST_OK && !common->set) {
        status = fill(driver, common, bytes);
        common->lender = owner;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void tdist_disown_world(const void *owner) {
    const tdist_driver *driver = NULL;
    void *context = NULL;
    if (current(&driver, &context) != TDIST_OK)
        return;
    pthread_mutex_lock(&lock);
    world *common = world_of(context, NULL);
    if (common != NULL && common->lender == owner) {
        fill(driver, common, NULL);
        common->lender = NULL;
    }
    unload_all(driver, context, owner);
    for (world **at = &worlds; *at != NULL; at = &(*at)->next)
        if ((*at)->context == context && (*at)->owner == owner) {
            world *gone = *at;
            *at = gone->next;
            free(gone);
            break;
        }
    pthread_mutex_unlock(&lock);
}

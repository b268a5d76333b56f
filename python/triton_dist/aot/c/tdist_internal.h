/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   What generated code and the runtime share. Generated code is constant: all that changes is in tdist_state. */
#ifndef TDIST_INTERNAL_H
#define TDIST_INTERNAL_H

#include <stdatomic.h>

#include "tdist_aot.h"

#define TDIST_MAX_PARAMS 256
#define TDIST_MAX_MAPS 16
#define TDIST_CONTEXT_SYMBOL "tdist_ctx"
#define TDIST_CONTEXT_BYTES 560

typedef enum tdist_vendor { TDIST_CUDA = 1, TDIST_HIP = 2 } tdist_vendor;

/* What one parameter of a binary is made of. Triton_dist's aot/layout.py has the same names. */
typedef enum tdist_param_kind {
    TDIST_PARAM_POINTER, TDIST_PARAM_BITS8, TDIST_PARAM_BITS16, TDIST_PARAM_BITS32, TDIST_PARAM_BITS64,
    TDIST_PARAM_HALF, TDIST_PARAM_BFLOAT, TDIST_PARAM_FLOAT, TDIST_PARAM_DOUBLE,
    TDIST_PARAM_MAP,                                       /* a CUtensorMap, by value */
    TDIST_PARAM_BASE, TDIST_PARAM_SHAPE32, TDIST_PARAM_SHAPE64, TDIST_PARAM_STRIDE, TDIST_PARAM_PADDING,
    TDIST_PARAM_ZERO8,
    TDIST_PARAM_SCRATCH, TDIST_PARAM_PROFILE               /* global memory that the launch provides */
} tdist_param_kind;

typedef struct tdist_param {
    uint8_t kind;
    uint8_t source;               /* which of the kernel's parameters */
    uint8_t index;                /* of a dimension; of a MAP, which of the maps */
} tdist_param;

typedef struct tdist_map {
    uint8_t type, element_bytes, swizzle, rank;
    uint32_t box[TDIST_MAX_RANK]; /* outermost dimension first */
} tdist_map;

/* A variant in one driver context, for one owner (module.c). Entries are never freed. Once an entry can be seen, it is changed only
   while its module is unloaded. */
typedef struct tdist_loaded {
    struct tdist_loaded *next;
    void *context, *module, *function;
    _Atomic(const void *) owner;
    uint64_t world;               /* address of the context global; 0: it has none */
    atomic_int filled;            /* whether a world has been written there */
    int device;
} tdist_loaded;

typedef struct tdist_state {
    _Atomic(tdist_loaded *) loaded;
} tdist_state;

struct tdist_variant {
    const char *key, *name, *symbol;
    uint32_t vendor, arch;        /* 90; of HIP the digits of gfx942 as a hexadecimal number */
    const void *image;
    size_t image_bytes;
    const uint32_t *types;        /* declared type of each parameter of the kernel */
    const uint8_t *hints;         /* 0, 1 or 16 for each */
    const tdist_option *options;
    const tdist_param *params;
    const tdist_map *maps;
    uint16_t type_count, option_count, param_count, map_count, hint_count;
    uint32_t block, shared, clusters;
    uint32_t scratch_bytes, scratch_align, profile_bytes, profile_align;      /* of one program */
    uint8_t cooperative, overlaps, uses_world, uses_nvshmem;
    int (*grid)(const tdist_value *values, int64_t sms, int64_t *grid);       /* NULL: the caller gives it */
    tdist_state *state;
};

struct tdist_kernel {
    const char *name;
    const char *const *parameters;
    size_t parameter_count;
    const tdist_variant *const *variants;
    size_t variant_count;
};

/* What grids are computed with. */
static inline int64_t tdist_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tdist_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t tdist_cdiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Written by the generator. */
extern const tdist_kernel *const tdist_kernels[];
extern const size_t tdist_kernels_count;

/* Keeps words for tdist_last_error, and returns `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int tdist_fail(int status, const char *format, ...);
int tdist_fail_driver(const char *call, int code);

/* module.c: the variant of an owner in the current context, loaded on first use. */
int tdist_module(const tdist_variant *variant, const void *owner, tdist_stream stream, tdist_loaded **out);
/* The context global of the owner's kernels in the current context, and of those without an owner unless they have one. */
int tdist_own_world(const void *owner, const void *bytes);
/* Unloads the owner's kernels. */
void tdist_disown_world(const void *owner);
/* prepared.c: tdist_launch_create for a kernel of an owner. */
int tdist_launch_of(const tdist_variant *variant, const void *owner, const uint32_t *grid, const tdist_value *values, size_t count,
                    tdist_launch **out);

typedef struct tdist_map_bytes { _Alignas(64) unsigned char bytes[128]; } tdist_map_bytes;

/* What a launch reads: a pointer to each parameter. */
typedef struct tdist_block {
    void *params[TDIST_MAX_PARAMS];
    uint64_t cells[TDIST_MAX_PARAMS];
} tdist_block;

/* params.c: a tensor map, the bits of a parameter that is none, and a whole block without its scratch memory. */
int tdist_encode(const tdist_variant *variant, const tdist_param *param, const tdist_tensor *tensor, void *address, void *to);
uint64_t tdist_bits_of(const tdist_param *param, const tdist_value *value);
int tdist_fill(const tdist_variant *variant, const tdist_value *values, tdist_block *made, tdist_map_bytes *maps);

/* launch.c */
struct tdist_driver;
int tdist_check(const tdist_variant *variant, const tdist_value *values, size_t count);
int tdist_grid(const tdist_variant *variant, const uint32_t *given, const tdist_value *values, uint32_t *grid);
void tdist_scratch_of(const tdist_variant *variant, const uint32_t *grid, uint64_t *bytes);
void tdist_set_scratch(const tdist_variant *variant, tdist_block *made, const uint64_t *addresses);
int tdist_run(const struct tdist_driver *driver, const tdist_variant *variant, const tdist_loaded *entry, const uint32_t *grid,
              tdist_stream stream, void **params);

/* select.c: whether the value can be taken for the hint. */
int tdist_hint_holds(uint8_t hint, const tdist_value *value);

#endif

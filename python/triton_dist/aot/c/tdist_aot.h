/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Kernels compiled ahead of time: what a program that launches them sees. docs/aot.md explains it with examples.

   Every function returns a tdist_status. It never exits, and never writes to a stream; tdist_last_error() has the words. All
   functions may be called from any thread. The driver is looked up when it is first needed, so a program links without one.
   A call acts on the driver's context that is current in the calling thread. */
#ifndef TDIST_AOT_H
#define TDIST_AOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TDIST_API __attribute__((visibility("default")))
#else
#define TDIST_API
#endif

#define TDIST_VERSION 1
#define TDIST_MAX_RANK 5
#define TDIST_MAX_WORLD 64

typedef enum tdist_status {
    TDIST_OK = 0,
    TDIST_ERR_ARGUMENT = 1,       /* an argument makes no sense: a null pointer, a wrong count, a value out of range */
    TDIST_ERR_NOT_BUILT = 2,      /* no variant for these types, constants, alignments; or no kernel of that name */
    TDIST_ERR_WRONG_ARCH = 3,     /* variants exist, but none for this device */
    TDIST_ERR_VERSION = 4,        /* the binary was built with another version of triton_dist */
    TDIST_ERR_DRIVER = 5,         /* a driver call failed; tdist_driver_code() has its code */
    TDIST_ERR_NO_DRIVER = 6,      /* no driver library on this machine, or one without a function that is needed */
    TDIST_ERR_NO_WORLD = 7,       /* the kernel asks for its rank or for peers, and no world has been set */
    TDIST_ERR_NO_NVSHMEM = 8,     /* the kernel calls NVSHMEM, whose host library is not there or not initialised */
    TDIST_ERR_SHARED_MEMORY = 9,  /* the device has less shared memory than the kernel takes */
    TDIST_ERR_CAPTURE = 10,       /* what a first call does cannot be captured in a graph: prepare before the capture */
    TDIST_ERR_TIMEOUT = 11,       /* a rank did not come in time */
    TDIST_ERR_PEER = 12,          /* a rank has left, or died */
    TDIST_ERR_MISMATCH = 13,      /* ranks have asked for different things */
    TDIST_ERR_OUT_OF_HEAP = 14,   /* the symmetric heap has no room */
    TDIST_ERR_MEMORY = 15,        /* the host has no memory */
    TDIST_ERR_SYSTEM = 16,        /* a system call failed */
    TDIST_ERR_TENSOR = 17,        /* a tensor cannot be described to the copy engine of an SM (TMA): alignment, strides, rank */
    TDIST_ERR_POISONED = 18,      /* an earlier call failed after it had begun, so peers may be one call ahead */
    TDIST_ERR_UNSUPPORTED = 19    /* not possible on this vendor, or with this driver */
} tdist_status;

/* A driver's stream (CUstream, hipStream_t, or the runtime's). */
typedef void *tdist_stream;

/* Types of parameters. With TDIST_POINTER: a device pointer to such elements; with TDIST_TENSOR: a tdist_tensor of them. */
enum {
    TDIST_I1 = 1, TDIST_I8, TDIST_U8, TDIST_I16, TDIST_U16, TDIST_I32, TDIST_U32, TDIST_I64, TDIST_U64,
    TDIST_FP16, TDIST_BF16, TDIST_FP32, TDIST_FP64, TDIST_FP8E4M3, TDIST_FP8E5M2,
    TDIST_CONSTEXPR = 0x40, TDIST_POINTER = 0x100, TDIST_TENSOR = 0x200
};

/* A tensor that a kernel takes a descriptor of. strides in elements, the last one 1. */
typedef struct tdist_tensor {
    void *data;
    int32_t rank;
    int32_t pad_with_nan;         /* what is loaded outside: 0, or NaN */
    int64_t shape[TDIST_MAX_RANK];
    int64_t strides[TDIST_MAX_RANK];
} tdist_tensor;

/* The value of one parameter. */
typedef struct tdist_value {
    uint32_t type;
    union {
        int64_t integer;          /* integers of all widths */
        double real;              /* floating-point numbers of all widths */
        void *pointer;
        const tdist_tensor *tensor;
    } as;
} tdist_value;

/* A constexpr, or a launch option such as num_warps, by which a variant is chosen. One named "space", of a text, asks for variants
   of that C name only. */
typedef struct tdist_option {
    const char *name;
    const char *text;             /* of a string; else NULL */
    double value;                 /* of a number; True is 1 */
} tdist_option;

typedef struct tdist_kernel tdist_kernel;
typedef struct tdist_variant tdist_variant;
typedef struct tdist_launch tdist_launch;

/* -- looking up ---------------------------------------------------------------------------------------------------------- */
TDIST_API int tdist_version(void);
TDIST_API const char *tdist_status_name(int status);
/* Words for what went wrong in the last call of this thread that failed. */
TDIST_API const char *tdist_last_error(void);
/* The driver's code, where the last call of this thread that failed returned TDIST_ERR_DRIVER. */
TDIST_API int tdist_driver_code(void);

/* The kernel of that C name, or NULL. */
TDIST_API const tdist_kernel *tdist_find_kernel(const char *name);
TDIST_API size_t tdist_kernel_count(void);
TDIST_API const tdist_kernel *tdist_kernel_at(size_t index);
TDIST_API const char *tdist_kernel_name(const tdist_kernel *kernel);
/* Of its parameters, constexprs included: as many values does a launch take. */
TDIST_API size_t tdist_kernel_parameter_count(const tdist_kernel *kernel);
/* The variant of that key (sixty-four hexadecimal digits, see the manifest), or NULL. */
TDIST_API const tdist_variant *tdist_find_variant(const char *key);
TDIST_API const char *tdist_variant_key(const tdist_variant *variant);

/* Picks the variant for these values, whose alignments and types count, on the current device. Options that are not given may
   have any value; among variants that fit the one with most hints is taken, among those the first. */
TDIST_API int tdist_select(const tdist_kernel *kernel, const tdist_value *values, size_t count, const tdist_option *options,
                           size_t option_count, const tdist_variant **found);

/* -- launching ----------------------------------------------------------------------------------------------------------- */
/* Picks a variant and launches it. grid: three numbers, or NULL where the kernel was declared with a grid. Parameters that are
   constexprs have values as well, which are not looked at. */
TDIST_API int tdist_launch_kernel(const tdist_kernel *kernel, tdist_stream stream, const uint32_t *grid,
                                  const tdist_value *values, size_t count, const tdist_option *options, size_t option_count);
TDIST_API int tdist_launch_variant(const tdist_variant *variant, tdist_stream stream, const uint32_t *grid,
                                   const tdist_value *values, size_t count);

/* A launch that is kept: its module is loaded, its tensor maps are encoded, its scratch memory is allocated. One at a time may
   run, from one thread at a time. Tensors are copied. */
TDIST_API int tdist_launch_create(const tdist_variant *variant, const uint32_t *grid, const tdist_value *values, size_t count,
                                  tdist_launch **out);
/* Gives parameter `index` another integer, or another address: of a pointer, or of a tensor of the same shape and strides.
   Refused where the variant's hint for it does not hold. */
TDIST_API int tdist_launch_set(tdist_launch *launch, size_t index, int64_t value);
TDIST_API int tdist_launch_run(tdist_launch *launch, tdist_stream stream);
/* The same for the first `count` parameters at once; floating-point ones and constexprs keep what they have. */
TDIST_API int tdist_launch_run_with(tdist_launch *launch, tdist_stream stream, const int64_t *values, size_t count);
/* The key of its variant. */
TDIST_API const char *tdist_launch_key(const tdist_launch *launch);
TDIST_API void tdist_launch_destroy(tdist_launch *launch);

/* -- modules ------------------------------------------------------------------------------------------------------------- */
/* Loads a variant into the current context, unless it is there. module, function: the driver's handles, or NULL. Loading is no
   work for a moment at which another rank's kernel waits: do it before the first call. */
TDIST_API int tdist_load(const tdist_variant *variant, void **module, void **function);
/* Unloads the modules of the current context. None of their kernels may run, and launches made before must not run any more. The
   kernels of a tdist_world stay loaded until it is destroyed. */
TDIST_API int tdist_unload(void);
/* The context global (`tdist_ctx`) of kernels in the current driver context: of those loaded so far and of those to come. The
   host waits for the copies. Set it when the world changes; NULL: there is none. The ops of a tdist_world have kernels of their
   own, which this does not change; where nothing has been set, the first tdist_world of the context sets it. */
TDIST_API int tdist_set_world(const void *bytes, size_t size);

#ifdef __cplusplus
}
#endif
#endif

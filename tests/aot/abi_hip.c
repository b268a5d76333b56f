/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Compiles only where c/tdist_driver.h declares what hip_runtime_api.h has. */
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>

#include "tdist_driver.h"

#define SAME(a, b) _Static_assert((a) == (b), #a " is not " #b)
SAME(sizeof(hipDeviceProp_tR0600), TDIST_HIP_PROPERTIES_BYTES);
SAME(offsetof(hipDeviceProp_tR0600, gcnArchName), TDIST_HIP_ARCH_OFFSET);
SAME(hipDeviceAttributeMultiprocessorCount, 63);
SAME(hipDeviceAttributeMaxSharedMemoryPerBlock, 74);
SAME(hipErrorNotFound, 500);
SAME(hipStreamNonBlocking, 1);

#define DECLARED(name, symbol, parameters) void *name##_there(void); void *name##_there(void) { return (void *)(uintptr_t)symbol; }
TDIST_HIP_CORE(DECLARED)

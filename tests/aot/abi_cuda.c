/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Compiles only where c/tdist_driver.h declares what cuda.h has: sizes, offsets, numbers and names. test_abi.py compares the
   arguments of functions. */
#include <cuda.h>

#include "tdist_driver.h"

#define SAME(a, b) _Static_assert((a) == (b), #a " is not " #b)
SAME(sizeof(tdist_cu_config), sizeof(CUlaunchConfig));
SAME(offsetof(tdist_cu_config, block), offsetof(CUlaunchConfig, blockDimX));
SAME(offsetof(tdist_cu_config, shared), offsetof(CUlaunchConfig, sharedMemBytes));
SAME(offsetof(tdist_cu_config, stream), offsetof(CUlaunchConfig, hStream));
SAME(offsetof(tdist_cu_config, attributes), offsetof(CUlaunchConfig, attrs));
SAME(offsetof(tdist_cu_config, attribute_count), offsetof(CUlaunchConfig, numAttrs));
SAME(sizeof(tdist_cu_attribute), sizeof(CUlaunchAttribute));
SAME(offsetof(tdist_cu_attribute, value), offsetof(CUlaunchAttribute, value));
SAME(sizeof(tdist_cu_allocation), sizeof(CUmemAllocationProp));
SAME(offsetof(tdist_cu_allocation, handle_types), offsetof(CUmemAllocationProp, requestedHandleTypes));
SAME(offsetof(tdist_cu_allocation, location), offsetof(CUmemAllocationProp, location));
SAME(offsetof(tdist_cu_allocation, flags), offsetof(CUmemAllocationProp, allocFlags));
SAME(sizeof(tdist_cu_access), sizeof(CUmemAccessDesc));
SAME(offsetof(tdist_cu_access, flags), offsetof(CUmemAccessDesc, flags));
SAME(sizeof(tdist_cu_uuid), sizeof(CUuuid));
SAME(sizeof(CUtensorMap), 128);
SAME(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 2);
SAME(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 4);
SAME(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, 5);
SAME(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 6);
SAME(CU_CLUSTER_SCHEDULING_POLICY_SPREAD, 1);
SAME(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 1);
SAME(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8);
SAME(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 14);
SAME(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76);
SAME(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97);
SAME(CUDA_ERROR_NOT_FOUND, 500);
SAME(CU_TENSOR_MAP_L2_PROMOTION_L2_128B, 2);
SAME(CU_STREAM_NON_BLOCKING, 1);
SAME(CU_MEM_ALLOCATION_TYPE_PINNED, 1);
SAME(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1);
SAME(CU_MEM_LOCATION_TYPE_DEVICE, 1);
SAME(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3);
SAME(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1);
SAME(CU_EVENT_DISABLE_TIMING, 2);
SAME(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 122);

/* Each function exists under the name that is looked up. */
#define DECLARED(name, symbol, parameters) void *name##_there(void); void *name##_there(void) { return (void *)(uintptr_t)symbol; }
TDIST_CUDA_CORE(DECLARED)
TDIST_CUDA_HOST(DECLARED)

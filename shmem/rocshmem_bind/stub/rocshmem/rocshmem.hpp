// SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
// SPDX-License-Identifier: MIT
//
// The signatures of rocSHMEM's host functions that shim.cc calls, for tests on machines without ROCm.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

typedef struct ihipModule_t* hipModule_t;
typedef struct ihipStream_t* hipStream_t;

namespace rocshmem {
constexpr unsigned ROCSHMEM_INIT_WITH_UNIQUEID = 1;
using rocshmem_uniqueid_t = std::array<std::uint8_t, 128>;
struct rocshmem_init_attr_t {
  std::int32_t rank;
  std::int32_t nranks;
  rocshmem_uniqueid_t uid;
  void* mpi_comm;
};
int rocshmem_get_uniqueid(rocshmem_uniqueid_t* uid);
int rocshmem_set_attr_uniqueid_args(int rank, int nranks, rocshmem_uniqueid_t* uid, rocshmem_init_attr_t* attr);
int rocshmem_init_attr(unsigned int flags, rocshmem_init_attr_t* attr);
void* rocshmem_malloc(std::size_t size);
void rocshmem_free(void* ptr);
void* rocshmem_ptr(const void* dest, int pe);
int rocshmem_my_pe();
int rocshmem_n_pes();
void rocshmem_barrier_all();
void rocshmem_finalize();
int rocshmem_hipmodule_init(hipModule_t module, hipStream_t stream);
}  // namespace rocshmem

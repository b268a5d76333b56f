// SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
// SPDX-License-Identifier: MIT
//
// C names for the functions of rocSHMEM that run on the host. See README.md.
#include <rocshmem/rocshmem.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define TDIST_API extern "C" __attribute__((visibility("default")))

namespace {
constexpr std::size_t kUniqueIdBytes = sizeof(rocshmem::rocshmem_uniqueid_t);
static_assert(kUniqueIdBytes == 128, "rocSHMEM's unique id has another size than the Python side knows");
}  // namespace

// Version of this interface; rocshmem.py refuses any other.
TDIST_API int tdist_rocshmem_version() { return 1; }

TDIST_API int tdist_rocshmem_unique_id(std::uint8_t* out) {
  rocshmem::rocshmem_uniqueid_t id{};
  int status = rocshmem::rocshmem_get_uniqueid(&id);
  std::memcpy(out, id.data(), kUniqueIdBytes);
  return status;
}

TDIST_API int tdist_rocshmem_init(int rank, int ranks, const std::uint8_t* unique_id) {
  rocshmem::rocshmem_uniqueid_t id{};
  std::memcpy(id.data(), unique_id, kUniqueIdBytes);
  rocshmem::rocshmem_init_attr_t attributes{};
  if (int status = rocshmem::rocshmem_set_attr_uniqueid_args(rank, ranks, &id, &attributes)) return status;
  return rocshmem::rocshmem_init_attr(rocshmem::ROCSHMEM_INIT_WITH_UNIQUEID, &attributes);
}

TDIST_API void* tdist_rocshmem_malloc(std::size_t bytes) { return rocshmem::rocshmem_malloc(bytes); }
TDIST_API void tdist_rocshmem_free(void* address) { rocshmem::rocshmem_free(address); }
TDIST_API void* tdist_rocshmem_ptr(const void* address, int pe) { return rocshmem::rocshmem_ptr(address, pe); }
TDIST_API int tdist_rocshmem_my_pe() { return rocshmem::rocshmem_my_pe(); }
TDIST_API int tdist_rocshmem_n_pes() { return rocshmem::rocshmem_n_pes(); }
TDIST_API void tdist_rocshmem_barrier_all() { rocshmem::rocshmem_barrier_all(); }
TDIST_API void tdist_rocshmem_finalize() { rocshmem::rocshmem_finalize(); }

// Gives a loaded module its device context, on `stream`, which the caller synchronises.
TDIST_API int tdist_rocshmem_module_init(void* module, void* stream) {
  return rocshmem::rocshmem_hipmodule_init(static_cast<hipModule_t>(module), static_cast<hipStream_t>(stream));
}

// SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
// SPDX-License-Identifier: MIT
//
// A stand-in for rocSHMEM's host library: PEs are processes of one machine, symmetric memory is POSIX shared memory.
// ROCSHMEM_HEAP_SIZE: bytes of a PE's heap (1 MiB).
// ROCSHMEM_STUB_FAIL=init or malloc makes that call fail, as a machine that cannot do it would.
#include <rocshmem/rocshmem.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace rocshmem {
namespace {
// As the library has it, the variable is read once, while this file is loaded.
const char* asked_bytes = std::getenv("ROCSHMEM_HEAP_SIZE");
const std::size_t kBytes = asked_bytes ? std::strtoull(asked_bytes, nullptr, 10) : std::size_t{1} << 20;
constexpr std::size_t kReserved = 4096;
constexpr int kMaxPes = 64;
struct Meeting {
  std::atomic<int> arrived, turn;
};
int me = -1, pes = 0;
std::size_t used = 0;
std::uint8_t* bases[kMaxPes];
std::string names[kMaxPes];

bool fails(const char* what) {
  const char* asked = std::getenv("ROCSHMEM_STUB_FAIL");
  return asked && !std::strcmp(asked, what);
}

std::uint8_t* map(int pe, bool create) {
  int file;
  while ((file = shm_open(names[pe].c_str(), O_RDWR | (create ? O_CREAT : 0), 0600)) < 0) usleep(1000);
  if (create && ftruncate(file, kBytes)) std::abort();
  while (lseek(file, 0, SEEK_END) < static_cast<off_t>(kBytes)) usleep(1000);
  void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return static_cast<std::uint8_t*>(at);
}
}  // namespace

int rocshmem_get_uniqueid(rocshmem_uniqueid_t* uid) {
  std::FILE* random = std::fopen("/dev/urandom", "rb");
  std::size_t got = std::fread(uid->data(), 1, uid->size(), random);
  std::fclose(random);
  return got != uid->size();
}

int rocshmem_set_attr_uniqueid_args(int rank, int nranks, rocshmem_uniqueid_t* uid, rocshmem_init_attr_t* attr) {
  *attr = {rank, nranks, *uid, nullptr};
  return rank < 0 || rank >= nranks || nranks > kMaxPes;
}

int rocshmem_init_attr(unsigned int flags, rocshmem_init_attr_t* attr) {
  if (flags != ROCSHMEM_INIT_WITH_UNIQUEID || me >= 0 || fails("init")) return 1;
  me = attr->rank;
  pes = attr->nranks;
  used = kReserved;
  char id[17];
  for (int i = 0; i < 8; i++) std::snprintf(id + 2 * i, 3, "%02x", attr->uid[i]);
  for (int pe = 0; pe < pes; pe++) names[pe] = std::string("/tdist_rocshmem_") + id + "_" + std::to_string(pe);
  bases[me] = map(me, true);
  for (int pe = 0; pe < pes; pe++)
    if (pe != me) bases[pe] = map(pe, false);
  return 0;
}

void* rocshmem_malloc(std::size_t size) {
  std::size_t start = (used + 255) & ~std::size_t{255};
  if (fails("malloc") || start + size > kBytes) return nullptr;
  used = start + size;
  return bases[me] + start;
}

void rocshmem_free(void* ptr) {
  if (ptr) used = kReserved;
}

void* rocshmem_ptr(const void* dest, int pe) {
  if (pe < 0 || pe >= pes) return nullptr;
  return bases[pe] + (static_cast<const std::uint8_t*>(dest) - bases[me]);
}

int rocshmem_my_pe() { return me; }
int rocshmem_n_pes() { return pes; }

void rocshmem_barrier_all() {
  auto* meeting = reinterpret_cast<Meeting*>(bases[0]);
  int turn = meeting->turn.load();
  if (meeting->arrived.fetch_add(1) + 1 == pes) {
    meeting->arrived.store(0);
    meeting->turn.fetch_add(1);
  }
  while (meeting->turn.load() == turn) usleep(200);
}

void rocshmem_finalize() {
  rocshmem_barrier_all();
  for (int pe = 0; pe < pes; pe++) munmap(bases[pe], kBytes);
  shm_unlink(names[me].c_str());
  me = -1;
}

int rocshmem_hipmodule_init(hipModule_t module, hipStream_t) { return module == nullptr; }
}  // namespace rocshmem

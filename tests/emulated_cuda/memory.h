// Finding the bytes behind the addresses that a program uses.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "tests/emulated_cuda/state.h"

namespace emulated_cuda {

struct Place {
  std::byte* at = nullptr;
  std::shared_ptr<Usable> used;  // null: pageable host memory
  bool pageable = false;
  bool read_only = false;
  int device = -1;      // of the device memory; -1: of the host
  bool mapped = false;  // by cuMemMap: only these devices reach it
  std::map<int, Access> access{};
};

// Why `device` may not read or write there; empty: it may. Only mapped memory names the devices
// that reach it.
[[nodiscard]] std::string why_denied(const Place& place, int device, bool writes);

// Bytes on a device, or of pinned host memory, whose addresses the devices of a process share.
// Misuse (freed, outside) is reported and is CUDA_ERROR_INVALID_VALUE. The mutex is not held.
[[nodiscard]] CUresult device_place(const char* name, CUdeviceptr address, std::size_t bytes,
                                    Place& place);
// The same for a kernel of `context`, which reaches the memory of other devices only as peers, and
// mapped memory only as it was allowed to.
[[nodiscard]] CUresult kernel_place(const char* name, const Context& context, CUdeviceptr address,
                                    std::size_t bytes, bool writes, Place& place);
// Bytes of the host, pinned or not, but not half of it.
[[nodiscard]] CUresult host_place(const char* name, const void* address, std::size_t bytes,
                                  Place& place);
// Either: the driver finds out.
[[nodiscard]] CUresult any_place(const char* name, CUdeviceptr address, std::size_t bytes,
                                 Place& place);

// The block that holds the address, also a freed one; null for none. The mutex is held.
[[nodiscard]] Block* block_at(CUdeviceptr address);
// Addresses for so many bytes, multiples of `alignment`, at which the program can read nothing; 0:
// there are none.
[[nodiscard]] CUdeviceptr reserve(std::uint64_t bytes, std::uint64_t alignment = 1);

}  // namespace emulated_cuda

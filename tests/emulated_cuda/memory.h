// Finding the bytes behind the addresses that a program uses.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tests/emulated_cuda/state.h"

namespace emulated_cuda {

struct Place {
  std::byte* at = nullptr;
  std::shared_ptr<Usable> used;  // null: pageable host memory
  bool pageable = false;
  bool read_only = false;
};

// Bytes on a device, or of pinned host memory, whose addresses the devices of a process share.
// Misuse (freed, outside) is reported and is CUDA_ERROR_INVALID_VALUE. The mutex is not held.
[[nodiscard]] CUresult device_place(const char* name, CUdeviceptr address, std::size_t bytes,
                                    Place& place);
// The same for a kernel of `context`, which reaches the memory of other devices only as peers.
[[nodiscard]] CUresult kernel_place(const char* name, const Context& context, CUdeviceptr address,
                                    std::size_t bytes, Place& place);
// Bytes of the host, pinned or not, but not half of it.
[[nodiscard]] CUresult host_place(const char* name, const void* address, std::size_t bytes,
                                  Place& place);
// Either: the driver finds out.
[[nodiscard]] CUresult any_place(const char* name, CUdeviceptr address, std::size_t bytes,
                                 Place& place);

// The block that holds the address, also a freed one; null for none. The mutex is held.
[[nodiscard]] Block* block_at(CUdeviceptr address);
// Addresses for so many bytes at which the program can read nothing; 0: there are none.
[[nodiscard]] CUdeviceptr reserve(std::uint64_t bytes);

}  // namespace emulated_cuda

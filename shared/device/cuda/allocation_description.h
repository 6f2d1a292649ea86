// The opaque part of a CUDA device's MemoryHandle, which describes an allocation to another
// process. The memory itself travels as the handle's file descriptor.
//
//   u64 magic, u32 version, u32 pid, u64 process, u64 allocation, u64 bytes, u64 mapped bytes,
//   string uuid                                                   (shared/base/bytes.h)
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shared/base/bytes.h"
#include "shared/base/error.h"

namespace wsync::device::cuda {

struct AllocationDescription {
  std::uint32_t pid = 0;           // of the exporter, for messages; not unique across containers
  std::uint64_t process = 0;       // random number of the exporting process (this_process())
  std::uint64_t allocation = 0;    // counted from 1 in that process
  std::uint64_t bytes = 0;         // of the memory
  std::uint64_t mapped_bytes = 0;  // what the driver has allocated for it, and what is mapped
  std::string uuid;                // of its GPU, like Device::uuid()
};

[[nodiscard]] Bytes encode(const AllocationDescription& description);
// kInvalidInput, naming the field, if the bytes are not a description of this version.
[[nodiscard]] Result<AllocationDescription> decode_description(std::span<const std::byte> bytes);

// Returns a random number drawn once per process. It distinguishes this process from an earlier one
// with the same pid, or from one with that pid in another container. A forked child draws its own
// number.
[[nodiscard]] std::uint64_t this_process();

}  // namespace wsync::device::cuda

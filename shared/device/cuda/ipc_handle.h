// The opaque part of a CUDA device's MemoryHandle, which describes an allocation to another
// process.
//
//   u64 magic, u32 version, u32 pid, u64 process, u64 allocation, u64 bytes, string uuid,
//   64 bytes of CUipcMemHandle, 64 bytes of CUipcEventHandle     (shared/base/bytes.h)
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <cuda.h>
#include <span>
#include <string>

#include "shared/base/bytes.h"
#include "shared/base/error.h"

namespace wsync::device::cuda {

struct IpcHandle {
  std::uint32_t pid = 0;         // of the exporter, for messages; not unique across containers
  std::uint64_t process = 0;     // random number of the exporting process (this_process())
  std::uint64_t allocation = 0;  // counted from 1 in that process
  std::uint64_t bytes = 0;       // of the memory
  std::string uuid;              // of its GPU, like Device::uuid()
  CUipcMemHandle memory{};
  CUipcEventHandle event{};  // event used by Stream::publish()
};

[[nodiscard]] Bytes encode(const IpcHandle& handle);
// kInvalidInput, naming the field, if the bytes are not a handle of this version.
[[nodiscard]] Result<IpcHandle> decode_ipc_handle(std::span<const std::byte> bytes);

// Returns a random number drawn once per process. It distinguishes this process from an earlier one
// with the same pid, or from one with that pid in another container. A forked child draws its own
// number.
[[nodiscard]] std::uint64_t this_process();

}  // namespace wsync::device::cuda

// The NCCL backend inside libwsync_cuda.so (shared/device/cuda_library.h). NCCL itself is looked
// for when the first group is made: WSYNC_NCCL_LIBRARY (an absolute path), where the system looks,
// where it was when this was built, and among the Python packages of VIRTUAL_ENV and of the python3
// on PATH.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shared/base/error.h"
#include "shared/broadcast/communicator.h"

namespace wsync::collective {

struct NcclFacts {
  std::string library;        // path that was loaded
  std::uint32_t version = 0;  // 22707 is 2.27.7
  std::uint32_t built_with = 0;
};

// "2.27.7" of 22707.
[[nodiscard]] std::string nccl_version_text(std::uint32_t code);

// What the library's second entry point returns. Functions: any thread.
struct NcclBackend {
  std::uint32_t size = 0;  // of this struct
  Result<std::unique_ptr<Group>> (*make_group)(std::uint32_t size) = nullptr;
  // kRefused when there is no NCCL, naming where was looked.
  Result<NcclFacts> (*facts)() = nullptr;
};
inline constexpr const char* kNcclEntry = "wsync_nccl_backend";
using NcclEntry = const NcclBackend* (*)();

// kRefused, with what is missing.
[[nodiscard]] Result<const NcclBackend*> nccl_backend();

}  // namespace wsync::collective

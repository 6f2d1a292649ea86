// The NCCL backend inside libwsync_cuda.so (shared/device/cuda_library.h). NCCL itself is searched
// when the first group is made: only WSYNC_NCCL_LIBRARY (an absolute path) if it is set; otherwise
// the system's search, the path found when wsync was built, and the Python packages of VIRTUAL_ENV
// and of the python3 on PATH.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shared/base/error.h"
#include "shared/broadcast/communicator.h"

namespace wsync::collective {

struct NcclFacts {
  std::string library;        // path of the loaded library
  std::uint32_t version = 0;  // 22707 = 2.27.7
  std::uint32_t built_with = 0;
  std::string interface;  // NCCL_SOCKET_IFNAME: "lo" unless the user has set it
  // Ranks of one group may use the same GPU: NCCL 2.30 and newer allow it if the user has set
  // NCCL_MULTI_RANK_GPU_ENABLE=1. It is for tests on a machine with one GPU.
  bool ranks_share_gpus = false;
};

// What a user can do about several ranks on one GPU. It follows a colon or a semicolon.
inline constexpr const char* kShareGpuAdvice =
    "set devices.collective to auto or local (only NCCL 2.30 and newer share a GPU, and only with "
    "NCCL_MULTI_RANK_GPU_ENABLE=1)";

// Formats a version: 22707 -> "2.27.7".
[[nodiscard]] std::string nccl_version_text(std::uint32_t code);

// Returned by the library's second entry point. The functions may be called from any thread.
struct NcclBackend {
  std::uint32_t size = 0;  // of this struct
  Result<std::unique_ptr<Group>> (*make_group)(std::uint32_t size) = nullptr;
  // kRefused, naming the searched places, if there is no NCCL.
  Result<NcclFacts> (*facts)() = nullptr;
};
inline constexpr const char* kNcclEntry = "wsync_nccl_backend";
using NcclEntry = const NcclBackend* (*)();

// kRefused, naming what is missing.
[[nodiscard]] Result<const NcclBackend*> nccl_backend();

}  // namespace wsync::collective

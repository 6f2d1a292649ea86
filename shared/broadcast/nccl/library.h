// A table of the NCCL functions in use, resolved at run time, and the conversion of NCCL's result
// codes. No program links NCCL; only this folder uses it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nccl.h>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync::collective::nccl {

// Exactly the functions in use. To use another function, add an entry.
// clang-format off
#define WSYNC_NCCL_CALLS(CALL)                                                            \
  CALL(ncclGetVersion) CALL(ncclGetErrorString) CALL(ncclGetLastError)                    \
  CALL(ncclGetUniqueId) CALL(ncclCommInitRankConfig) CALL(ncclCommGetAsyncError)          \
  CALL(ncclBroadcast) CALL(ncclCommFinalize) CALL(ncclCommDestroy) CALL(ncclCommAbort)
// clang-format on

// Tests inject failures with a copy that contains other functions.
struct Nccl {
  std::string path;           // path of the loaded library
  std::uint32_t version = 0;  // 22707 = 2.27.7
#define WSYNC_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  WSYNC_NCCL_CALLS(WSYNC_NCCL_MEMBER)  // NOLINT(readability-identifier-naming)
#undef WSYNC_NCCL_MEMBER
};

// Non-blocking communicators exist since 2.14. Since 2.18, a library accepts the configuration
// struct of a newer header, which this code may have been compiled with.
inline constexpr std::uint32_t kOldestNccl = 21800;

// NCCL_MULTI_RANK_GPU_ENABLE exists since 2.30 (NCCL's user guide, environment variables).
inline constexpr std::uint32_t kOldestSharingNccl = 23000;
// Returns true if ranks of one group may use the same GPU: that variable is 1 and the library knows
// it. Thread: any that does not change the environment meanwhile.
[[nodiscard]] bool ranks_share_gpus(const Nccl& nccl);

// Returns the places where NCCL is searched, in order: only WSYNC_NCCL_LIBRARY if it is set;
// otherwise the system's search, the path found when wsync was built, and the packages of
// VIRTUAL_ENV and of the python3 on PATH.
[[nodiscard]] std::vector<std::filesystem::path> nccl_places();

// Loads the first library that exists in `places`. kRefused, naming every place, if there is none;
// kRefused, naming the library, if it cannot be loaded, lacks a function or is too old. A loaded
// library is never unloaded.
[[nodiscard]] Result<Nccl> load_nccl(const std::vector<std::filesystem::path>& places);

// Returns the NCCL of this process. The search runs only once. Thread: any.
[[nodiscard]] Result<const Nccl*> nccl();

// Converts an NCCL result code. ncclSuccess and ncclInProgress are success. Other codes become
// "<what>: NCCL 2.27.7: <its message> (<its last error>)" with kPeerLost for a remote error,
// kInvalidInput for invalid arguments or usage, and kIo for the rest.
[[nodiscard]] Result<> check(const Nccl& nccl, ncclResult_t code, std::string_view what,
                             std::source_location where = std::source_location::current());

}  // namespace wsync::collective::nccl

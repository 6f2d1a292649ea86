// NCCL, as far as it is used here: a table of its functions, found at run time, and what its result
// codes become. No program links NCCL; this folder alone knows it.
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

// Exactly what is used. A function more is an entry here.
// clang-format off
#define WSYNC_NCCL_CALLS(CALL)                                                            \
  CALL(ncclGetVersion) CALL(ncclGetErrorString) CALL(ncclGetLastError)                    \
  CALL(ncclGetUniqueId) CALL(ncclCommInitRankConfig) CALL(ncclCommGetAsyncError)          \
  CALL(ncclBroadcast) CALL(ncclCommFinalize) CALL(ncclCommDestroy) CALL(ncclCommAbort)
// clang-format on

// A copy with other functions in it injects failures in tests.
struct Nccl {
  std::string path;           // what was loaded
  std::uint32_t version = 0;  // 22707 is 2.27.7
#define WSYNC_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  WSYNC_NCCL_CALLS(WSYNC_NCCL_MEMBER)  // NOLINT(readability-identifier-naming)
#undef WSYNC_NCCL_MEMBER
};

// Communicators that do not block are of 2.14; from 2.18 on a library reads a configuration of a
// newer header, as the one that this is compiled with may be.
inline constexpr std::uint32_t kOldestNccl = 21800;

// Where NCCL is looked for, in order: WSYNC_NCCL_LIBRARY alone when it is set; where the system
// looks; where it was when this was built; the packages of VIRTUAL_ENV and of the python3 on PATH.
[[nodiscard]] std::vector<std::filesystem::path> nccl_places();

// The first library of `places` that is there. kRefused, naming every place, when there is none;
// kRefused, naming the library, when it cannot be loaded, lacks a function or is too old. Once
// loaded it stays.
[[nodiscard]] Result<Nccl> load_nccl(const std::vector<std::filesystem::path>& places);

// The NCCL of this process, looked for once. Any thread.
[[nodiscard]] Result<const Nccl*> nccl();

// What a result code of NCCL means here. ncclSuccess and ncclInProgress are success; otherwise
// "<what>: NCCL 2.27.7: <its words> (<its last error>)", kPeerLost for a remote error,
// kInvalidInput for arguments and usage that NCCL refuses, kIo for the rest.
[[nodiscard]] Result<> check(const Nccl& nccl, ncclResult_t code, std::string_view what,
                             std::source_location where = std::source_location::current());

}  // namespace wsync::collective::nccl

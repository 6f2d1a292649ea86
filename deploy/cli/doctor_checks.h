// What `wsync doctor` looks at. Nothing here changes the host: a directory that is not there is not
// made, and nothing is sent to a coordinator that listens.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/broadcast/nccl_library.h"
#include "shared/device/cuda_library.h"

namespace wsync::cli {

enum class CheckStatus : std::uint8_t { kOk, kWarn, kFail };
[[nodiscard]] std::string_view check_status_name(CheckStatus status) noexcept;

struct Check {
  std::string name;  // "memory"
  CheckStatus status = CheckStatus::kOk;
  std::string found;     // one sentence
  std::string advice;    // what to do; empty when ok
  nlohmann::json facts;  // the same in fields, for --json; null: none
};

// As in --json of `doctor`.
[[nodiscard]] nlohmann::json to_json(const std::vector<Check>& checks);

[[nodiscard]] Check check_kernel();
[[nodiscard]] Check check_memory(std::uint64_t host_memory_bytes);  // 0: nothing asked for
[[nodiscard]] Check check_sealed_memory();
[[nodiscard]] Check check_file_locks();
[[nodiscard]] Check check_cpu();
[[nodiscard]] Check check_descriptors();
// A directory of sockets: ours, mode 0700, writable; or one that we could make.
[[nodiscard]] Check check_run_dir(const std::string& path);
[[nodiscard]] Check check_state_dir(const std::string& path);
// Whether somebody accepts connections at an ipc:// or tcp:// address. Waits at most `deadline`.
[[nodiscard]] Check check_coordinator(const std::string& address,
                                      std::chrono::milliseconds deadline);
// Whether http.address is free, or who answers there: wsync, or something else that it cannot share
// it with. Empty: no pages are wanted. Waits at most `deadline` for each of connection and answer.
[[nodiscard]] Check check_pages(const std::string& address, std::chrono::milliseconds deadline);

// What a config wants of the GPUs.
struct CudaWanted {
  bool wanted = false;              // devices.kind is cuda
  std::vector<std::uint32_t> gpus;  // of the devices, in their order; empty: not known
  bool named = false;               // by devices.gpus, not by devices.count
  Collective collective = Collective::kAuto;
  // RLIMIT_MEMLOCK of this process in bytes; ~0: none.
  std::uint64_t lock_limit = ~std::uint64_t{0};
};
// The backend, each GPU, NCCL and pinned memory, of what the libraries say. One quiet line where
// there is no backend and none is wanted; what is missing fails only where it is wanted.
[[nodiscard]] std::vector<Check> cuda_checks(const Result<device::CudaFacts>& cuda,
                                             const Result<collective::NcclFacts>& nccl,
                                             const CudaWanted& wanted);
// The same of this host: loads libwsync_cuda.so, the driver and NCCL, and makes no context.
// `wanted.lock_limit` is looked up.
[[nodiscard]] std::vector<Check> check_cuda(CudaWanted wanted);

}  // namespace wsync::cli

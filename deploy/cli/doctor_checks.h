// What `wsync doctor` looks at. Nothing here changes the host: a directory that is not there is not
// made, and nothing is sent to a coordinator that listens.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "shared/config/config.h"

namespace wsync::cli {

enum class CheckStatus : std::uint8_t { kOk, kWarn, kFail };
[[nodiscard]] std::string_view check_status_name(CheckStatus status) noexcept;

struct Check {
  std::string name;  // "memory"
  CheckStatus status = CheckStatus::kOk;
  std::string found;   // one sentence
  std::string advice;  // what to do; empty when ok
};

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

}  // namespace wsync::cli

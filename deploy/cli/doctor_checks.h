// The checks of `wsync doctor`. They do not change the host: they create no directory, and they
// send nothing to a coordinator that listens.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/broadcast/nccl_library.h"
#include "shared/config/http_config.h"
#include "shared/config/network_config.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/trainer_config.h"
#include "shared/device/cuda_library.h"
#include "shared/device/mps.h"

namespace wsync::cli {

enum class CheckStatus : std::uint8_t { kOk, kWarn, kFail };
[[nodiscard]] std::string_view check_status_name(CheckStatus status) noexcept;

struct Check {
  std::string name;  // "memory"
  CheckStatus status = CheckStatus::kOk;
  std::string found;     // one sentence
  std::string advice;    // remedy; empty if ok
  nlohmann::json facts;  // machine-readable, for --json; null: none
};

// Returns the format of `doctor --json`.
[[nodiscard]] nlohmann::json to_json(const std::vector<Check>& checks);

[[nodiscard]] Check check_kernel();
[[nodiscard]] Check check_memory(std::uint64_t host_memory_bytes);  // 0: not configured
[[nodiscard]] Check check_sealed_memory();
// What the system gives for memory.huge_pages. `root`: of the system's files.
[[nodiscard]] Check check_huge_pages(HugePages wanted, const std::filesystem::path& root = "/");
[[nodiscard]] Check check_file_locks();
[[nodiscard]] Check check_cpu();
[[nodiscard]] Check check_descriptors();
// Checks a directory for sockets. It must belong to this user with mode 0700 and be writable, or it
// must be possible to create it.
[[nodiscard]] Check check_run_dir(const std::string& path);
[[nodiscard]] Check check_state_dir(const std::string& path);
// Checks the folder of a coordinator's keys (`keys`), or says that there is none.
[[nodiscard]] Check check_key_folder(const std::string& folder);
// Says where a coordinator keeps its decisions, and asks each member of an etcd cluster for the
// record: one that does not answer takes two seconds.
[[nodiscard]] Check check_decisions(const config::TrainerConfig& config);
// Checks the key file of the sidecar of that name (`key`), or says that there is none.
[[nodiscard]] Check check_sidecar_key(const std::string& file, const std::string& name);
// Says whether weights go to other hosts, and whether they are encrypted there.
[[nodiscard]] Check check_data_security(const config::NetworkConfig& network);
// Checks whether an ipc:// or tcp:// address accepts connections. Waits at most `deadline`.
[[nodiscard]] Check check_coordinator(const std::string& address,
                                      std::chrono::milliseconds deadline);
// Checks whether http.address is free, and otherwise which process uses it: wsync, or a program
// with which it cannot be shared. A wsync process of another role than `own_role` is a warning. An
// empty address means that no pages are configured. A token that cannot be read is a failure. The
// connection and the response may each take up to `deadline`.
[[nodiscard]] Check check_pages(const config::HttpConfig& pages, const std::string& own_role,
                                std::chrono::milliseconds deadline);

// Checks whether a trace can be written to `<path>.json`. A missing directory loses the trace at
// the end of the process, and nothing else.
[[nodiscard]] Check check_trace_setting(const std::string& path);

// Says whether engines of a sidecar are switched by patches, and what memory these need at most
// beside the arenas. A warning if a setting defeats them.
[[nodiscard]] Check check_patches(const config::SidecarConfig& config);
// Says whether a trainer makes patches for the sidecars of its host, what memory these need, and
// how many arenas it needs for versions of which little changes.
[[nodiscard]] Check check_trainer_patches(const config::TrainerConfig& config);
// Says how often the memory of engines is read again. A warning if it never is.
[[nodiscard]] Check check_scrub(const config::SidecarConfig& config);

// GPU requirements of a configuration.
struct CudaWanted {
  bool wanted = false;              // devices.kind is cuda
  std::vector<std::uint32_t> gpus;  // in the order of the devices; empty: unknown
  bool named = false;               // named by devices.gpus, not only counted by devices.count
  Collective collective = Collective::kAuto;
  // RLIMIT_MEMLOCK of this process in bytes; ~0: no limit.
  std::uint64_t lock_limit = ~std::uint64_t{0};
};
// Checks the backend, each GPU, NCCL and pinned memory from the data of the libraries. Without a
// backend there is one short line if the configuration needs none. A missing component is a failure
// only if the configuration needs it.
[[nodiscard]] std::vector<Check> cuda_checks(const Result<device::CudaFacts>& cuda,
                                             const Result<collective::NcclFacts>& nccl,
                                             const CudaWanted& wanted);
// Shows whether MPS serves processes with this environment. A warning if it names a daemon that is
// not there.
[[nodiscard]] Check mps_check(const device::MpsDaemon& daemon);
// As cuda_checks(), with mps_check() if there is a GPU, for this host. Loads libwsync_cuda.so, the
// driver and NCCL, and creates no CUDA context. Sets `wanted.lock_limit` itself.
[[nodiscard]] std::vector<Check> check_cuda(CudaWanted wanted);

}  // namespace wsync::cli

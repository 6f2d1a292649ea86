// The configuration of each role, and the only reader of it (of a training run: train_config.h).
// Every key, its unit and its default are documented in deploy/config/sidecar.yaml and
// deploy/config/trainer.yaml; a test keeps them equal to the defaults here.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"

namespace wsync::config {

using Milliseconds = std::chrono::milliseconds;

struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kHuman;
  friend bool operator==(const LogConfig&, const LogConfig&) = default;
};

struct HeartbeatConfig {
  Milliseconds interval{limits::kHeartbeatIntervalMs};
  Milliseconds deadline{limits::kHeartbeatDeadlineMs};  // silence longer than this is a loss
  friend bool operator==(const HeartbeatConfig&, const HeartbeatConfig&) = default;
};

struct DevicesConfig {
  DeviceKind kind = DeviceKind::kUnified;
  std::uint32_t count = 1;
  // cuda: the GPU of each device, `count` of them; one may be there several times. Empty on others.
  std::vector<std::uint32_t> gpus;
  bool gpus_named = false;         // by devices.gpus
  std::uint64_t buffer_bytes = 0;  // of each buffer of a separate device or GPU; 0: auto
  bool keep_buffers = true;        // cuda: between updates
  Collective collective = Collective::kAuto;
  friend bool operator==(const DevicesConfig&, const DevicesConfig&) = default;
};

// Of the switch of one replica.
struct SwitchDeadlines {
  Milliseconds pause{limits::kPauseDeadlineMs};
  Milliseconds load{limits::kLoadDeadlineMs};
  Milliseconds commit{limits::kCommitDeadlineMs};
  friend bool operator==(const SwitchDeadlines&, const SwitchDeadlines&) = default;
};

struct SidecarConfig {
  std::string name;               // never empty once loaded: default is the host's name
  std::string coordinator;        // default ipc://<run_dir>/control
  std::string run_dir;            // sockets and lock files; 0700
  std::string state_dir;          // persisted fence and decision; survives a reboot
  std::string fleet = "default";  // folder in state_dir
  DevicesConfig devices;
  Stages stages = Stages::kAuto;
  std::uint64_t host_memory =
      0;  // bytes for staged versions; 0 = no limit but what the host and its control group have
  std::uint32_t versions_held = limits::kVersionsHeldDefault;
  TransportPolicy transport = TransportPolicy::kAuto;
  std::string data_address = "tcp://127.0.0.1:0";
  HeartbeatConfig heartbeat;
  SwitchDeadlines deadlines;
  PauseMode fallback_pause_mode = PauseMode::kAbort;
  Milliseconds max_staleness{300'000};  // 0 = a replica that is behind stays ready
  std::string
      http_address;  // of metrics and health; default ipc://<run_dir>/<name>.http; empty = none
  LogConfig log;
  std::string trace_file;                               // empty = none
  std::uint32_t trace_spans = limits::kTraceRingSpans;  // that are kept; 0 = none is made
  friend bool operator==(const SidecarConfig&, const SidecarConfig&) = default;
};

// Of one round.
struct RoundDeadlines {
  // Every rank of the trainer has its snapshot; at its start, every sidecar of the record has come.
  Milliseconds gather{limits::kGatherDeadlineMs};
  Milliseconds announce{limits::kAnnounceDeadlineMs};
  Milliseconds stage{limits::kStageDeadlineMs};
  Milliseconds pause{limits::kPauseDeadlineMs};
  Milliseconds load{limits::kLoadDeadlineMs};
  Milliseconds commit{limits::kCommitDeadlineMs};
  Milliseconds publish{limits::kPublishDeadlineMs};  // the whole of it
  friend bool operator==(const RoundDeadlines&, const RoundDeadlines&) = default;
};

struct TrainerConfig {
  std::string checkpoint;  // directory to publish at start; empty = wait for `wsync push`
  bool watch = true;       // publish new step_N directories beside it
  std::string listen;      // default ipc://<run_dir>/control
  std::string run_dir;
  std::string state_dir;
  std::string fleet = "default";  // folder in state_dir
  std::string fleet_id;           // 32 hex digits; empty: the stored one, or the sidecars'
  CommitPolicy commit;
  std::uint32_t min_replicas = 1;
  std::uint32_t min_sidecars = 1;
  std::uint64_t bucket_bytes = limits::kBucketBytesDefault;
  std::uint32_t arenas = 3;
  TransportPolicy transport = TransportPolicy::kAuto;
  std::string data_address = "tcp://127.0.0.1:0";
  PauseMode pause_mode = PauseMode::kAbort;
  HeartbeatConfig heartbeat;
  RoundDeadlines deadlines;
  bool take_over = false;
  std::string
      http_address;  // of metrics and health; default ipc://<run_dir>/control.http; empty = none
  LogConfig log;
  std::string trace_file;
  std::uint32_t trace_spans = limits::kTraceRingSpans;
  friend bool operator==(const TrainerConfig&, const TrainerConfig&) = default;
};

// Where values come from; a later one rules over an earlier: file, environment, set.
struct Sources {
  std::string file;                                // empty = none
  std::map<std::string, std::string> environment;  // WSYNC_A_B -> value of a.b
  std::vector<std::string> set;                    // "a.b=c"
};
// The WSYNC_* variables of this process that may be keys.
[[nodiscard]] std::map<std::string, std::string> process_environment();

// Reads and checks a configuration; empty names and paths get their defaults. An error is
// kInvalidInput (kNotFound: no such file) and says file, line, key, expected, found.
[[nodiscard]] Result<SidecarConfig> load_sidecar(const Sources& sources);
[[nodiscard]] Result<TrainerConfig> load_trainer(const Sources& sources);
// The same from a text; `name` stands for the file in errors.
[[nodiscard]] Result<SidecarConfig> parse_sidecar(std::string_view text, std::string_view name,
                                                  const Sources& sources = {});
[[nodiscard]] Result<TrainerConfig> parse_trainer(std::string_view text, std::string_view name,
                                                  const Sources& sources = {});
// A sentence for each WSYNC_ variable that names no key of any role, a training run included: it
// has no effect.
[[nodiscard]] std::vector<std::string> unknown_variables(
    const std::map<std::string, std::string>& environment);
// Every key of each role, in the order of the example files.
[[nodiscard]] std::vector<std::string> sidecar_keys();
[[nodiscard]] std::vector<std::string> trainer_keys();

// $XDG_RUNTIME_DIR/wsync, or /tmp/wsync-<uid>. Not created here.
[[nodiscard]] std::string default_run_dir();
// $XDG_STATE_HOME/wsync, or ~/.local/state/wsync, or /var/lib/wsync without a home.
[[nodiscard]] std::string default_state_dir();
// "all", "quorum:N" or "each"; kInvalidInput otherwise.
[[nodiscard]] Result<CommitPolicy> parse_commit_policy(std::string_view text);

}  // namespace wsync::config

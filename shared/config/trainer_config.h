// The configuration of a trainer that publishes. Every key, its unit and its default are documented
// in deploy/config/trainer.yaml; a test keeps that file equal to the defaults here.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/round_deadlines.h"
#include "shared/base/switch_deadlines.h"
#include "shared/config/defaults.h"
#include "shared/config/heartbeat_config.h"
#include "shared/config/log_config.h"
#include "shared/config/sources.h"

namespace wsync::config {

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
  std::uint64_t bucket_bytes = kBucketBytesDefault;
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
  std::uint32_t trace_spans = kTraceSpansDefault;
  friend bool operator==(const TrainerConfig&, const TrainerConfig&) = default;
};

// Reads and checks a configuration; empty names and paths get their defaults. An error is
// kInvalidInput (kNotFound: no such file) and says file, line, key, expected, found.
[[nodiscard]] Result<TrainerConfig> load_trainer(const Sources& sources);
// The same from a text; `name` stands for the file in errors.
[[nodiscard]] Result<TrainerConfig> parse_trainer(std::string_view text, std::string_view name,
                                                  const Sources& sources = {});
// Every key, in the order of the example file.
[[nodiscard]] std::vector<std::string> trainer_keys();

// "all", "quorum:N" or "each"; kInvalidInput otherwise.
[[nodiscard]] Result<CommitPolicy> parse_commit_policy(std::string_view text);

}  // namespace wsync::config

// The configuration of a publishing trainer. deploy/config/trainer.yaml documents every key with
// its unit and default; a test checks that the defaults in that file equal those here.
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
#include "shared/config/etcd_config.h"
#include "shared/config/heartbeat_config.h"
#include "shared/config/http_config.h"
#include "shared/config/log_config.h"
#include "shared/config/memory_config.h"
#include "shared/config/network_config.h"
#include "shared/config/patch_mode.h"
#include "shared/config/sources.h"

namespace wsync::config {

// Deadlines of one round.
struct RoundDeadlines {
  // By this deadline every rank of the trainer has its snapshot. At startup, it also bounds the
  // wait for the sidecars named in the record.
  Milliseconds gather{limits::kGatherDeadlineMs};
  // For an arena that nobody reads. Applies to publishes of a trainer that waits for the copy; a
  // `wsync push` waits until its deadline.
  Milliseconds snapshot{limits::kSnapshotDeadlineMs};
  Milliseconds announce{limits::kAnnounceDeadlineMs};
  Milliseconds stage{limits::kStageDeadlineMs};
  Milliseconds pause{limits::kPauseDeadlineMs};
  Milliseconds load{limits::kLoadDeadlineMs};
  Milliseconds commit{limits::kCommitDeadlineMs};
  Milliseconds publish{limits::kPublishDeadlineMs};  // for the whole publish
  friend bool operator==(const RoundDeadlines&, const RoundDeadlines&) = default;
};

// Versions as directories on a shared file system (shared/weights/weight_directory.h).
struct DirectoryConfig {
  std::string publish;     // folder to which each decided version is written; empty = none
  std::uint32_t keep = 2;  // newest directories that are kept
  std::uint64_t shard_bytes = 5'000'000'000;
  std::string model_files;  // directory with config.json and the tokenizer; empty = none
  friend bool operator==(const DirectoryConfig&, const DirectoryConfig&) = default;
};

struct TrainerConfig {
  std::string checkpoint;  // directory to publish at startup; empty = wait for `wsync push`
  bool watch = true;       // publish new step_N directories in the parent directory
  // Folder whose newest weight directory is published, by `wsync trainer` alone; empty = none.
  std::string follow_directory;
  Milliseconds follow_interval = kFollowIntervalDefault;
  DirectoryConfig directory;
  std::string listen;  // default ipc://<run_dir>/control
  std::string
      keys;  // folder of the fleet's keys; empty = none: all who reach `listen` are admitted
  // Address of a coordinator that is a process of its own (`wsync coordinator`), to which this
  // trainer publishes; empty: it is a part of this process, and listens at `listen`.
  std::string coordinator;
  std::string publisher_key;  // file with this trainer's key for it; empty = it has no keys
  // Of a rank above 0 on another host than rank 0: the address at which rank 0 listens. Empty: rank
  // 0 is on this host.
  std::string leader;
  std::string run_dir;
  std::string state_dir;
  EtcdConfig etcd;                // where decisions are kept; without members: in state_dir
  std::string fleet = "default";  // folder in state_dir
  std::string fleet_id;           // 32 hex digits; empty = the stored id, or the id of the sidecars
  CommitPolicy commit;
  std::uint32_t min_replicas = 1;
  std::uint32_t min_sidecars = 1;
  std::uint32_t max_paused = 0;  // replicas that a publish pauses at once; 0 = any number
  std::string canary;            // replica that switches first; empty = none
  Milliseconds canary_time{0};   // then the others switch; 0 = when `wsync promote` asks for it
  std::uint64_t bucket_bytes = kBucketBytesDefault;
  std::uint32_t arenas = kArenasDefault;
  // kAuto: a version of which little changes is held as these changes, and the arena of the version
  // before is changed in place after the decision. kOff: each version gets an arena.
  PatchMode in_place = PatchMode::kAuto;
  MemoryConfig memory;
  std::uint32_t snapshot_threads = 0;               // 0 = as many as there are processors
  Milliseconds idle_release = kIdleReleaseDefault;  // 0 = free arenas are kept for ever
  Milliseconds forget_after =
      kForgetAfterDefault;  // 0 = sidecars that are gone are never forgotten
  NetworkConfig network;
  PauseMode pause_mode = PauseMode::kAbort;
  CachePolicy caches = CachePolicy::kEngine;
  HeartbeatConfig heartbeat;
  RoundDeadlines deadlines;
  bool take_over = false;
  HttpConfig http;  // metrics and health
  LogConfig log;
  std::string trace_file;
  std::uint32_t trace_spans = kTraceSpansDefault;
  friend bool operator==(const TrainerConfig&, const TrainerConfig&) = default;
};

// Loads and checks a configuration. Empty names and paths get their defaults. Returns kInvalidInput
// (kNotFound if the file does not exist) with file, line, key, expected and found value.
[[nodiscard]] Result<TrainerConfig> load_trainer(const Sources& sources);
// Parses and checks a text. `name` stands for the file name in error messages.
[[nodiscard]] Result<TrainerConfig> parse_trainer(std::string_view text, std::string_view name,
                                                  const Sources& sources = {});
// Returns the setting that gives each version an arena of its own, however little changes, as text
// for a message; empty if there is none. Any thread.
[[nodiscard]] std::string arena_obstacle(const TrainerConfig& config);
// Returns every key, in the order of the example file.
[[nodiscard]] std::vector<std::string> trainer_keys();

// Parses "all", "quorum:N" or "each". Returns kInvalidInput for anything else.
[[nodiscard]] Result<CommitPolicy> parse_commit_policy(std::string_view text);

}  // namespace wsync::config

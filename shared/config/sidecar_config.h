// The configuration of a sidecar. deploy/config/sidecar.yaml documents every key with its unit and
// default; a test checks that the defaults in that file equal those here.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/liveness.h"
#include "shared/base/switch_deadlines.h"
#include "shared/config/defaults.h"
#include "shared/config/devices_config.h"
#include "shared/config/heartbeat_config.h"
#include "shared/config/http_config.h"
#include "shared/config/log_config.h"
#include "shared/config/memory_config.h"
#include "shared/config/network_config.h"
#include "shared/config/patch_mode.h"
#include "shared/config/sources.h"

namespace wsync::config {

// Deadlines of the switch of one replica.
struct SwitchDeadlines {
  Milliseconds pause{limits::kPauseDeadlineMs};
  Milliseconds load{limits::kLoadDeadlineMs};
  Milliseconds commit{limits::kCommitDeadlineMs};
  friend bool operator==(const SwitchDeadlines&, const SwitchDeadlines&) = default;
};

// Of what the patches are made by which engines are switched.
enum class SwitchPatches : std::uint8_t {
  kAuto,     // of the changes by which a version has come, otherwise of a comparison
  kChanges,  // of these changes alone
  kOff,
};

// Transfers in which only what changes travels, and switches that write only what changes.
struct PatchConfig {
  PatchMode transfer = PatchMode::kAuto;
  SwitchPatches mode = SwitchPatches::kChanges;
  // kAuto: a version that comes as changes alone is held as these, and the copy of the version
  // before is changed in place after the decision. kOff: it gets memory of its own.
  PatchMode in_place = PatchMode::kAuto;
  double max_share = 0.4;  // of the bytes of a bucket that travels, and of the model for a switch
  friend bool operator==(const PatchConfig&, const PatchConfig&) = default;
};

// The weights of engines are read again while they serve.
struct ScrubConfig {
  Milliseconds interval{1'800'000};  // between the beginnings of two passes; 0 = never
  double max_share = 0.01;           // of the time of one processor, for each rank
  friend bool operator==(const ScrubConfig&, const ScrubConfig&) = default;
};

// The setting because of which no engine is ever switched by a patch that changes its bytes.
enum class PatchObstacle : std::uint8_t {
  kNone,
  kModeOff,     // patch.mode: off
  kNoScrubs,    // scrub.interval: 0
  kNothingNew,  // patch.transfer: off, and patch.mode: changes: no changes come, none are looked
                // for
};

struct SidecarConfig {
  std::string name;               // defaults to the host name; never empty after loading
  std::string coordinator;        // default ipc://<run_dir>/control
  std::string key;                // file with the key of this sidecar; empty = none
  std::string run_dir;            // sockets and lock files; 0700
  std::string state_dir;          // persisted fence and decision; must survive a reboot
  std::string fleet = "default";  // folder in state_dir
  std::string follow_directory;   // folder of weight directories to follow without a trainer
  Milliseconds follow_interval = kFollowIntervalDefault;
  DevicesConfig devices;
  Stages stages = Stages::kAuto;
  std::uint64_t host_memory =
      0;  // bytes for staged versions; 0 = limited only by the host and its control group
  MemoryConfig memory;
  std::uint32_t versions_held = kVersionsHeldDefault;
  PatchConfig patch;
  ScrubConfig scrub;
  Milliseconds idle_release = kIdleReleaseDefault;  // 0 = free arenas are kept for ever
  Milliseconds forget_after =
      kForgetAfterDefault;  // 0 = replicas that are gone are never forgotten
  NetworkConfig network;
  HeartbeatConfig heartbeat;
  // An engine that does not poll its link for longer is not ready.
  Milliseconds engine_deadline{limits::kEngineDeadlineMs};
  SwitchDeadlines deadlines;
  PauseMode fallback_pause_mode = PauseMode::kAbort;
  Milliseconds max_staleness{300'000};  // 0 = a replica that is behind stays ready
  HttpConfig http;                      // metrics and health
  LogConfig log;
  std::string trace_file;                          // empty = none
  std::uint32_t trace_spans = kTraceSpansDefault;  // spans retained; 0 = tracing is disabled
  friend bool operator==(const SidecarConfig&, const SidecarConfig&) = default;
};

// Loads and checks a configuration. Empty names and paths get their defaults. Returns kInvalidInput
// (kNotFound if the file does not exist) with file, line, key, expected and found value.
[[nodiscard]] Result<SidecarConfig> load_sidecar(const Sources& sources);
// Parses and checks a text. `name` stands for the file name in error messages.
[[nodiscard]] Result<SidecarConfig> parse_sidecar(std::string_view text, std::string_view name,
                                                  const Sources& sources = {});
// Returns the first obstacle in the order of PatchObstacle. Any thread.
[[nodiscard]] PatchObstacle patch_obstacle(const SidecarConfig& config) noexcept;
// Returns every key, in the order of the example file.
[[nodiscard]] std::vector<std::string> sidecar_keys();
// Returns the command that starts a sidecar for the coordinator at `address`, for a message from
// which it is copied. It names the coordinator if that is not the default one.
[[nodiscard]] std::string sidecar_command(std::string_view address);

}  // namespace wsync::config

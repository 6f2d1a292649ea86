// The configuration of a sidecar. Every key, its unit and its default are documented in
// deploy/config/sidecar.yaml; a test keeps that file equal to the defaults here.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/switch_deadlines.h"
#include "shared/config/defaults.h"
#include "shared/config/devices_config.h"
#include "shared/config/heartbeat_config.h"
#include "shared/config/log_config.h"
#include "shared/config/sources.h"

namespace wsync::config {

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
  std::uint32_t versions_held = kVersionsHeldDefault;
  TransportPolicy transport = TransportPolicy::kAuto;
  std::string data_address = "tcp://127.0.0.1:0";
  HeartbeatConfig heartbeat;
  SwitchDeadlines deadlines;
  PauseMode fallback_pause_mode = PauseMode::kAbort;
  Milliseconds max_staleness{300'000};  // 0 = a replica that is behind stays ready
  std::string
      http_address;  // of metrics and health; default ipc://<run_dir>/<name>.http; empty = none
  LogConfig log;
  std::string trace_file;                          // empty = none
  std::uint32_t trace_spans = kTraceSpansDefault;  // that are kept; 0 = none is made
  friend bool operator==(const SidecarConfig&, const SidecarConfig&) = default;
};

// Reads and checks a configuration; empty names and paths get their defaults. An error is
// kInvalidInput (kNotFound: no such file) and says file, line, key, expected, found.
[[nodiscard]] Result<SidecarConfig> load_sidecar(const Sources& sources);
// The same from a text; `name` stands for the file in errors.
[[nodiscard]] Result<SidecarConfig> parse_sidecar(std::string_view text, std::string_view name,
                                                  const Sources& sources = {});
// Every key, in the order of the example file.
[[nodiscard]] std::vector<std::string> sidecar_keys();

}  // namespace wsync::config

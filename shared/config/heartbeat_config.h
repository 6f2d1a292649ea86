// Signs of life between two processes: the keys heartbeat.*.
#pragma once

#include <chrono>

#include "shared/base/liveness.h"

namespace wsync::config {

using Milliseconds = std::chrono::milliseconds;

struct HeartbeatConfig {
  Milliseconds interval{limits::kHeartbeatIntervalMs};
  Milliseconds deadline{limits::kHeartbeatDeadlineMs};  // silence longer than this is a loss
  friend bool operator==(const HeartbeatConfig&, const HeartbeatConfig&) = default;
};

}  // namespace wsync::config

// Heartbeats between two processes: the keys heartbeat.*.
#pragma once

#include <chrono>

#include "shared/base/liveness.h"

namespace wsync::config {

using Milliseconds = std::chrono::milliseconds;

struct HeartbeatConfig {
  Milliseconds interval{limits::kHeartbeatIntervalMs};
  Milliseconds deadline{limits::kHeartbeatDeadlineMs};  // the peer is lost after this much silence
  friend bool operator==(const HeartbeatConfig&, const HeartbeatConfig&) = default;
};

}  // namespace wsync::config

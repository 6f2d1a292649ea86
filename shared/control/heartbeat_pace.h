// How often heartbeats are sent. Each of them is small, but a coordinator with a thousand sidecars
// that exchanged them at the interval of a small fleet would handle ten thousand a second while
// nothing happens. So a coordinator with many peers sends them less often, and a sidecar follows
// the pace of its coordinator. The deadline leaves room for two heartbeats, each of them an
// interval late.
//
// Thread: pure; confined to one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>

#include "shared/base/clock.h"
#include "shared/control/port.h"

namespace wsync::control {

class HeartbeatPace {
 public:
  // Peers that get a heartbeat in every interval.
  static constexpr std::size_t kPeersAtFullPace = 64;

  explicit HeartbeatPace(const PortTimes& times)
      : interval_(times.heartbeat_interval),
        // A peer may have another deadline than this side, but rarely one below the default.
        longest_(std::max(times.heartbeat_interval,
                          std::min(times.silence_deadline, PortTimes{}.silence_deadline) / 2 -
                              times.heartbeat_interval)),
        pace_(interval_) {}

  // For a coordinator: grows in proportion to the number of peers.
  void set_peers(std::size_t peers) noexcept {
    const std::size_t times = std::max<std::size_t>(1, peers / kPeersAtFullPace);
    pace_ = std::min<std::chrono::nanoseconds>(interval_ * times, longest_);
  }
  // For a sidecar: a heartbeat of its coordinator has arrived. The time since the last one is the
  // pace.
  void follow(TimePoint at) noexcept {
    if (heard_) pace_ = std::clamp<std::chrono::nanoseconds>(at - *heard_, interval_, longest_);
    heard_ = at;
  }
  // The connection was lost, so the pace is unknown.
  void reset() noexcept {
    heard_.reset();
    pace_ = interval_;
  }

  // Whether a heartbeat is due that can be sent once in every interval. `sent`: when the last
  // message was sent to this peer. At full pace every interval has one.
  [[nodiscard]] bool is_due(TimePoint sent, TimePoint now) const noexcept {
    return pace_ < 2 * interval_ || now - sent >= pace_ - interval_ / 2;
  }
  [[nodiscard]] std::chrono::nanoseconds pace() const noexcept { return pace_; }

 private:
  std::chrono::nanoseconds interval_;
  std::chrono::nanoseconds longest_;
  std::chrono::nanoseconds pace_;
  std::optional<TimePoint> heard_;
};

}  // namespace wsync::control

// PausePacer: the order in which replicas that adopt are asked to pause.
//
// The pause of a replica that adopts copies nothing. It takes four messages between two processes,
// and each wakes one of them. Engines that are asked at the same moment wait for the same cores
// inside of their pauses: with four of them on two cores, the longest pause is three times as long
// as that of an engine that switches alone. So no more of them are between their Pause and their
// Resume at once than there are cores for two processes each. The work is the same, so the last of
// them serves the version about as early as if all had been asked at once.
//
// A replica that has not answered its Pause soon makes room for the next one. It may be inside of a
// long step, or hang. Each such replica delays those after it by max_wait and the resolution of the
// caller's timer, and all together by max_queued at most.
//
// Usage: send what the calls return, in order. Keep one timer at next_wake(), and call tick() when
// it fires.
//
// Thread: confined to one thread. No I/O.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "inference_side/reload/switch_events.h"
#include "shared/base/clock.h"

namespace wsync::agent {

struct PauseLimits {
  // Replicas that have a place at once. 0 is taken as 1.
  std::size_t at_once = std::thread::hardware_concurrency() / 2;
  // How long a replica keeps its place when it is not heard of.
  std::chrono::nanoseconds max_wait = std::chrono::milliseconds(1);
  // How long a replica waits for a place. Then it is asked to pause without one.
  std::chrono::nanoseconds max_queued = std::chrono::milliseconds(20);
};

class PausePacer {
 public:
  struct Pause {
    std::string replica;
    reload::SendPause command;
  };
  using Pauses = std::vector<Pause>;  // to be sent now
  explicit PausePacer(const PauseLimits& limits);

  // The Pause is sent as soon as there is a place. It replaces one of this replica that waits.
  [[nodiscard]] Pauses pause(const std::string& replica, const reload::SendPause& command,
                             TimePoint at);
  // A rank of the replica has paused: the replica keeps its place until end(), or for
  // PauseLimits::max_wait.
  void paused(const std::string& replica, TimePoint at);
  // The replica has lost a rank, so its pause will take long: its place is free. A Pause that waits
  // is still wanted.
  [[nodiscard]] Pauses leave(const std::string& replica, TimePoint at);
  // The replica is resumed, or has no rank any more: its place is free, and a Pause that waits is
  // not sent. Does nothing for a replica that has neither.
  [[nodiscard]] Pauses end(const std::string& replica, TimePoint at);
  // A place may have become free because its time is over.
  [[nodiscard]] Pauses tick(TimePoint at);

  // When the next tick() is due; std::nullopt if no Pause waits.
  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  [[nodiscard]] std::size_t waiting() const noexcept { return waiting_.size(); }

 private:
  struct Waiting {
    Pause pause;
    TimePoint since{};
  };
  PauseLimits limits_;
  std::deque<Waiting> waiting_;
  std::map<std::string, TimePoint> placed_;  // until when each replica keeps its place
};

}  // namespace wsync::agent

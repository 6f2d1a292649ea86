// SwitchLog: the lines of a sidecar's log about the versions that its replicas load and commit, one
// line for each.
//
// Thread: confined to one thread. Pure: no I/O, and the time is an argument of each call.
#pragma once

#include <map>
#include <string>

#include "inference_side/reload/switch_events.h"
#include "shared/base/clock.h"

namespace wsync::agent {

class SwitchLog {
 public:
  // Each is called for a command that was sent to `replica`, and returns the line about it; empty
  // if it reports nothing new.
  [[nodiscard]] std::string sent(const std::string& replica, const reload::BeginLoad& command,
                                 TimePoint at);
  // The first commit of a load: every rank has loaded its version.
  [[nodiscard]] std::string sent(const std::string& replica, const reload::SendCommit& command,
                                 TimePoint at);
  // A rank has loaded.
  void loaded(const std::string& replica, const reload::RankLoaded& event);
  // The resume after the commits: every rank has committed the version.
  [[nodiscard]] std::string sent(const std::string& replica, const reload::SendResume& command,
                                 TimePoint at);
  template <class Other>
  [[nodiscard]] std::string sent(const std::string& /*replica*/, const Other& /*command*/,
                                 TimePoint /*at*/) {
    return {};
  }

  // The replica is no longer known.
  void forget(const std::string& replica) { loads_.erase(replica); }

 private:
  struct Load {
    TimePoint begin{};
    Version committing;  // none: not every rank has loaded it yet
    bool by_patch = false;
    std::uint64_t written_bytes = 0;  // by all ranks
    std::uint64_t bytes = 0;          // of all their tensors
  };
  std::map<std::string, Load> loads_;  // by replica, until its resume
};

}  // namespace wsync::agent

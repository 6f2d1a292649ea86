// AbsentEngines: engines that this sidecar knows although they are not attached. Some were refused
// and have not attached since. Others have said that they are starting. Reports name them instead
// of saying that no engine is attached.
//
// Thread: confined to one thread. Pure: no I/O, and the time is an argument of each call.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inference_side/reload/weight_pipeline.h"
#include "shared/base/clock.h"
#include "shared/control/messages.h"

namespace wsync::agent {

// A process that will attach as this rank when it has allocated its memory.
struct StartingRank {
  reload::EngineId id{};  // of its connection
  std::string replica;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint64_t pid = 0;      // 0: in another PID namespace
  bool is_suspended = false;  // it was attached before, and has given its memory away
};

class AbsentEngines {
 public:
  // A rank was refused. `why`: the sentence that it was sent. Returns whether that is news: the
  // same rank has not been refused for the same reason within kept_for().
  bool refused(const std::string& replica, std::uint32_t rank, const std::string& why,
               TimePoint at);
  // Whether the last that is known of the rank is a refusal.
  [[nodiscard]] bool was_refused(const std::string& replica, std::uint32_t rank) const;
  void starting(const StartingRank& rank, TimePoint at);
  // The connection of a starting rank has ended. Returns whether it was still reported.
  bool ended(reload::EngineId id);
  // It has attached. `is_on_trial`: its version is still being prepared, and it may be refused
  // again, so an earlier refusal is kept.
  void attached(const std::string& replica, std::uint32_t rank, bool is_on_trial = false);
  // Adds the starting ranks, and the refusals of the last kept_for(), to the reports: to the reason
  // of a replica that lacks ranks, or as an absent replica of its own.
  void add_to(std::vector<control::ReplicaReport>& reports, TimePoint now) const;
  // The same ranks, as the results of a verification.
  [[nodiscard]] std::vector<control::VerifyRank> unverified(TimePoint now) const;
  // The process of a refused engine may have ended, so it is not reported for ever.
  [[nodiscard]] static constexpr std::chrono::minutes kept_for() {
    return std::chrono::minutes(10);
  }

 private:
  struct Absent {
    std::string why;  // completes "rank 0 ..."
    std::uint32_t world_size = 1;
    TimePoint at{};
    std::optional<reload::EngineId> connection;  // of a starting rank
  };
  [[nodiscard]] static bool is_reported(const Absent& rank, TimePoint now) {
    return rank.connection || now - rank.at <= kept_for();
  }
  void add(const std::string& replica, std::uint32_t rank, Absent absent);

  std::map<std::pair<std::string, std::uint32_t>, Absent> ranks_;  // by replica and rank
};

}  // namespace wsync::agent

// AbsentEngines: engines that this sidecar knows although they are not attached. Some were refused
// and have not attached since. Others have said that they are starting. Reports name them instead
// of saying that no engine is attached.
//
// Thread: confined to one thread. Pure: no I/O, and the time is an argument of each call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "inference_side/reload/weight_pipeline.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
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

// The ranks of a replica that are not attached, in order, and whether they are all of its ranks.
struct MissingRanks {
  std::vector<std::uint32_t> ranks;
  bool are_all = false;
};
// Returns those of the replica of this name; no ranks if it is not known.
using MissingOf = std::function<MissingRanks(const std::string& replica)>;

class AbsentEngines {
 public:
  // A rank was refused. `why`: the sentence that it was sent. `pid`: its process, if
  // process_ended() will be called for it, otherwise 0. Returns whether that is news: the same rank
  // has not been refused for the same reason within kept_for().
  bool refused(const std::string& replica, std::uint32_t rank, const std::string& why, TimePoint at,
               std::uint64_t pid = 0);
  // The process of a refused rank has ended. Returns whether it was still reported.
  bool process_ended(const std::string& replica, std::uint32_t rank, std::uint64_t pid);
  // Whether the last that is known of the rank is a refusal.
  [[nodiscard]] bool was_refused(const std::string& replica, std::uint32_t rank) const;
  void starting(const StartingRank& rank, TimePoint at);
  // The connection of a starting rank has ended. Returns whether it was still reported.
  bool ended(reload::EngineId id);
  // It has attached. `is_on_trial`: its version is still being prepared, and it may be refused
  // again, so an earlier refusal is kept.
  void attached(const std::string& replica, std::uint32_t rank, bool is_on_trial = false);
  // Whether the ranks of this replica may be forgotten. kNotFound: none is known. kRefused: the
  // process of one of them lives, and would be reported again.
  [[nodiscard]] Result<> check_forget(const std::string& replica) const;
  void forget(const std::string& replica);
  // Names of the replicas that are known, reported or not.
  [[nodiscard]] std::set<std::string> replicas() const;
  // Adds the starting ranks, and the refusals of the last kept_for(), to the reports: to the reason
  // of a replica that lacks ranks, or as an absent replica of its own. A reason that says which
  // ranks are not attached goes on to say that of those alone of which nothing is known here.
  void add_to(std::vector<control::ReplicaReport>& reports, const MissingOf& missing,
              TimePoint now) const;
  // Completes the reasons of outcomes that end with the ranks of a replica that are not attached:
  // where each of them is, and what to do about those of which nothing is known here. Says which
  // replicas are suspended with all of their ranks. `sidecar`: the name of this one.
  void explain(std::vector<control::ReplicaOutcome>& outcomes, const MissingOf& missing,
               const std::string& sidecar, TimePoint now) const;
  // The same ranks, as the results of a verification.
  [[nodiscard]] std::vector<control::VerifyRank> unverified(TimePoint now) const;
  // A refused engine whose process cannot be watched may have ended, so it is not reported for
  // ever.
  [[nodiscard]] static constexpr std::chrono::minutes kept_for() {
    return std::chrono::minutes(10);
  }

 private:
  struct Absent {
    std::string why;  // completes "rank 0 ..."
    std::uint32_t world_size = 1;
    bool is_suspended = false;
    TimePoint at{};
    std::uint64_t pid = 0;  // of a process whose end is told, or of a starting one; 0: not known
    std::optional<reload::EngineId> connection;  // of a starting rank
  };
  [[nodiscard]] static bool is_reported(const Absent& rank, TimePoint now) {
    return rank.connection || rank.pid != 0 || now - rank.at <= kept_for();
  }
  void add(const std::string& replica, std::uint32_t rank, Absent absent);
  // What is known of the rank and reported; nullptr if nothing is.
  [[nodiscard]] const Absent* reported(const std::string& replica, std::uint32_t rank,
                                       TimePoint now) const;
  // One sentence for each of these ranks that is known, and one for all the others, which ends with
  // `advice`.
  [[nodiscard]] std::string where(const std::string& replica,
                                  const std::vector<std::uint32_t>& ranks,
                                  const std::string& advice, TimePoint now) const;

  std::map<std::pair<std::string, std::uint32_t>, Absent> ranks_;  // by replica and rank
};

}  // namespace wsync::agent

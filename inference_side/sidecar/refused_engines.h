// RefusedEngines: engines that this sidecar has refused and that have not attached since, so that
// its reports name them instead of saying that no engine is attached.
//
// Thread: confined to one thread. Pure: no I/O, and the time is an argument of each call.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"

namespace wsync::agent {

class RefusedEngines {
 public:
  // A rank was refused. `why`: the sentence that it was sent.
  void refused(const std::string& replica, std::uint32_t rank, const std::string& why,
               TimePoint at);
  void attached(const std::string& replica, std::uint32_t rank);
  // Adds the refusals of the last kept_for() to the reports: to the reason of a replica that lacks
  // ranks, or as an absent replica of its own.
  void add_to(std::vector<control::ReplicaReport>& reports, TimePoint now) const;
  // The same refusals, as the results of a verification.
  [[nodiscard]] std::vector<control::VerifyRank> unverified(TimePoint now) const;
  // The process of a refused engine may have ended, so it is not reported for ever.
  [[nodiscard]] static constexpr std::chrono::minutes kept_for() {
    return std::chrono::minutes(10);
  }

 private:
  struct Refusal {
    std::string why;
    TimePoint at{};
  };
  std::map<std::pair<std::string, std::uint32_t>, Refusal> refusals_;  // by replica and rank
};

}  // namespace wsync::agent

// RefusalLog: writes to the log what was refused, without letting an attacker fill it: each
// sentence once a minute, at most 20 of them a minute, and then the number of the others.
//
// Thread: confined to one.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "shared/base/clock.h"

namespace wsync {

class RefusalLog {
 public:
  // Logs the sentence as a warning, or counts it.
  void add(const std::string& sentence);

 private:
  std::set<std::string> said_;  // since `said_from_`
  TimePoint said_from_{};
  std::uint64_t unsaid_ = 0;  // refusals since then that were not logged
};

}  // namespace wsync

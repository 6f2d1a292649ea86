// StartingRank: tells the sidecar that this process will attach as a rank when it has allocated its
// memory. Until then, status, top, verify and the answers to a push name it, so that it differs
// from an engine that nobody has started.
//
// Thread: confined to one thread.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/error.h"
#include "shared/control/link.h"

namespace wsync::engine {

class StartingRank {
 public:
  // `is_suspended`: it was attached before, and has given its memory away for a time.
  // Returns as soon as the message is written; waits at most kStartingDeadline. The sidecar reports
  // the rank until it attaches, or until this object or its process ends. A sidecar that restarts
  // meanwhile forgets it. Errors: as control::Link::connect() and send().
  [[nodiscard]] static Result<StartingRank> report(const std::string& socket_path,
                                                   const std::string& replica, std::uint32_t rank,
                                                   std::uint32_t world_size,
                                                   bool is_suspended = false);

 private:
  explicit StartingRank(control::Link link) : link_(std::move(link)) {}
  control::Link link_;
};

}  // namespace wsync::engine

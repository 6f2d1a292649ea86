// A process group that emulates a slower link. Benchmarks use it to show on one host the value of a
// schedule on a network.
#pragma once

#include <chrono>
#include <memory>

#include "shared/process_group/process_group.h"

namespace wsync::collective {

// A rank's link, full duplex. Its traffic with all peers shares the link.
struct LinkSpeed {
  std::chrono::nanoseconds latency{};  // per exchange(), for any number of messages
  double bytes_per_second = 0;         // above 0; in each direction
};

// exchange() takes at least latency + max(bytes sent, bytes received) / bytes_per_second. It sleeps
// for the part of this time that the inner group did not need. If this would exceed the deadline,
// the group breaks with kDeadline. Everything else behaves as the inner group. kInvalidInput for an
// invalid speed.
[[nodiscard]] Result<std::unique_ptr<ProcessGroup>> emulate_link(
    std::unique_ptr<ProcessGroup> group, const LinkSpeed& speed);

}  // namespace wsync::collective

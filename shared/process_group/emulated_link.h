// A process group on a slower link than it has: for benchmarks that show on one host what a
// schedule is worth on a network.
#pragma once

#include <chrono>
#include <memory>

#include "shared/process_group/process_group.h"

namespace wsync::collective {

// A rank's own link, full duplex: what it sends to and receives from all peers shares it.
struct LinkSpeed {
  std::chrono::nanoseconds latency{};  // of each exchange(), however many messages it has
  double bytes_per_second = 0;         // above 0; each way
};

// exchange() takes latency + max(bytes sent, bytes received) / bytes_per_second at least, and
// sleeps for what the group itself did not need of that. When this would go beyond the deadline,
// the group is broken with kDeadline. All else as the group itself. kInvalidInput for a speed that
// is none.
[[nodiscard]] Result<std::unique_ptr<ProcessGroup>> emulate_link(
    std::unique_ptr<ProcessGroup> group, const LinkSpeed& speed);

}  // namespace wsync::collective

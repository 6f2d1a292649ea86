// From one thread's memory to another's over loopback TCP, a Unix socket and ZeroMQ.
#pragma once

#include <string>

#include "bench/baseline/workbench.h"

namespace wsync::bench {

// Adds the rows of links. `directory` is for a socket. `bench` outlives the rows. Each measurement
// checks what arrived; one that stands still for half a minute is kDeadline.
[[nodiscard]] Result<> add_link_rows(Workbench& bench, const std::string& directory,
                                     BaselineRows& rows);

}  // namespace wsync::bench

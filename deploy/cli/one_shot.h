// A coordinator for one push or one rollback, when none is running: it claims the fleet, does the
// one thing and leaves; the sidecars keep what was staged.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::cli {

struct OneShotOptions {
  std::string address;  // where the sidecars look for their coordinator
  double timeout_s = 0;
  // What the fleet has traced in the last `trace_age`, asked when the one thing is done; empty: it
  // is not asked.
  std::function<void(control::TraceAnswer)> on_trace = {};
  std::function<std::chrono::nanoseconds()> trace_age = {};
};

// Blocks until done, the deadline, or Ctrl-C (kCancelled). kBusy: a coordinator came up meanwhile.
[[nodiscard]] Result<control::PushReply> push_once(
    const OneShotOptions& options, const std::string& directory, std::uint64_t step,
    const std::function<void(const control::Progress&)>& on_progress);
[[nodiscard]] Result<control::RollbackReply> roll_back_once(const OneShotOptions& options,
                                                            const Version& to);

}  // namespace wsync::cli

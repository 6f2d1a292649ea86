// A temporary coordinator for one push or one rollback when no coordinator is running. It claims
// the fleet, performs the operation and exits. The sidecars keep the staged versions.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::cli {

struct OneShotOptions {
  std::string address;  // address at which sidecars look for their coordinator
  double timeout_s = 0;
  // Receives the fleet's trace of the last `trace_age` after the operation. Empty: no trace is
  // collected.
  std::function<void(control::TraceAnswer)> on_trace = {};
  std::function<std::chrono::nanoseconds()> trace_age = {};
  // Set to true if the operation has not begun because another coordinator has started meanwhile.
  bool* is_taken = nullptr;
};

// Block until the operation is done, the deadline passes, or Ctrl-C (kCancelled). kBusy if another
// coordinator has started meanwhile.
[[nodiscard]] Result<control::PushReply> push_once(
    const OneShotOptions& options, const std::string& directory, std::uint64_t step,
    const std::function<void(const control::Progress&)>& on_progress);
[[nodiscard]] Result<control::RollbackReply> roll_back_once(const OneShotOptions& options,
                                                            const Version& to);

}  // namespace wsync::cli

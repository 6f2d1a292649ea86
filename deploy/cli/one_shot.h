// A temporary coordinator for one push or one rollback when no coordinator is running, and a
// temporary trainer for one push to a coordinator that has none. It performs the operation and
// exits. The sidecars keep the staged versions.
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
  // Set to true if the operation has not begun because another process has come first: another
  // coordinator, or another trainer of the coordinator.
  bool* is_taken = nullptr;
};

// Block until the operation is done, the deadline passes, or Ctrl-C (kCancelled). kBusy if another
// coordinator has started meanwhile.
[[nodiscard]] Result<control::PushReply> push_once(
    const OneShotOptions& options, const std::string& directory, std::uint64_t step,
    const std::function<void(const control::Progress&)>& on_progress);
[[nodiscard]] Result<control::RollbackReply> roll_back_once(const OneShotOptions& options,
                                                            const Version& to);
// Publishes to the coordinator at the address as its trainer. `key`: file with the key of a
// publisher or an operator; empty: the coordinator has no keys. Weights are served at the address
// by which this host reaches the coordinator, unless WSYNC_DATA_ADDRESS of the environment says
// another one. Blocks as push_once(). kRefused if the coordinator does not take this trainer.
[[nodiscard]] Result<control::PushReply> push_as_trainer(
    const OneShotOptions& options, const std::string& key, const std::string& directory,
    std::uint64_t step, const std::function<void(const control::Progress&)>& on_progress);

}  // namespace wsync::cli

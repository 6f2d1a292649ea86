// HangupSignal: calls back on the loop when the process gets SIGHUP, by which an operator asks it
// to read its files again.
#pragma once

#include <functional>
#include <memory>

#include "shared/loop/loop.h"

namespace wsync {

// At most one exists in a process, because signal handlers belong to the process. Destruction
// restores the former handler.
// Thread: the loop's. The loop must outlive it.
class HangupSignal {
 public:
  // `on_hangup` runs on the loop, once for all signals that came since it ran last. kBusy if
  // another HangupSignal exists; kRefused if the application handles or ignores SIGHUP itself,
  // which then stays as it is.
  [[nodiscard]] static Result<std::unique_ptr<HangupSignal>> create(
      Loop& loop, std::function<void()> on_hangup);
  HangupSignal(const HangupSignal&) = delete;
  HangupSignal& operator=(const HangupSignal&) = delete;
  ~HangupSignal();

 private:
  struct State;
  explicit HangupSignal(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wsync

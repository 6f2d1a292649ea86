// Signals: handles SIGINT and SIGTERM of the process. The first signal asks the loop to stop in
// order. The second one ends the process at once with status 130, even if the loop hangs.
#pragma once

#include <functional>
#include <memory>

#include "shared/loop/loop.h"

namespace wsync {

// At most one exists in a process, because signal handlers belong to the process. While it exists,
// SIGPIPE is ignored as well. Destruction restores the former handlers.
// Thread: the loop's.
class Signals {
 public:
  // `on_stop` runs on the loop after the first signal and gets its number. kBusy if another Signals
  // exists.
  [[nodiscard]] static Result<std::unique_ptr<Signals>> create(Loop& loop,
                                                               std::function<void(int)> on_stop);
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();

 private:
  struct State;
  explicit Signals(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wsync

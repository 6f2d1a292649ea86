// Signals: SIGINT and SIGTERM of the process. The first one asks the loop to stop in order; the
// second ends the process at once with status 130, even if the loop hangs.
#pragma once

#include <functional>
#include <memory>

#include "shared/loop/loop.h"

namespace wsync {

// At most one in a process at a time (signal handlers belong to the process). While it lives,
// SIGPIPE is ignored as well. Destruction puts the former handlers back.
// Thread: the loop's.
class Signals {
 public:
  // `on_stop` runs on the loop after the first signal, with its number. kBusy when another Signals
  // lives.
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

// The places of a fleet, of which one process at a time is the coordinator: its control address,
// the socket of this host and the folder of its state. A command such as `wsync push` may hold them
// for a while, and a trainer that starts meanwhile waits for its end.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/config/trainer_config.h"
#include "shared/loop/loop.h"

namespace wsync::publish {

// Who holds a place that a coordinator with this configuration needs.
struct PlaceHolder {
  std::string sentence;  // "PATH is held by process 12 (wsync push)"
  bool ends_by_itself = false;
};
// What else can be done if another process holds the lock of a place. It may hang instead of
// serving the fleet. A TCP port has no lock and cannot be taken over.
inline constexpr std::string_view kTakeOverAdvice =
    "if that process hangs, start a trainer with --take-over (`take_over: true` in its settings), "
    "which takes the fleet from it";
// Returns a holder, a command that ends by itself first; std::nullopt if nobody holds a place. Any
// thread.
[[nodiscard]] std::optional<PlaceHolder> holder_of_place(const config::TrainerConfig& config);

// The pause between two looks at the places.
inline constexpr std::chrono::milliseconds kPlaceLook{50};

// The wait for a command that holds a place. It lasts deadlines.publish at most, and is logged
// once. Thread: confined to one.
class PlaceWait {
 public:
  // `config` is borrowed.
  explicit PlaceWait(const config::TrainerConfig& config);
  // Whether a command holds a place, and the wait is not over.
  [[nodiscard]] bool must_wait();
  // Whether a coordinator is to be created again that could not be created because of `error`: a
  // command holds a place, or its holder has gone since.
  [[nodiscard]] bool may_try_again(const Error& error);

 private:
  const config::TrainerConfig& config_;
  TimePoint end_;
  bool has_said_ = false;
  int tries_ = 0;  // while nobody held a place
};

// Runs the loop until no command holds the places, the wait is over, or somebody stops the loop.
// Returns true if the loop was stopped.
[[nodiscard]] bool wait_for_place(Loop& loop, const config::TrainerConfig& config);

}  // namespace wsync::publish

#include "trainer_side/publish/fleet_place.h"

#include <array>
#include <filesystem>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/unix_socket.h"
#include "shared/config/units.h"
#include "shared/control/zmq/address.h"
#include "shared/loop/timer.h"

namespace wsync::publish {

namespace {

// Of a holder that was there when a coordinator could not be created, and is not there any more.
constexpr int kTries = 10;

}  // namespace

std::optional<PlaceHolder> holder_of_place(const config::TrainerConfig& config) {
  const auto address = control::parse_port_address(config.listen);
  const std::string control = address ? address->path : std::string();  // empty: a TCP port
  const std::string host = config.run_dir + "/trainer-host.sock";
  const std::filesystem::path state = std::filesystem::path(config.state_dir) / config.fleet;
  const std::array<std::pair<std::string, std::string>, 3> places = {{
      {control, control + ".lock"},
      {host, host + ".lock"},
      {"the state of fleet '" + config.fleet + "'", (state / "coordinator.lock").string()},
  }};
  std::optional<PlaceHolder> found;
  for (const auto& [place, lock] : places) {
    if (place.empty()) continue;
    // Only its host is a trainer's own if its coordinator is another process.
    if (!config.coordinator.empty() && place != host) continue;
    const auto holder = lock_holder(lock);
    if (!holder || (found && holder->command.empty())) continue;
    found = {.sentence = fmt::format("{} is held by {}", place, holder->to_string()),
             .ends_by_itself = !holder->command.empty()};
    if (found->ends_by_itself) break;
  }
  return found;
}

PlaceWait::PlaceWait(const config::TrainerConfig& config)
    : config_(config), end_(now() + config.deadlines.publish) {}

bool PlaceWait::must_wait() {
  const auto holder = holder_of_place(config_);
  if (!holder || !holder->ends_by_itself || now() >= end_) return false;
  if (!std::exchange(has_said_, true))
    log_info("{}, which ends by itself: it is awaited for {} at most (deadlines.publish)",
             holder->sentence, config::format_duration(config_.deadlines.publish));
  return true;
}

bool PlaceWait::may_try_again(const Error& error) {
  if (error.code() != ErrorCode::kBusy) return false;
  if (must_wait()) return true;
  // A store of several hosts has waited for the lease of the other coordinator already.
  return config_.etcd.members.empty() && !holder_of_place(config_) && ++tries_ <= kTries;
}

bool wait_for_place(Loop& loop, const config::TrainerConfig& config) {
  PlaceWait wait(config);
  if (!wait.must_wait()) return false;
  bool is_over = false;
  Timer look(loop, [&] {
    if (wait.must_wait()) return;
    is_over = true;
    loop.stop();
  });
  look.start_repeating(kPlaceLook);
  loop.run();
  return !is_over;
}

}  // namespace wsync::publish

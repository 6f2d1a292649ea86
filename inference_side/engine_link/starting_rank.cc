#include "inference_side/engine_link/starting_rank.h"

#include <chrono>
#include <utility>

#include "shared/base/clock.h"

namespace wsync::engine {
namespace {

// A sidecar that lives reads at once. An engine must not wait for one that hangs.
constexpr std::chrono::milliseconds kStartingDeadline{500};

}  // namespace

Result<StartingRank> StartingRank::report(const std::string& socket_path,
                                          const std::string& replica, std::uint32_t rank,
                                          std::uint32_t world_size, bool is_suspended) {
  const TimePoint deadline = now() + kStartingDeadline;
  auto link = WSYNC_TRY(control::Link::connect(socket_path, deadline));
  WSYNC_TRY(
      link.send({.replica = replica, .rank = rank},
                control::EngineStarting{.world_size = world_size, .is_suspended = is_suspended}, {},
                deadline));
  return StartingRank(std::move(link));
}

}  // namespace wsync::engine

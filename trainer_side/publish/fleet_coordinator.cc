#include "trainer_side/publish/fleet_coordinator.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "shared/base/unix_socket.h"

namespace wsync::publish {

Result<std::unique_ptr<FleetCoordinator>> FleetCoordinator::create(
    Loop& loop, const config::TrainerConfig& config,
    std::function<void(const Error& reason)> on_stopped) {
  WSYNC_TRY(make_private_directory(config.run_dir));
  WSYNC_TRY(make_private_directory(config.state_dir));
  WSYNC_TRY(
      make_private_directory((std::filesystem::path(config.state_dir) / config.fleet).string()));
  auto fleet = std::unique_ptr<FleetCoordinator>(new FleetCoordinator(loop));
  fleet->agent_ = WSYNC_TRY(
      CoordinatorAgent::create(loop, config, fleet->desk_.callbacks(std::move(on_stopped))));
  fleet->desk_.serve(*fleet->agent_);
  WSYNC_TRY(fleet->agent_->open({}, std::nullopt));
  return fleet;
}

}  // namespace wsync::publish

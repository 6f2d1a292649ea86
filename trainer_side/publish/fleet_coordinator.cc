#include "trainer_side/publish/fleet_coordinator.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "shared/base/unix_socket.h"

namespace wsync::publish {

Result<> make_fleet_folders(const config::TrainerConfig& config) {
  WSYNC_TRY(make_private_directory(config.run_dir));
  WSYNC_TRY(make_private_directory(config.state_dir));
  return make_private_directory((std::filesystem::path(config.state_dir) / config.fleet).string());
}

Result<std::unique_ptr<FleetCoordinator>> FleetCoordinator::create(
    Loop& loop, const config::TrainerConfig& config,
    std::function<void(const Error& reason)> on_stopped, OpenedStore opened) {
  auto fleet = std::unique_ptr<FleetCoordinator>(new FleetCoordinator(loop));
  fleet->agent_ = WSYNC_TRY(CoordinatorAgent::create(
      loop, config, fleet->desk_.callbacks(std::move(on_stopped)), std::move(opened)));
  fleet->desk_.serve(*fleet->agent_);
  WSYNC_TRY(fleet->agent_->open({}, std::nullopt));
  return fleet;
}

}  // namespace wsync::publish

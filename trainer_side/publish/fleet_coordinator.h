// FleetCoordinator: a coordinator as a process of its own. It holds no weights: it decides for a
// fleet, keeps the roster, and outlives the trainers that publish to it, one at a time.
//
// Thread: the loop's. The loop must outlive it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shared/base/error.h"
#include "shared/config/trainer_config.h"
#include "shared/loop/loop.h"
#include "trainer_side/publish/coordinator_agent.h"
#include "trainer_side/publish/publisher_desk.h"

namespace wsync::publish {

// Makes the folders of a coordinator's process: run_dir, state_dir and that of the fleet in it.
[[nodiscard]] Result<> make_fleet_folders(const config::TrainerConfig& config);

class FleetCoordinator {
 public:
  // `config`: that of a trainer; what concerns weights is not used. `on_stopped`: as in
  // TrainerAgentCallbacks. `opened`: of CoordinatorAgent::open_store() or StandBy::take(). The
  // folders exist. Errors: those of CoordinatorAgent::create() and open().
  [[nodiscard]] static Result<std::unique_ptr<FleetCoordinator>> create(
      Loop& loop, const config::TrainerConfig& config,
      std::function<void(const Error& reason)> on_stopped, OpenedStore opened);
  FleetCoordinator(const FleetCoordinator&) = delete;
  FleetCoordinator& operator=(const FleetCoordinator&) = delete;
  ~FleetCoordinator() = default;

  [[nodiscard]] const std::string& address() const noexcept { return agent_->address(); }

 private:
  explicit FleetCoordinator(Loop& loop) : desk_(loop) {}

  PublisherDesk desk_;
  std::unique_ptr<CoordinatorAgent> agent_;  // ends first: it calls the desk
};

}  // namespace wsync::publish

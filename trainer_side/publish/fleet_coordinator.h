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

class FleetCoordinator {
 public:
  // `config`: that of a trainer; what concerns weights is not used. `on_stopped`, `on_ready`: as in
  // TrainerAgentCallbacks. Errors: those of CoordinatorAgent::create() and open(), and of the
  // folders.
  [[nodiscard]] static Result<std::unique_ptr<FleetCoordinator>> create(
      Loop& loop, const config::TrainerConfig& config,
      std::function<void(const Error& reason)> on_stopped);
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

// StandBy: waits until no other coordinator leads the fleet, and takes the lead. Until then it
// listens at no address of the fleet, so that sidecars and trainers, which try their addresses in
// turn, find the coordinator that leads. Its status pages say that it is healthy and not ready.
//
// Thread: the loop's. The loop must outlive it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shared/base/error.h"
#include "shared/config/trainer_config.h"
#include "shared/loop/loop.h"
#include "shared/loop/worker.h"
#include "shared/observe/metrics/registry.h"
#include "shared/observe/metrics/status_pages.h"
#include "trainer_side/publish/coordinator_agent.h"

namespace wsync::publish {

class StandBy {
 public:
  // Begins to wait. `on_end` is called once, on the loop: this process leads now, or an error of
  // DecisionStore::stand_by(). Errors of the folders, of the store and of the pages.
  [[nodiscard]] static Result<std::unique_ptr<StandBy>> create(
      Loop& loop, const config::TrainerConfig& config, std::function<void(Result<>)> on_end);
  StandBy(const StandBy&) = delete;
  StandBy& operator=(const StandBy&) = delete;
  // Ends the wait.
  ~StandBy();

  // The store, of which this process is the leader. Call it once, after on_end without an error.
  [[nodiscard]] OpenedStore take();

 private:
  explicit StandBy(Loop& loop) : worker_(loop, {.name = "stand-by"}) {}
  [[nodiscard]] Result<> show(Loop& loop, const config::TrainerConfig& config);

  OpenedStore opened_;
  std::string waits_for_ = "this coordinator stands by";
  metrics::Registry registry_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<metrics::StatusPages> pages_;  // null: http.address is none
  Worker worker_;                                // ends first
};

}  // namespace wsync::publish

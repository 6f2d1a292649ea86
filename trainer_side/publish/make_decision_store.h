// Makes the decision store that a configuration names.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shared/base/error.h"
#include "shared/config/trainer_config.h"
#include "trainer_side/coordinator/decision_store.h"

namespace wsync::publish {

// See etcd::EtcdStoreOptions. Called on any thread.
struct DecisionStoreCallbacks {
  std::function<void(const std::string&)> on_trouble;
  std::function<void(const std::string&)> on_replaced;
  std::function<void(const std::string&)> on_lease_ended;
};
// Asks no medium yet.
[[nodiscard]] Result<std::unique_ptr<coordinator::DecisionStore>> make_decision_store(
    const config::TrainerConfig& config, DecisionStoreCallbacks callbacks);

}  // namespace wsync::publish

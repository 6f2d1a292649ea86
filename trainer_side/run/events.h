// The events of rank 0 of a training run and of its launcher, and their output: lines of the log, a
// table, JSON. An event is a JSON object with the member "event"; README.md of this folder lists
// them.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/command/context.h"

namespace wsync::cli {

using TrainEvents = std::function<void(const nlohmann::json& event)>;

// Thread: one at a time.
class TrainReport {
 public:
  // `prints_events`: also prints each event as a line on standard output.
  explicit TrainReport(bool prints_events) : prints_events_(prints_events) {}
  // Logs the event and keeps what the outcome needs.
  void take(const nlohmann::json& event);
  // Outcome of a run that ended normally.
  [[nodiscard]] Outcome outcome() const;
  [[nodiscard]] std::uint64_t last_step() const noexcept { return last_step_; }

 private:
  void take_step(const nlohmann::json& event);
  void take_rollouts(const nlohmann::json& event);
  void take_publish(const nlohmann::json& event);
  void take_recovered(const nlohmann::json& event);
  [[nodiscard]] nlohmann::json device_activations_max() const;
  [[nodiscard]] nlohmann::json publishing() const;
  [[nodiscard]] nlohmann::json generating() const;

  const bool prints_events_;
  nlohmann::json begin_, end_;
  std::vector<nlohmann::json> steps_, rollouts_, publishes_, saved_, losses_, recoveries_;
  bool stopped_ = false;
  std::uint64_t last_step_ = 0;
  TimePoint began_{}, ended_{};
};

}  // namespace wsync::cli

// Common parts of `wsync demo --train` and `--rl`: a model is trained beside a sidecar and engines,
// and the engines load the weights of every step.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "deploy/demo/scenario.h"

namespace wsync::cli {

// Values of single steps, as points of a curve.
using StepValues = std::vector<std::pair<double, double>>;
// Returns a field of a list ("steps", "publishes" or "rollouts") in the `result` of `wsync train
// --json`, from `first_step` on. Publishes that no engine served are left out. A missing field
// throws nlohmann::json::exception.
[[nodiscard]] StepValues step_values(const nlohmann::json& result, const char* list,
                                     const char* field, std::uint64_t first_step = 1);
[[nodiscard]] double sum_of(const StepValues& values);

// What is trained, and what the engines do with it.
struct TrainingKind {
  // Settings of model and training. The initial weights also depend on them.
  std::vector<std::string> settings;
  bool engines_generate = false;
};

class TrainingScenario : public Scenario {
 public:
  TrainingScenario(const DemoContext& context, TrainingKind kind)
      : Scenario(context), kind_(std::move(kind)) {}
  // Ends the trainer before the fleet, because the trainer is the fleet's coordinator.
  ~TrainingScenario() override;

 protected:
  // Other settings, without directories: what is published, and where answers come from.
  [[nodiscard]] virtual Result<std::vector<std::string>> run_settings() = 0;
  // Handles an event of the trainer. Returns true if verify_meanwhile() is due.
  [[nodiscard]] virtual bool handle_event(const std::string& kind, const nlohmann::json& event) = 0;
  [[nodiscard]] virtual Result<> verify_meanwhile() { return {}; }
  // Checks the result. Called after the trainer has ended, while the engines still serve.
  [[nodiscard]] virtual Result<> check_result() = 0;

  // Returns the arguments of `wsync train` with the kind's settings, these settings and these
  // options.
  [[nodiscard]] std::vector<std::string> train_command(std::vector<std::string> settings,
                                                       std::vector<std::string> options) const;
  // Verifies every engine, which holds `version` (any version if it is none), and adds up what was
  // read back.
  [[nodiscard]] Result<> verify_all(const Version& version);
  // Checks that every engine holds the last version.
  [[nodiscard]] Result<> verify_last();

  nlohmann::json training_;            // result of `wsync train --json`, once it has ended
  std::vector<std::string> verified_;  // versions that were read back from engines
  std::uint64_t verified_bytes_ = 0;   // in all verifications

 private:
  [[nodiscard]] Result<> play() override;
  [[nodiscard]] Result<> start_engines();
  [[nodiscard]] Result<> start_trainer();
  [[nodiscard]] Result<> watch();
  void handle_line(const std::string& line);

  const TrainingKind kind_;
  Child* trainer_ = nullptr;
  std::string last_line_;
  bool is_verification_due_ = false;
};

}  // namespace wsync::cli

// Common parts of `wsync demo --train` and `--rl`: a model is trained beside a sidecar and engines,
// and the engines load the weights of every step.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deploy/demo/demo.h"
#include "shared/base/clock.h"

namespace wsync::cli {

// A training step and how its weights were published to the engines.
struct TrainedStep {
  std::uint64_t step = 0;
  double loss = 0;
  double seconds = 0;           // duration of the training step
  double snapshot_seconds = 0;  // waited for the previous step's snapshot
  std::string state;            // state of its publish, e.g. "committed"; empty: not published
  std::string version;
  std::string content_digest;
  double staged_seconds = 0;
  double paused_seconds = 0;  // longest pause of an engine

  // Only for a step that trained on generated answers:
  bool on_answers = false;
  double reward = 0;            // mean over its answers
  std::uint64_t staleness = 0;  // of its oldest answers, in steps
  // Largest mismatch of all tokens whose version the trainer still has.
  double mismatch = 0;
  bool compared = false;  // there was such a token
  double drift = 0;
  double answers_seconds = 0;  // waited for answers
};
// Reads the steps from the `result` of `wsync train --json`. kInternal if it does not match its
// schema.
[[nodiscard]] Result<std::vector<TrainedStep>> trained_steps(const nlohmann::json& result);

// Thread: that of the context's children.
class TrainingScenario {
 public:
  explicit TrainingScenario(const DemoContext& context)
      : context_(context), options_(context.options) {}
  // Ends the trainer before the fleet, because the trainer is the fleet's coordinator.
  virtual ~TrainingScenario();
  TrainingScenario(const TrainingScenario&) = delete;
  TrainingScenario& operator=(const TrainingScenario&) = delete;

  [[nodiscard]] Result<Outcome> run();

 protected:
  // Settings of model and training. The initial weights also depend on them.
  [[nodiscard]] virtual std::vector<std::string> model_settings() const = 0;
  // Other settings, without directories: what is published, and where answers come from.
  [[nodiscard]] virtual Result<std::vector<std::string>> run_settings() = 0;
  [[nodiscard]] virtual bool engines_generate() const = 0;
  virtual void handle_event(const std::string& kind, const nlohmann::json& event) = 0;
  // Returns true if verify_meanwhile() is due. Called while the trainer runs.
  [[nodiscard]] virtual bool is_verification_due() const { return false; }
  [[nodiscard]] virtual Result<> verify_meanwhile() { return {}; }
  // Checks the steps. Called after the trainer has ended, while the engines still serve.
  [[nodiscard]] virtual Result<> check_steps() = 0;
  // Builds the report. Called after the fleet has ended.
  [[nodiscard]] virtual Result<Outcome> report() = 0;

  // Returns the arguments of `wsync train` with the model's settings, these settings and these
  // options.
  [[nodiscard]] std::vector<std::string> train_command(std::vector<std::string> settings,
                                                       std::vector<std::string> options) const;
  // Verifies that every engine holds `version` and that every tensor is equal. Returns the number
  // of bytes that were read back. `what` names the version in an error.
  [[nodiscard]] Result<std::uint64_t> verify_all(const std::string& version,
                                                 const std::string& what);
  [[nodiscard]] double elapsed_s() const { return seconds(now() - begin_); }

  const DemoContext& context_;
  const DemoOptions& options_;
  std::unique_ptr<fleet::Fleet> fleet_;
  nlohmann::json training_;         // output of `wsync train --json`
  std::vector<TrainedStep> steps_;  // steps of training_
  std::vector<fleet::EngineResult> engines_;

 private:
  [[nodiscard]] Result<> start_fleet();
  [[nodiscard]] Result<> start_trainer();
  [[nodiscard]] Result<> watch();
  void handle_line(const std::string& line);

  const TimePoint begin_ = now();
  Child* trainer_ = nullptr;
  std::string last_line_;
};

}  // namespace wsync::cli

// What `wsync demo --train` and `--rl` have in common: a model is trained beside a sidecar and
// engines, which take the weights of every step.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deploy/demo/demo.h"
#include "shared/base/clock.h"

namespace wsync::cli {

// A training step, and how its weights came to the engines.
struct TrainedStep {
  std::uint64_t step = 0;
  double loss = 0;
  double seconds = 0;           // of training
  double snapshot_seconds = 0;  // that it waited for the snapshot of the step before
  std::string state;            // of its publish: "committed"; empty: it was not published
  std::string version;
  std::string content_digest;
  double staged_seconds = 0;
  double paused_seconds = 0;  // of the engine that was paused longest

  // Of a step that trained on generated answers:
  bool on_answers = false;
  double reward = 0;            // mean over its answers
  std::uint64_t staleness = 0;  // of its oldest answers, in steps
  double mismatch = 0;          // the largest of all tokens of versions that the trainer still has
  bool compared = false;        // there was such a token
  double drift = 0;
  double answers_seconds = 0;  // that it waited for answers
};
// The steps in the `result` of `wsync train --json`; kInternal when it is otherwise than its schema
// says.
[[nodiscard]] Result<std::vector<TrainedStep>> trained_steps(const nlohmann::json& result);

// Thread: that of the context's children.
class TrainingScenario {
 public:
  explicit TrainingScenario(const DemoContext& context)
      : context_(context), options_(context.options) {}
  // Ends the trainer before the fleet, whose coordinator it is.
  virtual ~TrainingScenario();
  TrainingScenario(const TrainingScenario&) = delete;
  TrainingScenario& operator=(const TrainingScenario&) = delete;

  [[nodiscard]] Result<Outcome> run();

 protected:
  // Settings of model and training. The initial weights depend on these as well.
  [[nodiscard]] virtual std::vector<std::string> model_settings() const = 0;
  // Settings beside those and beside the directories: what is published, and from where answers
  // come.
  [[nodiscard]] virtual Result<std::vector<std::string>> run_settings() = 0;
  [[nodiscard]] virtual bool engines_generate() const = 0;
  virtual void handle_event(const std::string& kind, const nlohmann::json& event) = 0;
  // While the trainer runs: whether verify_meanwhile() is due.
  [[nodiscard]] virtual bool is_verification_due() const { return false; }
  [[nodiscard]] virtual Result<> verify_meanwhile() { return {}; }
  // After the trainer's end, while engines serve: whether the steps are as they should be.
  [[nodiscard]] virtual Result<> check_steps() = 0;
  // After the end of the fleet.
  [[nodiscard]] virtual Result<Outcome> report() = 0;

  // `wsync train` with the model's and these settings, and these options.
  [[nodiscard]] std::vector<std::string> train_command(std::vector<std::string> settings,
                                                       std::vector<std::string> options) const;
  // Every engine holds `version`, with every tensor equal; the bytes that were read back. `what`
  // names the version in an error.
  [[nodiscard]] Result<std::uint64_t> verify_all(const std::string& version,
                                                 const std::string& what);
  [[nodiscard]] double elapsed_s() const { return seconds(now() - begin_); }

  const DemoContext& context_;
  const DemoOptions& options_;
  std::unique_ptr<fleet::Fleet> fleet_;
  nlohmann::json training_;         // what `wsync train --json` printed
  std::vector<TrainedStep> steps_;  // in it
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

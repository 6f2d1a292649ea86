#include "deploy/demo/training_scenario.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "shared/command/outcome.h"

namespace wsync::cli {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kTrainingDeadline{7'200'000};
constexpr milliseconds kExportDeadline{60'000};
// Time for one step, its publish and saving its state.
constexpr milliseconds kTrainerWaitLimit{20'000};

void read_step(const json& step, TrainedStep& read) {
  read.step = step.at("step");
  read.loss = step.at("loss");
  read.seconds = step.at("seconds");
  read.snapshot_seconds = step.at("snapshot_wait_seconds");
}

void read_publish(const json& publish, TrainedStep& read) {
  read.state = publish.at("state");
  read.version = publish.at("version");
  read.content_digest = publish.at("content_digest");
  read.staged_seconds = publish.at("staged_seconds");
  read.paused_seconds = publish.at("paused_seconds");
}

void read_rollouts(const json& rollouts, TrainedStep& read) {
  read.on_answers = true;
  read.reward = rollouts.at("reward");
  read.staleness = rollouts.at("staleness_most");
  read.mismatch = rollouts.at("mismatch_most");
  read.compared = rollouts.at("mismatch_tokens") != 0;
  read.drift = rollouts.at("drift_most");
  read.answers_seconds = rollouts.at("waited_seconds");
}

}  // namespace

Result<std::vector<TrainedStep>> trained_steps(const json& result) {
  try {
    std::map<std::uint64_t, TrainedStep> steps;
    for (const json& step : result.at("steps"))
      read_step(step, steps[step.at("step").get<std::uint64_t>()]);
    const auto read = [&](const json& list, void (*member)(const json&, TrainedStep&)) {
      for (const json& one : list)
        if (const auto step = steps.find(one.at("step").get<std::uint64_t>()); step != steps.end())
          member(one, step->second);
    };
    read(result.at("publishes"), read_publish);
    read(result.value("rollouts", json::array()), read_rollouts);
    std::vector<TrainedStep> list;
    for (auto& [number, step] : steps) list.push_back(std::move(step));
    return list;
  } catch (const json::exception& error) {
    return fail(ErrorCode::kInternal, fmt::format("the result of `wsync train`: {}", error.what()));
  }
}

TrainingScenario::~TrainingScenario() {
  if (trainer_ == nullptr) return;
  trainer_->on_line = {};  // the handlers belong to a derived class that is already destroyed
  if (trainer_->running()) context_.children.stop(*trainer_, kTrainerWaitLimit);
}

Result<Outcome> TrainingScenario::run() {
  WSYNC_TRY(start_fleet());
  WSYNC_TRY(start_trainer());
  WSYNC_TRY(watch());
  training_ = WSYNC_TRY(fleet::result_in(last_line_, "train"));
  steps_ = WSYNC_TRY(trained_steps(training_));
  WSYNC_TRY(check_steps());
  engines_ = WSYNC_TRY(fleet_->stop());
  return report();
}

std::vector<std::string> TrainingScenario::train_command(std::vector<std::string> settings,
                                                         std::vector<std::string> options) const {
  std::vector<std::string> arguments{"train", "--json"};
  for (auto list : {model_settings(), std::move(settings)})
    for (std::string& setting : list) {
      arguments.emplace_back("--set");
      arguments.push_back(std::move(setting));
    }
  arguments.insert(arguments.end(), options.begin(), options.end());
  return arguments;
}

Result<> TrainingScenario::start_fleet() {
  const std::string model = options_.work_dir + "/model";
  WSYNC_TRY(context_.children.run(
      {.name = "export", .arguments = train_command({}, {"--export", model})}, kExportDeadline));
  std::vector<std::string> holds{"--checkpoint", model};
  if (engines_generate()) holds = {"--model", model, "--port", "0"};
  fleet_ = std::make_unique<fleet::Fleet>(context_.children,
                                          demo_fleet(options_, {.model = std::move(holds)}));
  WSYNC_TRY(fleet_->start());
  context_.say("running: a sidecar and {}, which {}", counted(options_.engines, "engine"),
               engines_generate() ? "answer over HTTP once they have weights"
                                  : "wait for their first weights");
  return {};
}

Result<> TrainingScenario::start_trainer() {
  std::vector<std::string> settings = WSYNC_TRY(run_settings());
  settings.insert(settings.end(),
                  {"publish.run_dir=" + options_.run_dir, "publish.state_dir=" + options_.state_dir,
                   fmt::format("publish.min_replicas={}", options_.engines)});
  trainer_ = WSYNC_TRY(
      context_.children.start({.name = "trainer",
                               .arguments = train_command(std::move(settings), {"--events"}),
                               .output = ChildOutput::kLines}));
  trainer_->may_end();
  trainer_->on_line = [this](const std::string& line) { handle_line(line); };
  return {};
}

void TrainingScenario::handle_line(const std::string& line) {
  last_line_ = line;
  const json event = json::parse(line, nullptr, false);
  if (event.is_object()) handle_event(event.value("event", ""), event);
}

Result<> TrainingScenario::watch() {
  while (trainer_->running()) {
    WSYNC_TRY(context_.children.until("the end of the training", kTrainingDeadline, [&] {
      return !trainer_->running() || is_verification_due();
    }));
    if (trainer_->running()) WSYNC_TRY(verify_meanwhile());
  }
  if (trainer_->succeeded()) return {};
  return fail(context_.children.failure_of(*trainer_));
}

Result<std::uint64_t> TrainingScenario::verify_all(const std::string& version,
                                                   const std::string& what) {
  const auto expected = WSYNC_TRY(Version::parse(version));
  const auto ranks = fleet_->verify(expected, options_.engines);
  if (!ranks) return fail(ranks.error().with_context("verify of " + what));
  context_.say("verified: every engine holds {}, every tensor equal ({} read back)", version,
               human_bytes(bytes_of(*ranks)));
  return bytes_of(*ranks);
}

}  // namespace wsync::cli

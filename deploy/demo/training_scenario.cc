#include "deploy/demo/training_scenario.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace wsync::cli {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kTrainingDeadline{7'200'000};
constexpr milliseconds kExportDeadline{60'000};
// Time for one step, its publish and saving its state.
constexpr milliseconds kTrainerWaitLimit{20'000};

}  // namespace

StepValues step_values(const json& result, const char* list, const char* field,
                       std::uint64_t first_step) {
  StepValues values;
  for (const json& entry : result.at(list))
    if (entry.at("step") >= first_step && entry.value("state", "committed") == "committed")
      values.emplace_back(entry.at("step"), entry.at(field));
  return values;
}

double sum_of(const StepValues& values) {
  double sum = 0;
  for (const auto& [step, value] : values) sum += value;
  return sum;
}

TrainingScenario::~TrainingScenario() {
  if (trainer_ == nullptr) return;
  trainer_->on_line = {};  // the handlers belong to a derived class that is already destroyed
  if (trainer_->running()) context_.children.stop(*trainer_, kTrainerWaitLimit);
}

Result<> TrainingScenario::play() {
  WSYNC_TRY(start_engines());
  WSYNC_TRY(start_trainer());
  WSYNC_TRY(watch());
  training_ = WSYNC_TRY(fleet::result_in(last_line_, "train"));
  return check_result();
}

std::vector<std::string> TrainingScenario::train_command(std::vector<std::string> settings,
                                                         std::vector<std::string> options) const {
  std::vector<std::string> arguments{"train", "--json"};
  for (auto list : {kind_.settings, std::move(settings)})
    for (std::string& setting : list) {
      arguments.emplace_back("--set");
      arguments.push_back(std::move(setting));
    }
  arguments.insert(arguments.end(), options.begin(), options.end());
  return arguments;
}

Result<> TrainingScenario::start_engines() {
  const std::string model = options_.work_dir + "/model";
  WSYNC_TRY(context_.children.run(
      {.name = "export", .arguments = train_command({}, {"--export", model})}, kExportDeadline));
  std::vector<std::string> holds{"--checkpoint", model};
  if (kind_.engines_generate) holds = {"--model", model, "--port", "0"};
  WSYNC_TRY(start_fleet(fleet_options({.model = std::move(holds)})));
  context_.say("running: a sidecar and {}, which {}", counted(options_.engines, "engine"),
               kind_.engines_generate ? "answer over HTTP once they have weights"
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
  if (event.is_object() && handle_event(event.value("event", ""), event))
    is_verification_due_ = true;
}

Result<> TrainingScenario::watch() {
  while (trainer_->running()) {
    WSYNC_TRY(context_.children.until("the end of the training", kTrainingDeadline, [&] {
      return !trainer_->running() || is_verification_due_;
    }));
    if (!trainer_->running()) break;
    is_verification_due_ = false;
    WSYNC_TRY(verify_meanwhile());
  }
  if (trainer_->succeeded()) return {};
  return fail(context_.children.failure_of(*trainer_));
}

Result<> TrainingScenario::verify_all(const Version& version) {
  const Verified verified = WSYNC_TRY(verify(version, options_.engines));
  verified_bytes_ += verified.bytes;
  for (const std::string& held : verified.versions)
    if (std::ranges::find(verified_, held) == verified_.end()) verified_.push_back(held);
  return {};
}

Result<> TrainingScenario::verify_last() {
  const json& publishes = training_.at("publishes");
  if (publishes.empty()) return fail(ErrorCode::kInternal, "no weights were published");
  const auto version = WSYNC_TRY(Version::parse(publishes.back().at("version").get<std::string>()));
  return verify_all(version);
}

}  // namespace wsync::cli

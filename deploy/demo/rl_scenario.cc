// `wsync demo --rl`: a policy learns a task from its own answers. Two engines generate answers over
// HTTP, and trainer processes train on their rewards. The weights of each step generate the next
// answers.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "deploy/demo/training_scenario.h"
#include "shared/command/training_text.h"
#include "shared/observe/trace/chart.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLinesWhileTraining = 16;
constexpr std::size_t kSmoothedSteps = 10;  // smoothing window of the main curve

std::uint32_t last_step(const DemoOptions& options) {
  return options.warm_start_steps + options.steps;
}

TrainingKind training_kind(const DemoOptions& options) {
  return {.settings = {"parallel.pp=2", "parallel.vpp=2", "model.experts=4", "data.sequence=20",
                       "data.micro_batch=32", "optimizer.learning_rate=1e-3",
                       "optimizer.final_learning_rate=1e-4", "optimizer.weight_decay=0.01",
                       fmt::format("model.seed={}", options.seed),
                       fmt::format("steps={}", last_step(options))},
          .engines_generate = true};
}

class RlScenario final : public TrainingScenario {
 public:
  explicit RlScenario(const DemoContext& context)
      : TrainingScenario(context, training_kind(context.options)) {}

 private:
  [[nodiscard]] Result<std::vector<std::string>> run_settings() override;
  [[nodiscard]] bool handle_event(const std::string& kind, const json& event) override;
  [[nodiscard]] Result<> check_result() override;
  [[nodiscard]] Result<std::string> report() override;

  [[nodiscard]] double generating(const char* field) const {
    return training_.at("generating").value(field, 0.0);
  }
  [[nodiscard]] double sync_share() const;
  // Of the steps that trained on answers.
  [[nodiscard]] StepValues values(const char* list, const char* field) const {
    return step_values(training_, list, field, options_.warm_start_steps + 1);
  }
  [[nodiscard]] trace::Series curve(std::string name, std::string colour, const char* list,
                                    const char* field, double scale = 1) const;
  [[nodiscard]] trace::Series smoothed_reward() const;
  [[nodiscard]] Result<> write_picture(const std::string& path) const;
};

Result<std::vector<std::string>> RlScenario::run_settings() {
  const auto addresses = WSYNC_TRY(fleet_->addresses());
  return std::vector<std::string>{
      fmt::format("rollout.engines={}", fmt::join(addresses, ",")),
      fmt::format("rollout.warm_start_steps={}", options_.warm_start_steps),
      fmt::format("rollout.max_staleness={}", options_.max_staleness),
      fmt::format("rollout.seed={}", options_.seed),
      "publish.pause_mode=keep",
      fmt::format("publish.every={}", options_.sync ? 1 : last_step(options_) + 1)};
}

bool RlScenario::handle_event(const std::string& kind, const json& event) {
  if (kind == "begin")
    context_.say(
        "training: {} processes (pp {}, vpp {}), {} parameters; {} steps on right answers, then {} "
        "on the engines' own",
        event.value("ranks", 0U), event.value("pp", 0U), event.value("vpp", 0U),
        event.value("parameters", std::uint64_t{0}), options_.warm_start_steps, options_.steps);
  if (kind != "rollouts") return false;
  const auto step = event.value("step", std::uint64_t{0}) - options_.warm_start_steps;
  const std::uint64_t every = std::max<std::uint64_t>(options_.steps / kLinesWhileTraining, 1);
  if (step == 1 || step % every == 0)
    context_.say(
        "step {:>4}: mean reward {:.3f} of {} answers, weights {} old at most; engines and trainer "
        "differ by {:.1e}",
        step, event.value("reward", 0.0), event.value("answers", 0U),
        counted(event.value("staleness_most", std::uint64_t{0}), "step"),
        event.value("mismatch_most", 0.0));
  return false;
}

Result<> RlScenario::check_result() {
  const std::size_t steps = training_.at("rollouts").size();
  if (steps != options_.steps)
    return fail(ErrorCode::kInternal,
                fmt::format("{} steps trained on answers, expected {}", steps, options_.steps));
  return verify_last();
}

// ---- the report ----

// Share of the total step time during which training waited for snapshots or engines were paused.
double RlScenario::sync_share() const {
  return (sum_of(values("steps", "snapshot_wait_seconds")) +
          sum_of(values("publishes", "paused_seconds"))) /
         (sum_of(values("steps", "seconds")) + sum_of(values("rollouts", "waited_seconds")));
}

Result<std::string> RlScenario::report() {
  const auto output = WSYNC_TRY(context_.output());
  const std::string picture = output + "/rl.svg";
  WSYNC_TRY(write_picture(picture));
  report_.update({{"training", training_},
                  {"sync", options_.sync},
                  {"seed", options_.seed},
                  {"max_staleness", options_.max_staleness},
                  {"warm_start_steps", options_.warm_start_steps},
                  {"steps", options_.steps},
                  {"reward_first", generating("reward_first")},
                  {"reward_last", generating("reward_last")},
                  {"sync_share", sync_share()},
                  {"verified_bytes", verified_bytes_},
                  {"picture", picture}});
  return "\n" + training_text(training_) +
         fmt::format(
             "staleness:  {} allowed\n"
             "drift:      {:.1e} at most between log-probabilities of engines and newest weights\n"
             "sync:       {:.2f}% of the time of all steps (snapshots that training waited for, "
             "engines paused)\n",
             options_.sync ? counted(options_.max_staleness, "step") : "any number of steps",
             generating("drift_most"), sync_share() * 100);
}

// ---- the picture ----

trace::Series RlScenario::curve(std::string name, std::string colour, const char* list,
                                const char* field, double scale) const {
  trace::Series series{
      .name = std::move(name), .colour = std::move(colour), .points = values(list, field)};
  for (auto& [step, value] : series.points) value *= scale;
  return series;
}

trace::Series RlScenario::smoothed_reward() const {
  trace::Series series{.name = fmt::format("mean of {}", kSmoothedSteps), .colour = "#1f6fb4"};
  const StepValues rewards = values("rollouts", "reward");
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    const std::size_t count = std::min(i + 1, kSmoothedSteps);
    double sum = 0;
    for (std::size_t at = i + 1 - count; at <= i; ++at) sum += rewards[at].second;
    series.points.emplace_back(rewards[i].first, sum / static_cast<double>(count));
  }
  return series;
}

Result<> RlScenario::write_picture(const std::string& path) const {
  trace::Series reward = curve("each step", "#1f6fb4", "rollouts", "reward");
  reward.faint = true;
  return trace::write_chart_svg(
      path, {.title = fmt::format("A policy learns from its own answers: reward {:.2f} to {:.2f}{}",
                                  generating("reward_first"), generating("reward_last"),
                                  options_.sync ? "" : ", engines keep their first weights"),
             .x_title = fmt::format("step (the first {} trained on right answers)",
                                    options_.warm_start_steps),
             .panels = {{.title = "mean reward of a step's answers",
                         .series = {std::move(reward), smoothed_reward()},
                         .min = 0,
                         .max = 1},
                        {.title = "loss", .series = {curve("", "#c0392b", "steps", "loss")}},
                        {.title = "age of the oldest answer's weights, steps",
                         .series = {curve("", "#6b4fa0", "rollouts", "staleness_most")},
                         .min = 0,
                         .max = std::max(1.0, generating("staleness_most") * 1.1)},
                        {.title = "log-probabilities, engine against trainer: most of a step",
                         .series = {curve("newest weights", "#e08a00", "rollouts", "drift_most"),
                                    curve("weights of the token's version", "#2e8b57", "rollouts",
                                          "mismatch_most")},
                         .logarithmic = true},
                        {.title = "milliseconds",
                         .series = {curve("answers", "#8a8a8a", "rollouts", "waited_seconds", 1e3),
                                    curve("training", "#1f6fb4", "steps", "seconds", 1e3),
                                    curve("staging", "#2e8b57", "publishes", "staged_seconds", 1e3),
                                    curve("paused", "#c0392b", "publishes", "paused_seconds", 1e3)},
                         .logarithmic = true}},
             .marks = {}});
}

}  // namespace

std::unique_ptr<Scenario> make_rl_scenario(const DemoContext& context) {
  return std::make_unique<RlScenario>(context);
}

}  // namespace wsync::cli

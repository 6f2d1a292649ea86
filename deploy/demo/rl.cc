// `wsync demo --rl`: a policy learns a task from its own answers. Two engines generate answers over
// HTTP, and trainer processes train on their rewards. The weights of each step generate the next
// answers.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "deploy/demo/training_scenario.h"
#include "shared/command/outcome.h"
#include "shared/observe/trace/chart.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLinesWhileTraining = 16;
constexpr std::size_t kRlRows = 14;
constexpr std::size_t kSmoothedSteps = 10;  // smoothing window of the main curve

class RlScenario final : public TrainingScenario {
 public:
  using TrainingScenario::TrainingScenario;

 private:
  [[nodiscard]] std::uint32_t last_step() const {
    return options_.warm_start_steps + options_.steps;
  }
  [[nodiscard]] std::vector<std::string> model_settings() const override;
  [[nodiscard]] Result<std::vector<std::string>> run_settings() override;
  [[nodiscard]] bool engines_generate() const override { return true; }
  void handle_event(const std::string& kind, const json& event) override;
  [[nodiscard]] Result<> check_steps() override;
  [[nodiscard]] Result<Outcome> report() override;

  [[nodiscard]] double generating(const char* name) const {
    return training_.at("generating").value(name, 0.0);
  }
  [[nodiscard]] double sync_share() const;
  [[nodiscard]] std::string text(const std::string& picture) const;
  [[nodiscard]] trace::Series curve(std::string name, std::string colour,
                                    double TrainedStep::* member, double scale = 1) const;
  [[nodiscard]] trace::Series smoothed_reward() const;
  [[nodiscard]] Result<> write_picture(const std::string& path) const;

  std::uint64_t verified_bytes_ = 0;
};

std::vector<std::string> RlScenario::model_settings() const {
  return {"parallel.pp=2",
          "parallel.vpp=2",
          "model.experts=4",
          "data.sequence=20",
          "data.micro_batch=32",
          "optimizer.learning_rate=1e-3",
          "optimizer.final_learning_rate=1e-4",
          "optimizer.weight_decay=0.01",
          fmt::format("model.seed={}", options_.seed),
          fmt::format("steps={}", last_step())};
}

Result<std::vector<std::string>> RlScenario::run_settings() {
  const auto addresses = WSYNC_TRY(fleet_->addresses());
  return std::vector<std::string>{
      fmt::format("rollout.engines={}", fmt::join(addresses, ",")),
      fmt::format("rollout.warm_start_steps={}", options_.warm_start_steps),
      fmt::format("rollout.max_staleness={}", options_.max_staleness),
      fmt::format("rollout.seed={}", options_.seed),
      "publish.pause_mode=keep",
      fmt::format("publish.every={}", options_.sync ? 1 : last_step() + 1)};
}

void RlScenario::handle_event(const std::string& kind, const json& event) {
  if (kind == "begin")
    context_.say(
        "training: {} processes (pp {}, vpp {}), {} parameters; {} steps on right answers, then {} "
        "on the engines' own",
        event.value("ranks", 0U), event.value("pp", 0U), event.value("vpp", 0U),
        event.value("parameters", std::uint64_t{0}), options_.warm_start_steps, options_.steps);
  if (kind != "rollouts") return;
  const auto step = event.value("step", std::uint64_t{0}) - options_.warm_start_steps;
  const std::uint64_t every = std::max<std::uint64_t>(options_.steps / kLinesWhileTraining, 1);
  if (step != 1 && step % every != 0) return;
  context_.say(
      "step {:>4}: mean reward {:.3f} of {} answers, weights {} old at most; engines and trainer "
      "differ by {:.1e}",
      step, event.value("reward", 0.0), event.value("answers", 0U),
      counted(event.value("staleness_most", std::uint64_t{0}), "step"),
      event.value("mismatch_most", 0.0));
}

Result<> RlScenario::check_steps() {
  std::erase_if(steps_, [](const TrainedStep& step) { return !step.on_answers; });
  for (TrainedStep& step : steps_)
    if (step.state != "committed") {
      step.version.clear();  // no engine served this version
      step.staged_seconds = step.paused_seconds = 0;
    }
  if (steps_.size() != options_.steps)
    return fail(ErrorCode::kInternal, fmt::format("{} steps trained on answers, expected {}",
                                                  steps_.size(), options_.steps));
  const auto& publishes = training_.at("publishes");
  if (publishes.empty()) return fail(ErrorCode::kInternal, "no weights were published");
  verified_bytes_ =
      WSYNC_TRY(verify_all(publishes.back().value("version", ""), "the last version"));
  return {};
}

// ---- the report ----

// Share of the total step time during which training waited for snapshots or engines were paused.
double RlScenario::sync_share() const {
  double still = 0;
  double taken = 0;
  for (const TrainedStep& step : steps_) {
    still += step.snapshot_seconds + step.paused_seconds;
    taken += step.seconds + step.answers_seconds;
  }
  return taken > 0 ? still / taken : 0;
}

Result<Outcome> RlScenario::report() {
  const auto output = WSYNC_TRY(context_.output());
  const std::string picture = output + "/rl.svg";
  WSYNC_TRY(write_picture(picture));
  const std::uint64_t torn = steps_of(engines_).torn;
  return Outcome{.result = {{"training", training_},
                            {"sync", options_.sync},
                            {"seed", options_.seed},
                            {"max_staleness", options_.max_staleness},
                            {"warm_start_steps", options_.warm_start_steps},
                            {"steps", steps_.size()},
                            {"reward_first", generating("reward_first")},
                            {"reward_last", generating("reward_last")},
                            {"sync_share", sync_share()},
                            {"verified_bytes", verified_bytes_},
                            {"engines", engines_json(engines_)},
                            {"torn", torn},
                            {"picture", picture},
                            {"elapsed_ms", static_cast<std::uint64_t>(elapsed_s() * 1000)}},
                 .text = text(picture),
                 .complaint = {},
                 .exit_code = torn == 0 ? kExitOk : kExitFailed};
}

std::string RlScenario::text(const std::string& picture) const {
  std::string text = fmt::format(
      "\n{:>6}  {:>6}  {:>8}  {:<9}{:>4}  {:>8}  {:>10}{:>9}{:>10}{:>11}\n", "step", "reward",
      "loss", "version", "old", "mismatch", "answers ms", "step ms", "staged ms", "paused ms");
  for (const std::size_t row : sampled_rows(steps_.size(), kRlRows)) {
    const TrainedStep& step = steps_[row];
    text +=
        fmt::format("{:>6}  {:>6.3f}  {:>8.4f}  {:<9}{:>4}  {:>8}  {:>10.1f}{:>9.1f}", step.step,
                    step.reward, step.loss, step.version.empty() ? "-" : step.version,
                    step.staleness, step.compared ? fmt::format("{:.1e}", step.mismatch) : "-",
                    step.answers_seconds * 1e3, step.seconds * 1e3);
    if (!step.version.empty())
      text +=
          fmt::format("{:>10.1f}{:>11.1f}", step.staged_seconds * 1e3, step.paused_seconds * 1e3);
    text += '\n';
  }
  const StepCounts counts = steps_of(engines_);
  text += fmt::format(
      "\nreward:     {:.3f} to {:.3f} (means of the first and the last steps)\n"
      "staleness:  {} at most, {} allowed\n"
      "mismatch:   {:.1e} at most between an engine's log-probability of a token and the "
      "trainer's, "
      "with\n            the weights of its version; {:.1e} with the newest weights\n"
      "sync:       {:.2f}% of the time of all steps (snapshots that training waited for, engines "
      "paused)\n"
      "torn steps: {} of {}\n",
      generating("reward_first"), generating("reward_last"),
      counted(static_cast<std::uint64_t>(generating("staleness_most")), "step"),
      options_.sync ? std::to_string(options_.max_staleness) : "any number",
      generating("mismatch_most"), generating("drift_most"), sync_share() * 100, counts.torn,
      counts.steps);
  return text + ending_text(picture, "", elapsed_s());
}

// ---- the picture ----

trace::Series RlScenario::curve(std::string name, std::string colour, double TrainedStep::* member,
                                double scale) const {
  trace::Series series{.name = std::move(name), .colour = std::move(colour), .points = {}};
  for (const TrainedStep& step : steps_)
    series.points.emplace_back(static_cast<double>(step.step), step.*member * scale);
  return series;
}

trace::Series RlScenario::smoothed_reward() const {
  trace::Series series{.name = fmt::format("mean of {}", kSmoothedSteps), .colour = "#1f6fb4"};
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const std::size_t count = std::min(i + 1, kSmoothedSteps);
    double sum = 0;
    for (std::size_t at = i + 1 - count; at <= i; ++at) sum += steps_[at].reward;
    series.points.emplace_back(static_cast<double>(steps_[i].step),
                               sum / static_cast<double>(count));
  }
  return series;
}

Result<> RlScenario::write_picture(const std::string& path) const {
  trace::Series reward = curve("each step", "#1f6fb4", &TrainedStep::reward);
  reward.faint = true;
  trace::Series staleness{.colour = "#6b4fa0"};
  for (const TrainedStep& step : steps_)
    staleness.points.emplace_back(static_cast<double>(step.step),
                                  static_cast<double>(step.staleness));
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
                        {.title = "loss", .series = {curve("", "#c0392b", &TrainedStep::loss)}},
                        {.title = "age of the oldest answer's weights, steps",
                         .series = {std::move(staleness)},
                         .min = 0,
                         .max = std::max(1.0, generating("staleness_most") * 1.1)},
                        {.title = "log-probabilities, engine against trainer: most of a step",
                         .series = {curve("newest weights", "#e08a00", &TrainedStep::drift),
                                    curve("weights of the token's version", "#2e8b57",
                                          &TrainedStep::mismatch)},
                         .logarithmic = true},
                        {.title = "milliseconds",
                         .series = {curve("answers", "#8a8a8a", &TrainedStep::answers_seconds, 1e3),
                                    curve("training", "#1f6fb4", &TrainedStep::seconds, 1e3),
                                    curve("staging", "#2e8b57", &TrainedStep::staged_seconds, 1e3),
                                    curve("paused", "#c0392b", &TrainedStep::paused_seconds, 1e3)},
                         .logarithmic = true}},
             .marks = {}});
}

}  // namespace

Result<Outcome> run_rl_demo(const DemoContext& context) {
  return run_scenario<RlScenario>(context);
}

}  // namespace wsync::cli

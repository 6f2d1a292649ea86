// The report of `wsync demo --rl`: a table and a picture for people, an object for --json.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "deploy/demo/rl.h"
#include "shared/base/format.h"
#include "shared/command/context.h"
#include "shared/observe/trace/chart.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kRlRows = 14;
constexpr std::size_t kSmooth = 10;  // steps, of the curve before the faint one

double mean(const std::vector<RlStep>& steps, std::size_t first, std::size_t end,
            double RlStep::* member) {
  if (first >= end) return 0;
  double sum = 0;
  for (std::size_t i = first; i < end; ++i) sum += steps[i].*member;
  return sum / static_cast<double>(end - first);
}

trace::Series curve(const RlDemoReport& report, std::string name, std::string colour,
                    double RlStep::* member, double scale = 1) {
  trace::Series series{.name = std::move(name), .colour = std::move(colour), .points = {}};
  for (const RlStep& step : report.steps)
    series.points.emplace_back(static_cast<double>(step.step), step.*member * scale);
  return series;
}

trace::Series smoothed(const RlDemoReport& report, std::string name, std::string colour,
                       double RlStep::* member) {
  trace::Series series{.name = std::move(name), .colour = std::move(colour), .points = {}};
  for (std::size_t i = 0; i < report.steps.size(); ++i)
    series.points.emplace_back(static_cast<double>(report.steps[i].step),
                               mean(report.steps, i + 1 - std::min(i + 1, kSmooth), i + 1, member));
  return series;
}

}  // namespace

Result<std::vector<RlStep>> rl_steps(const json& result) {
  try {
    std::map<std::uint64_t, RlStep> steps;
    for (const json& rollouts : result.at("rollouts")) {
      RlStep& step = steps[rollouts.at("step").get<std::uint64_t>()];
      step.step = rollouts.at("step");
      step.reward = rollouts.at("reward");
      step.staleness = rollouts.at("staleness_most");
      step.mismatch = rollouts.at("mismatch_most");
      step.compared = rollouts.at("mismatch_tokens") != 0;
      step.drift = rollouts.at("drift_most");
      step.answers_seconds = rollouts.at("waited_seconds");
    }
    for (const json& trained : result.at("steps")) {
      const auto step = steps.find(trained.at("step").get<std::uint64_t>());
      if (step == steps.end()) continue;  // on right answers
      step->second.loss = trained.at("loss");
      step->second.seconds = trained.at("seconds");
      step->second.snapshot_seconds = trained.at("snapshot_wait_seconds");
    }
    for (const json& publish : result.at("publishes")) {
      const auto step = steps.find(publish.at("step").get<std::uint64_t>());
      if (step == steps.end() || publish.at("state") != "committed") continue;
      step->second.version = publish.at("version");
      step->second.staged_seconds = publish.at("staged_seconds");
      step->second.paused_seconds = publish.at("paused_seconds");
    }
    std::vector<RlStep> list;
    for (auto& [number, step] : steps) list.push_back(std::move(step));
    return list;
  } catch (const json::exception& error) {
    return fail(ErrorCode::kInternal, fmt::format("the result of `wsync train`: {}", error.what()));
  }
}

std::uint64_t RlDemoReport::torn() const {
  return std::accumulate(engines.begin(), engines.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const EngineResult& e) { return sum + e.torn; });
}

double RlDemoReport::reward_first() const {
  return training.at("generating").value("reward_first", 0.0);
}

double RlDemoReport::reward_last() const {
  return training.at("generating").value("reward_last", 0.0);
}

double RlDemoReport::sync_share() const {
  double still = 0;
  double taken = 0;
  for (const RlStep& step : steps) {
    still += step.snapshot_seconds + step.paused_seconds;
    taken += step.seconds + step.answers_seconds;
  }
  return taken > 0 ? still / taken : 0;
}

std::string rl_demo_text(const RlDemoReport& report, const RlDemoOptions& options) {
  std::string text = fmt::format(
      "\n{:>6}  {:>6}  {:>8}  {:<9}{:>4}  {:>8}  {:>10}{:>9}{:>10}{:>11}\n", "step", "reward",
      "loss", "version", "old", "mismatch", "answers ms", "step ms", "staged ms", "paused ms");
  const std::size_t rows = std::min(report.steps.size(), kRlRows);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t index = rows == 1 ? 0 : row * (report.steps.size() - 1) / (rows - 1);
    const RlStep& step = report.steps[index];
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
  const json& generating = report.training.at("generating");
  text += fmt::format(
      "\nreward:     {:.3f} to {:.3f} (means of the first and the last steps)\n"
      "staleness:  {} at most, {} allowed\n"
      "mismatch:   {:.1e} at most between an engine's log-probability of a token and the "
      "trainer's, "
      "with\n            the weights of its version; {:.1e} with the newest weights\n"
      "sync:       {:.2f}% of the time of all steps (snapshots that training waited for, engines "
      "paused)\n"
      "torn steps: {} of {}\n",
      report.reward_first(), report.reward_last(),
      counted(static_cast<std::uint64_t>(generating.value("staleness_most", 0.0)), "step"),
      options.sync ? std::to_string(options.max_staleness) : "any number",
      generating.value("mismatch_most", 0.0), generating.value("drift_most", 0.0),
      report.sync_share() * 100, report.torn(),
      std::accumulate(report.engines.begin(), report.engines.end(), std::uint64_t{0},
                      [](std::uint64_t sum, const EngineResult& e) { return sum + e.steps; }));
  text += fmt::format("picture:    {}\ndone in {:.1f} s\n", report.picture, report.elapsed_s);
  return text;
}

json rl_demo_json(const RlDemoReport& report, const RlDemoOptions& options) {
  return {{"training", report.training},
          {"sync", options.sync},
          {"seed", options.seed},
          {"max_staleness", options.max_staleness},
          {"warm_start_steps", options.warm_start_steps},
          {"steps", report.steps.size()},
          {"reward_first", report.reward_first()},
          {"reward_last", report.reward_last()},
          {"sync_share", report.sync_share()},
          {"verified_bytes", report.verified_bytes},
          {"engines", engines_json(report.engines)},
          {"torn", report.torn()},
          {"picture", report.picture},
          {"elapsed_ms", static_cast<std::uint64_t>(report.elapsed_s * 1000)}};
}

Result<> write_rl_picture(const std::string& path, const RlDemoReport& report,
                          const RlDemoOptions& options) {
  trace::Series answers = curve(report, "each step", "#1f6fb4", &RlStep::reward);
  answers.faint = true;
  trace::Series staleness{.name = "", .colour = "#6b4fa0", .points = {}};
  for (const RlStep& step : report.steps)
    staleness.points.emplace_back(static_cast<double>(step.step),
                                  static_cast<double>(step.staleness));
  const trace::Chart chart{
      .title = fmt::format("A policy learns from its own answers: reward {:.2f} to {:.2f}{}",
                           report.reward_first(), report.reward_last(),
                           options.sync ? "" : ", engines keep their first weights"),
      .x_title =
          fmt::format("step (the first {} trained on right answers)", options.warm_start_steps),
      .panels = {{.title = "mean reward of a step's answers",
                  .series = {std::move(answers),
                             smoothed(report, fmt::format("mean of {}", kSmooth), "#1f6fb4",
                                      &RlStep::reward)},
                  .least = 0,
                  .most = 1},
                 {.title = "loss", .series = {curve(report, "", "#c0392b", &RlStep::loss)}},
                 {.title = "age of the oldest answer's weights, steps",
                  .series = {std::move(staleness)},
                  .least = 0,
                  .most = std::max(
                      1.0, report.training.at("generating").value("staleness_most", 0.0) * 1.1)},
                 {.title = "log-probabilities, engine against trainer: most of a step",
                  .series = {curve(report, "newest weights", "#e08a00", &RlStep::drift),
                             curve(report, "weights of the token's version", "#2e8b57",
                                   &RlStep::mismatch)},
                  .logarithmic = true},
                 {.title = "milliseconds",
                  .series = {curve(report, "answers", "#8a8a8a", &RlStep::answers_seconds, 1e3),
                             curve(report, "training", "#1f6fb4", &RlStep::seconds, 1e3),
                             curve(report, "staging", "#2e8b57", &RlStep::staged_seconds, 1e3),
                             curve(report, "paused", "#c0392b", &RlStep::paused_seconds, 1e3)},
                  .logarithmic = true}},
      .marks = {}};
  return trace::write_chart_svg(path, chart);
}

}  // namespace wsync::cli
